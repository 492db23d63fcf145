"""Promises that every registered mask kind and pooling keeps; a new row of a table is tested with no edit here."""
