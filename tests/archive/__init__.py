"""Files that earlier versions wrote, which must stay readable: see `make_archive` and `tests/test_archive.py`."""
