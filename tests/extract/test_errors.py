"""Every error is one kind of IcecoreError, and a wrong name is answered with the right one."""

import inspect

import extract.errors
from extract.errors import IcecoreError, unknown_name


def test_one_base() -> None:
    classes = [kind for _, kind in inspect.getmembers(extract.errors, inspect.isclass)]
    kinds = [kind for kind in classes if issubclass(kind, Exception) and not issubclass(kind, Warning)]
    assert len(kinds) > 10
    assert all(issubclass(kind, IcecoreError) for kind in kinds)


def test_a_name_without_a_match() -> None:
    assert (
        str(unknown_name("head", "zzz", ["mlp"], hint="List them.")) == "unknown head 'zzz'. Allowed: mlp. List them."
    )
    assert str(unknown_name("head", 3, [])) == "unknown head 3. Allowed: (none)."
