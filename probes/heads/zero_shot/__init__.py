"""Heads that compare latents without being fitted: one for each kind of task, all layers tried, one chosen."""
