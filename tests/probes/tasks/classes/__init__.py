"""Tests of probes/tasks/classes."""
