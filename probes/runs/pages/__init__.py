"""Pages of finished runs, alone or side by side."""
