"""Tests of `probes`."""
