"""Benchmarks: ratios within one run on one machine. `make bench` runs them all."""
