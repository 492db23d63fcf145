"""Choosing a mask plan: sweeps over many plans, and searches that score only some of them."""
