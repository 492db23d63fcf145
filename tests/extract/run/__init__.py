"""Tests of extract/run."""
