"""Tests of probes/readers."""
