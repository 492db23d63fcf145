"""One suite over everything that is registered."""
