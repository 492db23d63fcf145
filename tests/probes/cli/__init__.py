"""Tests of `probes.cli`."""
