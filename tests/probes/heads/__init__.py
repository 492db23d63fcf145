"""Tests of `probes.heads`."""
