"""Pairs of texts with a graded similarity."""
