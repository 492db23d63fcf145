"""`from extract import ...` works for every public name, and only for those."""

import pytest

import extract


@pytest.mark.parametrize("name", extract.__all__)
def test_every_name_resolves(name: str) -> None:
    assert getattr(extract, name).__name__ == name


def test_other_names_are_unknown() -> None:
    with pytest.raises(AttributeError, match="module 'extract' has no attribute 'LatentCash'"):
        _ = extract.LatentCash
