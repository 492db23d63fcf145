"""docs/masks.md tells what the code does: every drawing, plan, name and family."""

import inspect
import re
from pathlib import Path

import pytest

from extract.inputs.template import BOS_POLICIES
from extract.masks.mask_plan import ARCHITECTURES, KINDS, PLANS
from extract.masks.mask_rules import draw, kind_matrix
from extract.registry import resolve
from tests.extract.mask_families import ALSO_WORKING, BY_ARGUMENT, HYBRIDS, REFUSED, WORKING
from tests.extract.masks.paper_plans import LBW_PLANS
from tests.extract.masks.test_masks import DRAWN_SPANS, kinds_drawn

PAGE = Path(__file__).resolve().parents[3] / "docs" / "masks.md"
FAMILIES = PAGE.with_name("families.md")


def section(heading: str) -> str:
    """Return the text under a heading, up to the next one of its level or above."""
    level = heading.split(" ", maxsplit=1)[0]
    found = re.search(
        rf"^{re.escape(heading)}\n(.*?)(?=^#{{2,{len(level)}}} |\Z)", PAGE.read_text(encoding="utf-8"), re.M | re.S
    )
    assert found, heading
    return found[1]


def rows(text: str) -> dict[str, str]:
    """Read the tables of a text: first cell to the last, without the heads."""
    cells = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| `")]
    return {row[0].strip("` "): row[-1].strip() if len(row) > 1 else "" for row in cells}


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_is_drawn(name: str) -> None:
    drawn = re.findall(r"```text\n(.*?)\n```", section(f"### `{name}`"), re.DOTALL)
    assert drawn == [draw(kind_matrix(kind, 4, spans=DRAWN_SPANS)) for kind in kinds_drawn(name)]


def test_no_kind_is_told_that_does_not_exist() -> None:
    told = re.findall(r"^### `(.+)`$", section("## Kinds"), re.MULTILINE)
    assert told == list(KINDS)


def test_every_plan_is_told() -> None:
    told = rows(section("## Plans"))
    assert {form: told[form] for form in PLANS} == PLANS


def test_every_name_of_the_paper_is_told() -> None:
    """The row of its plan names it; those of architectures go by the architecture, with any kind."""
    told = rows(section("## Plans"))
    for name, template in LBW_PLANS.items():
        form = template.format(m="", k="K", k0="K0", below="K-K0")
        row = told[re.sub(r"/\w+", "/KIND", re.sub("nosink[68]", "nosink4", form))]
        assert (name.partition("-")[0] if "/" in form else name) in row, name
        if name.startswith("INTER"):
            assert ("text" if name.endswith("TEXT") else "code") in row, name


def test_every_architecture_is_drawn() -> None:
    drawn = re.findall(r"^([\w-]+) +e -> 1", section("## Architectures"), re.MULTILINE)
    assert drawn == list(ARCHITECTURES)


def test_every_bos_policy_is_told() -> None:
    assert rows(section("## BOS and the first token")) == BOS_POLICIES


def test_the_families_are_those_that_are_tested() -> None:
    lines = [line.split("|") for line in FAMILIES.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    tested = {cells[1].strip(): set(re.findall(r"`(\w+)`", cells[2])) for cells in lines}
    assert tested["every theorem"] == {family for family, _ in WORKING.values()}
    assert tested["causal, influence, batch"] == {family for family, _ in ALSO_WORKING.values()}
    assert tested["by the mask argument"] == {family for family, _ in BY_ARGUMENT.values()}
    assert tested["hybrids, by attention blocks alone"] == set(HYBRIDS)
    assert tested["refused"] == {family for family, *_ in REFUSED.values()}


def test_docstrings_of_the_rules_name_their_paper() -> None:
    for name, row in KINDS.items():
        told = section(f"### `{name}`")
        for word in ("BACK", "BIDIR", "MASK0-FOR", "MASK0-BIDIR", "MAGNET"):
            if word in row.source.split():
                assert word in told, name
                assert word in (inspect.getdoc(resolve(row.rule)) or ""), name
