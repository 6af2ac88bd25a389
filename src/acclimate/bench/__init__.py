"""Measuring adapters: prequential runs over feature streams, metrics, results and plots."""
