"""Commands that hand latents, heads and runs to other tools."""
