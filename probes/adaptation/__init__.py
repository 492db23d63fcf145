"""Adaptation of decoders by LoRA, and what is measured of it beside probes."""
