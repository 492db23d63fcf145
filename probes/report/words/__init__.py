"""Report sections for tagged words."""
