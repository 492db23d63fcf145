"""Damaged and mutated input of every kind: an `IcecoreError`, or the same numbers."""
