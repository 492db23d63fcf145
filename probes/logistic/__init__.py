"""Logistic probes: multinomial L2 regression by L-BFGS, all layers, all C and all folds at once."""
