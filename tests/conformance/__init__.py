"""Promises that everything registered keeps; a new row of a table is tested with no edit here."""
