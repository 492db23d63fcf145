"""Finished runs over HTTP: typed messages, micro-batches and limits. Importing its modules needs the extra `serve`."""
