"""Tests of probes/plans."""
