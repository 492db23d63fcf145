"""The report of a run: a table on the screen, figures, and a Markdown summary."""
