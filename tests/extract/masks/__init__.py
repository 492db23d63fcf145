"""Tests of extract/masks."""
