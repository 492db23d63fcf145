"""Tests of probes/networks."""
