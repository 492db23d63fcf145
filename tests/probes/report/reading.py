"""A page read as a browser reads it."""

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from typing import Any

from probes.report.page import HERE, LIBRARIES, PLOT_STYLE

RESOURCES = ("src", "srcset", "href", "poster", "data", "action", "background")
VOID = {"meta", "br", "hr", "img", "link", "input"}


class ReadPage(HTMLParser):
    """What is in a page: headings, ids, what it refers to, figures, tables, embedded data and texts."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.open: list[str] = []
        self.ids: list[str] = []
        self.uses: list[str] = []
        self.handlers: list[str] = []
        self.classes: set[str] = set()
        self.texts: dict[str, list[str]] = {}
        self.labels: list[str] = []
        self.data: dict[str, Any] = {}
        self._data = ""
        self.feed(text)
        self.close()
        assert not self.open, f"not closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.tags.append(tag)
        if tag not in VOID:
            self.open.append(tag)
            self.texts.setdefault(tag, []).append("")
        self.classes |= set((found.get("class") or "").split())
        self.ids += [value for value in [found.get("id")] if value]
        self.uses += [value or "" for name, value in attrs if name.split(":")[-1] in RESOURCES]
        self.handlers += [name for name in found if name.startswith("on")]
        self.labels += (found.get("aria-labelledby") or "").split()
        if tag == "script" and found.get("type") == "application/json":
            self._data = found["id"] or ""

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self.open:
            return
        if self.open[-1] == "script" and self._data:
            self.data[self._data], self._data = json.loads(data), ""
        for tag in dict.fromkeys(self.open if self.open[-1] not in ("script", "style") else self.open[-1:]):
            self.texts[tag][-1] += data

    @property
    def text(self) -> str:
        """All that a reader can see."""
        return " ".join(self.texts["body"][0].split())

    @property
    def headings(self) -> list[int]:
        """The levels of headings, in order."""
        return [int(tag[1]) for tag in self.tags if tag in ("h1", "h2", "h3", "h4")]


def require_whole(text: str) -> ReadPage:
    """Require what every page has: unique ids, headings in order, described figures, and nothing from elsewhere."""
    page = ReadPage(text)
    assert len(page.ids) == len(set(page.ids))
    assert set(page.labels) <= set(page.ids)
    assert page.headings[:1] == [1]
    assert set(page.headings[1:]) <= {2}
    assert all(use.startswith(("#", "data:image/png;base64,")) for use in page.uses), page.uses
    assert {use[1:] for use in page.uses if use.startswith("#")} <= set(page.ids)
    assert not page.handlers
    own = text
    for name in LIBRARIES:
        own = own.replace((HERE / name).read_text("utf-8"), "")
    for word in ("http:", "https:", "@import", "url(http", "<link", "<img", "<iframe", "<object"):
        assert word not in own
    n_figures = page.tags.count("figure")
    assert page.tags.count("svg") == page.tags.count("desc") == n_figures
    require_policy(text)
    assert page.tags.count("title") == n_figures + 1
    assert all(page.texts[tag][k].strip() for tag in ("title", "desc") for k in range(len(page.texts.get(tag, []))))
    assert page.classes <= set(
        text.split("<style>")[1].split("</style>", maxsplit=1)[0].replace("{", " ").replace(".", " ").split()
    )
    assert len(text.encode()) < 1_500_000
    return page


def require_policy(text: str) -> None:
    """Require that the policy of a page allows each of its scripts and styles by its digest, and nothing else."""
    [policy] = re.findall(r'Content-Security-Policy" content="([^"]*)"', text)
    rules = dict(rule.split(" ", maxsplit=1) for rule in policy.split("; "))
    blocks = {name: re.findall(rf"<{name}>(.*?)</{name}>", text, re.DOTALL) for name in ("script", "style")}
    blocks["style"].append(PLOT_STYLE)
    for name, contents in blocks.items():
        digests = [base64.b64encode(hashlib.sha256(content.encode()).digest()).decode() for content in contents]
        assert rules[f"{name}-src"].split() == [f"'sha256-{digest}'" for digest in digests]
    assert rules["default-src"] == "'none'"
    assert set(rules) == {"default-src", "script-src", "style-src", "img-src", "base-uri", "form-action"}
