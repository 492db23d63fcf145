"""Poolings: the tokens of a text, or of a word, become one vector."""
