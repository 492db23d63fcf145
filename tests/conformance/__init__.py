"""One suite for everything that is registered: a new row of a table is tested with no edit here."""
