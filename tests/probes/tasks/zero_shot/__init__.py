"""Tests of probes/tasks/zero_shot."""
