"""Tests of extract/inputs."""
