"""Tests of probes/fitting."""
