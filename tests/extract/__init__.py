"""Tests of extraction, one file per module."""
