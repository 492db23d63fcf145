"""Fitting: the Lightning loop, the best epoch kept, protocols."""
