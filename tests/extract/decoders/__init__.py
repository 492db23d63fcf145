"""Tests of extract/decoders."""
