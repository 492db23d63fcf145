"""The report of a run: a table on the screen, figures, a Markdown summary, and one HTML page."""
