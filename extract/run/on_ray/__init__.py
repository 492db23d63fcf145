"""Extraction into shards by workers on a Ray cluster."""
