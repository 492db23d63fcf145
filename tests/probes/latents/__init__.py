"""Tests of probes/latents."""
