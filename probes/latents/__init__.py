"""Latents as heads read them: channels, standardisation, data modules, streams."""
