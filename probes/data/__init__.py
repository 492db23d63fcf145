"""Tasks: rows with gold and splits, from local files, the hub, or the samples shipped with the project."""
