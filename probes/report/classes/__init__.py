"""Report sections for class tasks."""
