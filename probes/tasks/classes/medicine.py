"""Medical tasks of Look Both Ways (Appendix A): PubMedQA, ChemProt, medical question pairs, PubMed RCT."""

from pathlib import Path

from extract.errors import unknown_name
from probes.readers.checked_rows import check_rows
from probes.readers.hub import read_hub
from probes.readers.local import data_hint, find_local, need_local
from probes.readers.published import PUBMEDQA_FORMS, pubmedqa_table, rct_table, rename_labels
from probes.readers.raw_rows import FileFormat, read_raw
from probes.readers.splits import name_splits
from probes.tasks.classes.assemble import assemble_task, class_fields
from probes.tasks.classes.task import ClassTask
from probes.tasks.splitting import SplitRule

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
    the other 500, by default 400 to train and 100 to validation.

    Args:
        folder: Where `ori_pqal.json` and `test_ground_truth.json` are; None is `$ICECORE_DATA/pubmedqa`.
        text_form: `look-both-ways` (question and contexts glued as by the released code) or `plain` (spaces between).
        validation_fraction: Part of the training half that becomes validation.
        seed: Seed of that draw.
        bad_rows: `error` stops at a record that cannot be used, `drop` leaves it out and says so in the notes.
    """
    if text_form not in PUBMEDQA_FORMS:
        raise unknown_name("text_form", text_form, PUBMEDQA_FORMS)
    local = need_local("pubmedqa", folder, example=PUBMEDQA_FILES[0])
    records, test_ids = (local.find(file) for file in PUBMEDQA_FILES)
    table = pubmedqa_table(records, test_ids, text_form=text_form)
    rows, notes = check_rows({None: table}, class_fields(), split_column="split", bad_rows=bad_rows)
    return assemble_task(
        rows,
        name="pubmedqa",
        source=local.source(*PUBMEDQA_FILES),
        licence="MIT",
        class_names=PUBMEDQA_CLASSES,
        rule=SplitRule(seed, validation_fraction),
        notes=notes,
    )


def load_chemprot(
    folder: str | Path | None = None,
    *,
    hub_id: str = CHEMPROT_HUB_ID,
    revision: str | None = None,
    bad_rows: str = "error",
) -> ClassTask:
    """Read ChemProt: which of 13 relations holds between the marked chemical and protein.

    The official splits, 4,169 / 2,427 / 3,469 as published.

    Args:
        folder: Where `train.jsonl`, `dev.jsonl` and `test.jsonl` are, with keys `text` and `label` (the files that
            SciBERT ships as .txt, renamed); None is `$ICECORE_DATA/chemprot` where it exists, else the hub.
        hub_id: A dataset of the hub with the same columns.
        revision: Its branch, tag or commit.
        bad_rows: `error` stops at a row that cannot be used, `drop` leaves it out and says so in the notes.
    """
    local = find_local("chemprot", folder)
    if local is None:
        found, source = read_hub(hub_id, revision=revision, help_text=data_hint("chemprot", "train.jsonl"))
        tables = name_splits(found, source)
    else:
        tables, source = local.read(CHEMPROT_FILES, read_raw)
    rows, notes = check_rows(tables, class_fields(), bad_rows=bad_rows)
    return assemble_task(
        rows,
        name="chemprot",
        source=source,
        licence="see BioCreative VI, track 5",
        class_names=CHEMPROT_CLASSES,
        notes=notes,
    )


def load_mqp(folder: str | Path | None = None, *, seed: int = 0, bad_rows: str = "error") -> ClassTask:
    """Read medical question pairs: do two questions ask the same.

    There are no official splits: the 3,048 published pairs are drawn 80/10/10. Each first question is in a similar and
    in a different pair, so the split keeps the pairs of one first question together. `folder` holds `mqp.csv` (no
    header: doctor, question, question, label); None is `$ICECORE_DATA/mqp`.
    """
    local = need_local("mqp", folder, example="mqp.csv")
    table = read_raw(local.find("mqp.csv"), FileFormat(header=False, columns=MQP_COLUMNS))
    named = rename_labels(table, {"0": MQP_CLASSES[0], "1": MQP_CLASSES[1]}, column="label")
    fields = class_fields("question_1", text2="question_2", group="question_1")
    rows, notes = check_rows({None: named}, fields, bad_rows=bad_rows)
    return assemble_task(
        rows,
        name="mqp",
        source=local.source("mqp.csv"),
        metrics=("accuracy",),
        licence=f"see {MQP_REPOSITORY}",
        class_names=MQP_CLASSES,
        rule=SplitRule(seed),
        notes=notes,
    )


def load_rct(folder: str | Path | None = None, *, bad_rows: str = "error") -> ClassTask:
    """Read PubMed 20k RCT: which part of a trial's abstract a sentence belongs to.

    The official splits, 180,040 / 30,212 / 30,135 sentences as published, each with its abstract as group. `folder`
    holds `train.txt`, `dev.txt` and `test.txt` of one release; None is `$ICECORE_DATA/rct`.
    """
    tables, source = need_local("rct", folder, example="train.txt").read(RCT_FILES, rct_table)
    rows, notes = check_rows(tables, class_fields(group="abstract"), bad_rows=bad_rows)
    return assemble_task(
        rows,
        name="rct",
        source=source,
        licence="PubMed abstracts, see NLM's copyright page",
        class_names=RCT_CLASSES,
        look_both_ways_rows=1000,
        notes=notes,
    )
