"""Tests of extract/store."""
