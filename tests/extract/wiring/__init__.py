"""Tests of extract/wiring."""
