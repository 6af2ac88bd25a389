"""Attacks on the service, its files and the command line; `benchmarks/attacks.py` runs all and prints a table."""
