"""Shards: many whole caches of one extraction, each of one window of texts, listed in an index and read as one."""
