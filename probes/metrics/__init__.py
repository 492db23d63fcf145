"""Metrics and their intervals: correlations, classes, spans; calibration and decoding."""
