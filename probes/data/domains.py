"""Published classification tasks of medicine, finance and law, most of them from Look Both Ways (Appendix A)."""

from collections.abc import Sequence
from dataclasses import replace
from math import ceil
from pathlib import Path

import numpy as np

from extract.errors import TaskError, require_name
from probes.data.class_task import ClassTask, assemble_task, class_fields
from probes.data.sources import (
    PUBMEDQA_FORMS,
    data_hint,
    find_local,
    fiqa_table,
    need_local,
    phrasebank_table,
    pubmedqa_table,
    rct_table,
    read_hub,
    rename_labels,
)
from probes.data.splits import MIN_CLASS_ROWS, SPLIT_NOTE, SplitRule, name_splits, rare_classes
from probes.data.table_files import FileOptions, FileRows, RawRow, RawTable, check_rows, read_raw, shorten

PUBMEDQA_FILES = ("ori_pqal.json", "test_ground_truth.json")
PUBMEDQA_CLASSES = ("yes", "no", "maybe")
CHEMPROT_HUB_ID = "AdaptLLM/ChemProt"
CHEMPROT_FILES = {"train": ("train.jsonl",), "validation": ("dev.jsonl",), "test": ("test.jsonl",)}
CHEMPROT_CLASSES = (
    "INHIBITOR",
    "INDIRECT-DOWNREGULATOR",
    "SUBSTRATE",
    "INDIRECT-UPREGULATOR",
    "ACTIVATOR",
    "ANTAGONIST",
    "PRODUCT-OF",
    "AGONIST",
    "DOWNREGULATOR",
    "UPREGULATOR",
    "SUBSTRATE_PRODUCT-OF",
    "AGONIST-ACTIVATOR",
    "AGONIST-INHIBITOR",
)
MQP_COLUMNS = ("dr_id", "question_1", "question_2", "label")
MQP_CLASSES = ("different", "similar")
MQP_REPOSITORY = "github.com/curai/medical-question-pair-dataset"
RCT_FILES = {"train": ("train.txt",), "validation": ("dev.txt",), "test": ("test.txt",)}
RCT_CLASSES = ("BACKGROUND", "OBJECTIVE", "METHODS", "RESULTS", "CONCLUSIONS")


def load_pubmedqa(
    folder: str | Path | None = None,
    *,
    text_form: str = "look-both-ways",
    validation_fraction: float = 0.2,
    seed: int = 0,
    bad_rows: str = "error",
) -> ClassTask:
    """Read PubMedQA's labelled set: does the abstract answer the question with yes, no or maybe.

    The long answer, which reveals the decision, is left out, as in Look Both Ways. 500 test records as published; of
    the other 500, by default 400 are train and 100 validation. `folder` holds `ori_pqal.json` and
    `test_ground_truth.json`; None is `$ICECORE_DATA/pubmedqa`. `text_form` is `look-both-ways` (question and contexts
    glued as by the released code) or `plain` (spaces between).
    """
    require_name("text_form", text_form, PUBMEDQA_FORMS)
    local = need_local("pubmedqa", folder, example=PUBMEDQA_FILES[0])
    records, test_ids = (local.find(file) for file in PUBMEDQA_FILES)
    table = pubmedqa_table(records, test_ids, text_form=text_form)
    source = local.source(*PUBMEDQA_FILES)
    rows = check_rows({None: table}, class_fields(), source=source, split_column="split", bad_rows=bad_rows)
    rule = SplitRule(seed, validation_fraction)
    return assemble_task(rows, name="pubmedqa", licence="MIT", class_names=PUBMEDQA_CLASSES, rule=rule)


def load_chemprot(
    folder: str | Path | None = None,
    *,
    hub_id: str = CHEMPROT_HUB_ID,
    revision: str | None = None,
    bad_rows: str = "error",
) -> ClassTask:
    """Read ChemProt: which of 13 relations holds between the marked chemical and protein.

    The official splits, 4,169 / 2,427 / 3,469 as published. `folder` holds `train.jsonl`, `dev.jsonl` and `test.jsonl`
    with keys `text` and `label` (the files that SciBERT ships as .txt, renamed); None is `$ICECORE_DATA/chemprot` where
    it exists, else the hub.
    """
    local = find_local("chemprot", folder)
    if local is None:
        tables, source = read_hub(hub_id, revision=revision, help_text=data_hint("chemprot", "train.jsonl"))
        tables = name_splits(tables, source)
    else:
        tables, source = local.read(CHEMPROT_FILES, read_raw)
    rows = check_rows(tables, class_fields(), source=source, bad_rows=bad_rows)
    licence = "see BioCreative VI, track 5"
    return assemble_task(rows, name="chemprot", licence=licence, class_names=CHEMPROT_CLASSES)


def load_mqp(folder: str | Path | None = None, *, seed: int = 0, bad_rows: str = "error") -> ClassTask:
    """Read medical question pairs: do two questions ask the same.

    There are no official splits: the 3,048 published pairs are drawn 80/10/10. Each first question is in a similar and
    in a different pair, so the split keeps the pairs of one first question together. `folder` holds `mqp.csv` (no
    header: doctor, question, question, label); None is `$ICECORE_DATA/mqp`.
    """
    local = need_local("mqp", folder, example="mqp.csv")
    table = read_raw(local.find("mqp.csv"), FileOptions(header=False, columns=MQP_COLUMNS))
    table = rename_labels(table, {"0": MQP_CLASSES[0], "1": MQP_CLASSES[1]})
    fields = class_fields("question_1", text2="question_2", group="question_1")
    rows = check_rows({None: table}, fields, source=local.source("mqp.csv"), bad_rows=bad_rows)
    return assemble_task(
        rows,
        name="mqp",
        metrics=("accuracy",),
        licence=f"see {MQP_REPOSITORY}",
        class_names=MQP_CLASSES,
        rule=SplitRule(seed),
    )


def load_rct(folder: str | Path | None = None, *, bad_rows: str = "error") -> ClassTask:
    """Read PubMed 20k RCT: which part of a trial's abstract a sentence belongs to.

    The official splits, 180,040 / 30,212 / 30,135 sentences as published, each with its abstract as group. `folder`
    holds `train.txt`, `dev.txt` and `test.txt` of one release; None is `$ICECORE_DATA/rct`.
    """
    tables, source = need_local("rct", folder, example="train.txt").read(RCT_FILES, rct_table)
    rows = check_rows(tables, class_fields(group="abstract"), source=source, bad_rows=bad_rows)
    return assemble_task(
        rows,
        name="rct",
        licence="PubMed abstracts, see NLM's copyright page",
        class_names=RCT_CLASSES,
        look_both_ways_rows=1000,
    )


SENTIMENTS = ("negative", "neutral", "positive")
PHRASEBANK_FILES = {agree: f"Sentences_{agree}Agree.txt" for agree in ("All", "75", "66", "50")}
FIQA_HUB_ID = "ChanceFocus/flare-fiqasa"
BANKING77_FILES = {"train": ("train.csv",), "test": ("test.csv",)}


def load_phrasebank(
    folder: str | Path | None = None, *, agreement: str = "All", seed: int = 0, bad_rows: str = "error"
) -> ClassTask:
    """Read Financial PhraseBank: is a sentence of the financial press good, neutral or bad news for an investor.

    There are no official splits: they are drawn 80/10/10. `folder` holds the `Sentences_*Agree.txt`; None is
    `$ICECORE_DATA/financial-phrasebank`. `agreement` chooses one of the four nested files, from 2,264 sentences (`All`
    annotators agreed) over `75` and `66` per cent to 4,846 (`50`).
    """
    require_name("agreement", agreement, PHRASEBANK_FILES)
    file = PHRASEBANK_FILES[agreement]
    local = need_local("financial-phrasebank", folder, example=file)
    table = phrasebank_table(local.find(file))
    rows = check_rows({None: table}, class_fields(), source=local.source(file), bad_rows=bad_rows)
    name, licence = "financial-phrasebank", "CC BY-NC-SA 3.0"
    return assemble_task(rows, name=name, licence=licence, class_names=SENTIMENTS, rule=SplitRule(seed))


def load_fiqa(
    folder: str | Path | None = None,
    *,
    neutral: float = 0.1,
    hub_id: str = FIQA_HUB_ID,
    revision: str | None = None,
    text: str = "text",
    seed: int = 0,
    bad_rows: str = "error",
) -> ClassTask:
    """Read FiQA sentiment: is a headline or post negative, neutral or positive about a company, target by target.

    The challenge's files hold scores; they become classes at `neutral` (0.1, as FinGPT cuts them), and rows of one
    sentence stay together in an 80/10/10 split. The hub's copy, which the released code of Look Both Ways reads, holds
    classes and splits; that code takes the column `query` for `text`, whose texts carry a prompt. `folder` holds the
    challenge's JSON files of task 1; None is `$ICECORE_DATA/fiqa-sa` where it exists, else the hub.
    """
    local = find_local("fiqa-sa", folder)
    if local is None:
        help_text = data_hint("fiqa-sa", "*.json (the challenge's files)")
        raw, source = read_hub(hub_id, revision=revision, help_text=help_text)
        raw = name_splits(raw, source)
        # in the order of the code released with Look Both Ways
        tables = {split: raw[split] for split in ("train", "test", "validation") if split in raw}
        rows = check_rows(tables, class_fields(text, "answer"), source=source, bad_rows=bad_rows)
    else:
        paths = sorted(local.path.glob("*.json"))
        if not paths:
            raise TaskError(
                f"{local.name} has no JSON file: give the folder of the FiQA challenge's task 1 as `folder`."
            )
        source = f"{local.source(*paths)}, neutral within {neutral:g}"
        fields = class_fields(group="sentence")
        by_file = [
            check_rows({None: fiqa_table(path, neutral=neutral)}, fields, source=source, bad_rows=bad_rows)
            for path in paths
        ]
        notes = tuple(note for part in by_file for note in part.notes)
        rows = FileRows([row for part in by_file for row in part.rows], source, notes)
    licence = "not stated by its authors"
    return assemble_task(rows, name="fiqa-sa", licence=licence, class_names=SENTIMENTS, rule=SplitRule(seed))


def load_banking77(
    folder: str | Path | None = None, *, validation_fraction: float = 0.1, seed: int = 0, bad_rows: str = "error"
) -> ClassTask:
    """Read Banking77: which of 77 intents a bank customer's question has.

    3,080 test rows as published; the 10,003 training rows are cut into train and validation, `validation_fraction` of
    them. `folder` holds `train.csv` and `test.csv` (columns `text` and `category`); None is `$ICECORE_DATA/banking77`.
    """
    local = need_local("banking77", folder, example="train.csv")
    tables, source = local.read(BANKING77_FILES, read_raw)
    rows = check_rows(tables, class_fields(label="category"), source=source, bad_rows=bad_rows)
    rule = SplitRule(seed, validation_fraction)
    return assemble_task(rows, name="banking77", metrics=("accuracy",), licence="CC BY 4.0", rule=rule)


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
    tokens, of which the decoder sees its window. `hub_id` is LexGLUE on the hub, or a local folder laid out like
    it (`scotus/*.parquet`); the default takes `$ICECORE_DATA/lex_glue` where it exists.
    """
    tables, source = _read_lexglue(hub_id, "scotus", revision)
    rows = check_rows(tables, class_fields(), source=source, bad_rows=bad_rows)
    metrics = ("f1-micro", "f1-macro")
    return assemble_task(rows, name="scotus", metrics=metrics, licence=LEXGLUE_LICENCE, class_names=SCOTUS_AREAS)


def load_unfair_tos(
    hub_id: str = LEXGLUE_HUB_ID, *, target: str = "type", revision: str | None = None, bad_rows: str = "error"
) -> ClassTask:
    """Load UNFAIR-ToS: is a sentence of a contract potentially unfair, and in which of 8 ways.

    The rows are multi-label, most with no label and few with more than one. Look Both Ways gives each one class and
    scores by weighted F1, and does not say how; here a row of several terms takes the first, and the notes count them.
    The official splits are 5,532 / 2,275 / 1,607 as published. `target` is `type` for nine classes (none, or the term),
    `any` for unfair or not, or the name of one term for that term or not; the eight such tasks together are the
    multi-label task, one against the rest. `hub_id` is as for `load_scotus`; a folder holds `unfair_tos/*.parquet`.
    """
    require_name("target", target, ("type", "any", *UNFAIR_TERMS))
    raw, source = _read_lexglue(hub_id, "unfair_tos", revision)
    tables = {split: _one_label(table, target) for split, table in raw.items()}
    rows = check_rows(tables, class_fields(), source=source, bad_rows=bad_rows)
    n_several = sum(len(row.values.get("labels") or ()) > 1 for table in raw.values() for row in table.rows)
    if target == "type" and n_several:
        note = f"{n_several} rows are of several unfair terms; each counts as the first of them"
        rows = rows._replace(notes=(*rows.notes, note))
    names = {"type": (FAIR, *UNFAIR_TERMS), "any": (FAIR, UNFAIR)}.get(target, (f"no {target}", target))
    return assemble_task(
        rows,
        name="unfair-tos",
        licence=LEXGLUE_LICENCE,
        class_names=names,
        look_both_ways_rows=3000,
    )


def _read_lexglue(hub_id: str, config: str, revision: str | None) -> tuple[dict[str, RawTable], str]:
    local = find_local("lex_glue")
    repository = str(local.path) if hub_id == LEXGLUE_HUB_ID and local is not None else hub_id
    tables, source = read_hub(repository, config, revision=revision, help_text=_HELP)
    return name_splits(tables, source), source


def _one_label(table: RawTable, target: str) -> RawTable:
    """Turn the list `labels` into the one class `label`."""
    if "labels" not in table.columns:
        return table  # the missing column is named when the rows are checked
    rows = [_label_row(row, target) for row in table.rows]
    return replace(table, columns=(*table.columns, "label"), rows=rows)


def _label_row(row: RawRow, target: str) -> RawRow:
    labels = row.values.get("labels")
    if not isinstance(labels, Sequence) or not all(
        isinstance(number, int) and 0 <= number < len(UNFAIR_TERMS) for number in labels
    ):
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


SEED = 42
TEST_SHARE = 0.2


def look_both_ways_split(task: ClassTask, *, seed: int = SEED) -> ClassTask:
    """Split a task as the code released with Look Both Ways does, whatever its official splits and groups.

    All rows in source order (the first `look_both_ways_rows` of them), classes of fewer than 3 rows dropped, 80/20
    stratified by scikit-learn; rows stay in the order drawn, on which SMOTE depends. There is no validation split: a
    protocol that chooses on the test rows is optimistic, and so is one that splits a group; both are marked.
    Source: `evaluations/utils.py` of the released code.

    Rejects a task with fewer than two classes, or fewer test rows than classes, after that.
    """
    from datasets import concatenate_datasets
    from sklearn.model_selection import train_test_split

    rows = concatenate_datasets(list(task.splits.values()))
    pool = rows.select(np.argsort(rows["row"], kind="stable")[: task.look_both_ways_rows])
    labels = np.asarray(pool["label"], dtype=np.int64)
    rare = rare_classes(labels.tolist())
    common = np.flatnonzero(~np.isin(labels, list(rare)))
    present = np.unique(labels[common]).tolist()
    if len(present) < 2 or ceil(TEST_SHARE * len(common)) < len(present):
        raise TaskError(
            f"task {task.name!r} has {len(common)} rows in {len(present)} classes of {MIN_CLASS_ROWS} rows or more, "
            "but the 80/20 split of Look Both Ways needs two classes and a test row for each: use another protocol."
        )
    train, test = train_test_split(common, test_size=TEST_SHARE, random_state=seed, stratify=labels[common])
    columns = {
        split: {**pool.select(sample)[:], "label": np.searchsorted(present, labels[sample]).tolist()}
        for split, sample in {"train": train, "test": test}.items()
    }
    n_dropped = len(labels) - len(common)
    dropped = f"; {len(rare)} classes of fewer than {MIN_CLASS_ROWS} rows ({n_dropped} rows) dropped" if rare else ""
    note = f"split as by the code released with Look Both Ways does: {len(labels)} rows, 80/20, seed {seed}{dropped}"
    remarks = tuple(remark for remark in task.notes if not remark.startswith(SPLIT_NOTE))
    class_names = tuple(task.class_names[label] for label in present)
    return replace(task, notes=remarks).replace_splits(ClassTask.hold(columns), note=note, class_names=class_names)
