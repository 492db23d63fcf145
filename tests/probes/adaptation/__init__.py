"""Tests of adaptation."""
