"""Tests of `probes.report.page`."""
