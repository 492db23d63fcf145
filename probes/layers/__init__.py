"""Which layers matter: every layer alone, together and missing, controls, and what was found, as one record."""

FINDINGS = "layers.json"
"""File of a run folder with what `icecore layers` computed."""
PREDICTED = "layer_predictions"
"""Folder of a run folder with what every layer predicts, a file for each head."""
