"""Tests of probes/heads/words."""
