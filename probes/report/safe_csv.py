"""CSV that people open in spreadsheets: no text in it starts a formula, and reading it back gives the same texts."""

import csv
import re
from collections.abc import Iterable
from io import StringIO
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

FORMULA = re.compile("'*[=+\\-@\t\r\n\uff1d\uff0b\uff0d\uff20]")
"""How a text begins that a spreadsheet may run, and one that has got quotes before: the last four are the full width
forms of the first four."""


def safe_text(text: str) -> str:
    """Put a quote before a text that a spreadsheet would run, or one with quotes before such a text; no number is one.

    Example:
        >>> safe_text("=1+1"), safe_text("'=1+1"), safe_text("-1.5"), safe_text("a=1")
        ("'=1+1", "''=1+1", '-1.5', 'a=1')
    """
    return f"'{text}" if FORMULA.match(text) and not _is_number(text) else text


def plain_text(text: str) -> str:
    """Take away the quote that `safe_text` put before a text."""
    return text[1:] if text.startswith("'") and FORMULA.match(text) else text


def write_csv(rows: Iterable[Iterable[object]], *, newline: str = "\r\n", is_safe: bool = True) -> str:
    """Write rows, the first of them the names of the columns, with safe texts; numbers stay as they are."""
    lines = []
    for row in rows:
        file = StringIO(newline="")
        # the writer quotes a carriage return only where lines end in one; alone it would begin a row of its own
        writer = csv.writer(file, lineterminator="\r\n")
        writer.writerow([safe_text(value) if is_safe and isinstance(value, str) else value for value in row])
        lines.append(file.getvalue().removesuffix("\r\n") + newline)
    return "".join(lines)


def write_frame(frame: "pd.DataFrame") -> str:
    """Write a frame without its index, with safe texts; numbers stay as they are."""
    safe = frame.map(lambda value: safe_text(value) if isinstance(value, str) else value)
    safe.columns = [safe_text(str(name)) for name in frame.columns]
    return str(safe.to_csv(index=False, lineterminator="\r\n"))


def read_csv(text: str) -> list[list[str]]:
    """Read what `write_csv` or `write_frame` wrote, names of columns first, with the texts that were written."""
    return [[plain_text(cell) for cell in row] for row in csv.reader(StringIO(text, newline=""))]


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
