"""The test suite; a package, so that helpers are imported by one name wherever pytest and mypy start."""
