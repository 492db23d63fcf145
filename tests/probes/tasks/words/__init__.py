"""Tests of probes/tasks/words."""
