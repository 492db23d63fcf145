"""What is particular to the report of each kind of task."""
