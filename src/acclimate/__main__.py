"""`python -m acclimate`."""

from acclimate.cli import main

main()
