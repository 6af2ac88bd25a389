"""The parts of `benchmarks/fidelity.py`: the authors' code, the models, and a comparison for each group of methods."""
