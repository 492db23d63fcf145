"""Tests of extract/poolings."""
