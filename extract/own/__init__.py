"""What users add by name, and the digest of its code."""
