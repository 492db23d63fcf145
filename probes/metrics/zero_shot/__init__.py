"""Metrics of tasks that need no fitting: rankings, similarities of pairs, clusters, nearest neighbours."""
