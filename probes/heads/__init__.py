"""Heads: what is trained on latents. One file per head; the table is in `probes.heads.head_table`."""
