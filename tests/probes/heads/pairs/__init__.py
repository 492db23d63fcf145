"""Tests of probes/heads/pairs."""
