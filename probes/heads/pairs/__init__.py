"""Pair heads: fitted, scored and compared over seeds."""
