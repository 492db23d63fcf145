"""Names of poolings as a config writes them: one, or several that a head reads side by side. No torch is loaded."""

from extract.errors import HeadError

JOIN = "+"


def split_poolings(text: str) -> tuple[str, ...]:
    """Read `mean` or `mean+last`; an empty or repeated name raises `HeadError`."""
    names = tuple(part.strip() for part in text.split(JOIN))
    if not all(names) or len(set(names)) != len(names):
        raise HeadError(f"pooling is {text!r}; allowed: names, each once, joined by '{JOIN}', for instance mean+last.")
    return names
