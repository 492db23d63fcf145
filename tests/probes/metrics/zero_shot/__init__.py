"""Tests of probes/metrics/zero_shot."""
