"""Storage dtypes. Reading a config loads no numpy."""

STORAGE_DTYPES = {"float32": "float32", "float16": "float16", "bfloat16": "uint16"}
"""Name of a storage dtype to that of the arrays it is stored in."""
