"""Tests of probes/heads/zero_shot."""
