"""Heads for numbers: ridge probes."""
