"""Frozen decoders: where they are, how they are fetched, loaded and described."""
