"""Attacks on the service, its files and the command line; `benchmarks/attacks.py` runs them all and prints a table."""
