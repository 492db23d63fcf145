"""Running extractions: one plan or a sweep, resumable, alone or with several processes."""
