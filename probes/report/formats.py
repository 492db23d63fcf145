"""The formats that figures are written in. Brings no matplotlib, so that a configuration can be checked without it."""

from collections.abc import Sequence

from extract.errors import unknown_name

FORMATS = ("png", "svg", "pdf")


def figure_formats(formats: str | Sequence[str]) -> tuple[str, ...]:
    """Read the formats of figures, a list or names with `,` between them, each once.

    Example:
        >>> figure_formats("svg, pdf")
        ('svg', 'pdf')
    """
    names = formats.strip("[]").split(",") if isinstance(formats, str) else formats
    names = tuple(dict.fromkeys(str(name).strip().lower() for name in names or [""]))
    for name in names:
        if name not in FORMATS:
            hint = "Give one or several with ',' between them, as in --figures svg,pdf."
            raise unknown_name("format of figures", name, FORMATS, hint=hint)
    return names
