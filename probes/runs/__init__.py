"""Runs: configuration, caches, heads, scores and report in one folder."""
