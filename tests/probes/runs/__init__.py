"""Tests of probes/runs."""
