"""Figures in one style, written in every format asked for."""
