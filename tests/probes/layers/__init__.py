"""Tests of `probes.layers`."""
