"""Heads for tagged words: token classifiers on one layer, on each, or on a mix."""
