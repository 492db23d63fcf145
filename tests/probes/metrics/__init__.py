"""Tests of probes/metrics."""
