"""Tests of `probes.report`."""
