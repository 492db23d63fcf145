"""Fitting: the Lightning loop, the best epoch kept, fits that are resumed after a kill, protocols."""
