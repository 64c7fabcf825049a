"""Liars and honest models: an evaluation of the sanity checks themselves (see benchmarks/liars.py)."""
