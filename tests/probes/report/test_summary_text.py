"""Texts of users in a summary."""

from probes.report.blocks import Caution, Document, Heading, Item, Table
from probes.report.document import summary_text


def test_a_summary_holds_no_html() -> None:
    """Programs that show Markdown run the HTML in it."""
    bad = "<img src=x onerror=alert(1)>"
    document = Document(bad, bad, bad, [bad, Heading(bad), Item(bad), Caution(bad), Table([bad], [[f"``` {bad} `"]])])
    text = summary_text(document, {bad: ["figure.png", bad]})
    assert "<" not in text
    assert text.count("&lt;img src=x") == 11
    assert "\n> &lt;img" in text
