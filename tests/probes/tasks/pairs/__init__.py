"""Tests of probes/tasks/pairs."""
