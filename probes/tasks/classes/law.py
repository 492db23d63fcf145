"""Legal tasks of Look Both Ways (Appendix A), as LexGLUE holds them: SCOTUS issue areas and unfair terms of service."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from extract.errors import unknown_name
from probes.readers.checked_rows import check_rows
from probes.readers.hub import read_hub
from probes.readers.local import find_local
from probes.readers.raw_rows import RawRow, RawTable, shorten
from probes.readers.splits import name_splits
from probes.tasks.classes.assemble import assemble_task, class_fields
from probes.tasks.classes.task import ClassTask

LEXGLUE_HUB_ID = "coastalcph/lex_glue"
LEXGLUE_LICENCE = "CC BY 4.0"
SCOTUS_AREAS = (
    "Criminal Procedure",
    "Civil Rights",
    "First Amendment",
    "Due Process",
    "Privacy",
    "Attorneys",
    "Unions",
    "Economic Activity",
    "Judicial Power",
    "Federalism",
    "Interstate Relations",
    "Federal Taxation",
    "Miscellaneous",
)
UNFAIR_TERMS = (
    "Limitation of liability",
    "Unilateral termination",
    "Unilateral change",
    "Content removal",
    "Contract by using",
    "Choice of law",
    "Jurisdiction",
    "Arbitration",
)
FAIR = "no unfair term"
UNFAIR = "unfair term"
_HELP = "set ICECORE_DATA to a folder that holds lex_glue/, or give a local copy of it as `hub_id`"


def load_scotus(hub_id: str = LEXGLUE_HUB_ID, *, revision: str | None = None, bad_rows: str = "error") -> ClassTask:
    """Load SCOTUS: which of 13 issue areas an opinion of the Supreme Court of the United States is about.

    The official splits, 5,000 / 1,400 / 1,400 as published, scored by micro and macro F1. Opinions run to many thousand
    tokens: what the decoder's window cuts is not seen. `hub_id` is LexGLUE on the hub, or a local folder laid out like
    it (`scotus/*.parquet`); the default takes `$ICECORE_DATA/lex_glue` where it exists.
    """
    tables, source = _read_lexglue(hub_id, "scotus", revision)
    rows, notes = check_rows(tables, class_fields(), bad_rows=bad_rows)
    return assemble_task(
        rows,
        name="scotus",
        source=source,
        metrics=("f1-micro", "f1-macro"),
        licence=LEXGLUE_LICENCE,
        class_names=SCOTUS_AREAS,
        notes=notes,
    )


def load_unfair_tos(
    hub_id: str = LEXGLUE_HUB_ID, *, target: str = "type", revision: str | None = None, bad_rows: str = "error"
) -> ClassTask:
    """Load UNFAIR-ToS: is a sentence of a contract potentially unfair, and in which of 8 ways.

    The rows are multi-label, most with no label and few with more than one. Look Both Ways gives each one class and
    scores by weighted F1, and does not say how; here a row of several terms takes the first, and the notes count them.
    The official splits are 5,532 / 2,275 / 1,607 as published.

    Args:
        hub_id: As for `load_scotus`; a folder holds `unfair_tos/*.parquet`.
        target: `type` for nine classes (none, or the term), `any` for unfair or not, or the name of one term for that
            term or not; eight such tasks are the multi-label task, one against the rest.
        revision: Branch, tag or commit of the hub's copy.
        bad_rows: `error` stops at a row that cannot be used, `drop` leaves it out and says so in the notes.
    """
    if target not in ("type", "any", *UNFAIR_TERMS):
        raise unknown_name("target", target, ("type", "any", *UNFAIR_TERMS))
    found, source = _read_lexglue(hub_id, "unfair_tos", revision)
    tables = {split: _one_label(table, target) for split, table in found.items()}
    rows, notes = check_rows(tables, class_fields(), bad_rows=bad_rows)
    n_several = sum(len(row.values.get("labels") or ()) > 1 for table in found.values() for row in table.rows)
    if target == "type" and n_several:
        notes = (*notes, f"{n_several} rows are of several unfair terms; each counts as the first of them")
    names = {"type": (FAIR, *UNFAIR_TERMS), "any": (FAIR, UNFAIR)}.get(target, (f"no {target}", target))
    return assemble_task(
        rows,
        name="unfair-tos",
        source=source,
        licence=LEXGLUE_LICENCE,
        class_names=names,
        look_both_ways_rows=3000,
        notes=notes,
    )


def _read_lexglue(hub_id: str, config: str, revision: str | None) -> tuple[dict[str, RawTable], str]:
    local = find_local("lex_glue")
    place = str(local.path) if hub_id == LEXGLUE_HUB_ID and local is not None else hub_id
    tables, source = read_hub(place, config, revision=revision, help_text=_HELP)
    return name_splits(tables, source), source


def _one_label(table: RawTable, target: str) -> RawTable:
    """Cut the list `labels` down to the one class `label`."""
    if "labels" not in table.columns:
        return table  # the missing column is named when the rows are checked
    rows = [_cut_row(row, target) for row in table.rows]
    return replace(table, columns=(*table.columns, "label"), rows=rows)


def _cut_row(row: RawRow, target: str) -> RawRow:
    labels: Any = row.values.get("labels")
    if not _are_terms(labels):
        problem = f"labels are not terms: {shorten(labels)}, but a list of numbers from 0 to {len(UNFAIR_TERMS) - 1}"
        return replace(row, values={}, problem=f"{problem} is needed")
    terms = [UNFAIR_TERMS[number] for number in labels]
    if target == "type":
        label = terms[0] if terms else FAIR
    elif target == "any":
        label = UNFAIR if terms else FAIR
    else:
        label = target if target in terms else f"no {target}"
    return replace(row, values={**row.values, "label": label})


def _are_terms(labels: Any) -> bool:
    return isinstance(labels, Sequence) and all(
        isinstance(number, int) and 0 <= number < len(UNFAIR_TERMS) for number in labels
    )
