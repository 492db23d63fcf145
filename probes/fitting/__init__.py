"""Fitting: the Lightning loop, the best epoch kept, long fits that go on after a kill, protocols."""
