"""Tests of probes/heads/classes."""
