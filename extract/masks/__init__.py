"""Mask kinds and mask plans: truth tables, text forms, the plans of the papers, grids of plans."""
