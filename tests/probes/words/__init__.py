"""Tests of `probes.words`."""
