"""Heads for classes: logistic probes and cosine thresholds."""
