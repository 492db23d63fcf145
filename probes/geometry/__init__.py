"""Geometry of latents, from caches alone: how they point, their size, dimensions, and how alike layers are."""
