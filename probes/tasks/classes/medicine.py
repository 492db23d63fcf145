"""Medical tasks of Look Both Ways (Appendix A): PubMedQA, ChemProt, medical question pairs, PubMed RCT."""

from pathlib import Path

from extract.errors import unknown_name
from probes.readers.hub_folder import read_hub
from probes.readers.published import PUBMEDQA_FORMS, pubmedqa_table, rct_table, rename_labels
from probes.readers.raw_rows import FileFormat, RawTable, read_raw
from probes.tasks.classes.assemble import SplitRule, TaskCard, assemble_task
from probes.tasks.classes.examples import ClassColumns
from probes.tasks.classes.local_data import find_folder, has_local
from probes.tasks.classes.readers import gather_examples, official_splits
from probes.tasks.classes.task import ClassTask

PUBMEDQA_FILES = ("ori_pqal.json", "test_ground_truth.json")
PUBMEDQA_CLASSES = ("yes", "no", "maybe")
CHEMPROT_HUB_ID = "AdaptLLM/ChemProt"
CHEMPROT_FILES = {"train": "train.jsonl", "validation": "dev.jsonl", "test": "test.jsonl"}
CHEMPROT_CLASSES = (
    "INHIBITOR", "INDIRECT-DOWNREGULATOR", "SUBSTRATE", "INDIRECT-UPREGULATOR", "ACTIVATOR", "ANTAGONIST", "PRODUCT-OF",
    "AGONIST", "DOWNREGULATOR", "UPREGULATOR", "SUBSTRATE_PRODUCT-OF", "AGONIST-ACTIVATOR", "AGONIST-INHIBITOR",
)  # fmt: skip
MQP_COLUMNS = ("dr_id", "question_1", "question_2", "label")
MQP_CLASSES = ("different", "similar")
MQP_REPOSITORY = "github.com/curai/medical-question-pair-dataset"
RCT_FILES = {"train": "train.txt", "validation": "dev.txt", "test": "test.txt"}
RCT_CLASSES = ("BACKGROUND", "OBJECTIVE", "METHODS", "RESULTS", "CONCLUSIONS")


def load_pubmedqa(
    folder: str | Path | None = None,
    *,
    text_form: str = "look-both-ways",
    validation_share: float = 0.2,
    seed: int = 0,
    bad_rows: str = "error",
) -> ClassTask:
    """Read PubMedQA's labelled set: does the abstract answer the question with yes, no or maybe.

    The long answer, which gives the decision away, is left out, as in Look Both Ways.

    Args:
        folder: Where `ori_pqal.json` and `test_ground_truth.json` are; None is `$ICECORE_DATA/pubmedqa`.
        text_form: `look-both-ways` (question and contexts glued as by the released code) or `plain` (spaces between).
        validation_share: Part of the training half that becomes validation.
        seed: Seed of that draw.
        bad_rows: `error` stops at a record that cannot be used, `drop` leaves it out and says so in the notes.

    Returns:
        500 test records as published; of the other 500, by default 400 to train and 100 to validation.

    Raises:
        TaskError: If a file is missing or broken.
        UnknownNameError: If `text_form` or `bad_rows` is unknown.
    """
    if text_form not in PUBMEDQA_FORMS:
        raise unknown_name("text_form", text_form, PUBMEDQA_FORMS)
    found, called = find_folder("pubmedqa", folder, files=PUBMEDQA_FILES)
    table = pubmedqa_table(found / PUBMEDQA_FILES[0], found / PUBMEDQA_FILES[1], text_form=text_form)
    examples, notes = gather_examples({None: table}, ClassColumns(split="split"), bad_rows=bad_rows)
    card = TaskCard("pubmedqa", f"{', '.join(PUBMEDQA_FILES)} in {called}", licence="MIT", class_names=PUBMEDQA_CLASSES)
    return assemble_task(examples, card, rule=SplitRule(seed, validation_share), notes=notes)


def load_chemprot(
    folder: str | Path | None = None,
    *,
    hub_id: str = CHEMPROT_HUB_ID,
    revision: str | None = None,
    bad_rows: str = "error",
) -> ClassTask:
    """Read ChemProt: which of 13 relations holds between the marked chemical and protein.

    Args:
        folder: Where `train.jsonl`, `dev.jsonl` and `test.jsonl` are, with keys `text` and `label` (the files that
            SciBERT ships as .txt, renamed); None is `$ICECORE_DATA/chemprot` where it exists, else the hub.
        hub_id: A dataset of the hub with the same columns.
        revision: Its branch, tag or commit.
        bad_rows: `error` stops at a row that cannot be used, `drop` leaves it out and says so in the notes.

    Returns:
        The official splits, 4,169 / 2,427 / 3,469 as published.

    Raises:
        TaskError: If a file is missing or broken, or there is none and the hub cannot be had.
        UnknownNameError: If a label is none of the 13.
    """
    tables: dict[str | None, RawTable]
    if folder is not None or has_local("chemprot"):
        found, called = find_folder("chemprot", folder, files=list(CHEMPROT_FILES.values()))
        source = f"{', '.join(CHEMPROT_FILES.values())} in {called}"
        tables = {split: read_raw(found / file, FileFormat()) for split, file in CHEMPROT_FILES.items()}
    else:
        help_text = f"set ICECORE_DATA to a folder that holds chemprot/{CHEMPROT_FILES['train']}, or give `folder`"
        by_name, source = read_hub(hub_id, None, revision=revision, help_text=help_text)
        tables = official_splits(by_name, source)
    examples, notes = gather_examples(tables, ClassColumns(), bad_rows=bad_rows)
    card = TaskCard("chemprot", source, licence="see BioCreative VI, track 5", class_names=CHEMPROT_CLASSES)
    return assemble_task(examples, card, notes=notes)


def load_mqp(folder: str | Path | None = None, *, seed: int = 0, bad_rows: str = "error") -> ClassTask:
    """Read medical question pairs: do two questions ask the same.

    There are no official splits. Each first question stands in a similar and in a different pair, so the split keeps
    the pairs of one first question together.

    Args:
        folder: Where `mqp.csv` (no header: doctor, question, question, label) is; None is `$ICECORE_DATA/mqp`.
        seed: Seed of the split.
        bad_rows: `error` stops at a row that cannot be used, `drop` leaves it out and says so in the notes.

    Returns:
        3,048 pairs as published, drawn 80/10/10 by first question.

    Raises:
        TaskError: If the file is missing or broken.
    """
    found, called = find_folder("mqp", folder, files=["mqp.csv"])
    table = read_raw(found / "mqp.csv", FileFormat(header=False, columns=MQP_COLUMNS))
    columns = ClassColumns("question_1", "label", "question_2", group="question_1")
    named = rename_labels(table, {"0": MQP_CLASSES[0], "1": MQP_CLASSES[1]}, column="label")
    examples, notes = gather_examples({None: named}, columns, bad_rows=bad_rows)
    card = TaskCard("mqp", f"mqp.csv in {called}", ("accuracy",), f"see {MQP_REPOSITORY}", MQP_CLASSES)
    return assemble_task(examples, card, rule=SplitRule(seed), notes=notes)


def load_rct(folder: str | Path | None = None, *, bad_rows: str = "error") -> ClassTask:
    """Read PubMed 20k RCT: which part of a trial's abstract a sentence belongs to.

    Args:
        folder: Where `train.txt`, `dev.txt` and `test.txt` of one release are; None is `$ICECORE_DATA/rct`.
        bad_rows: `error` stops at a line that cannot be used, `drop` leaves it out and says so in the notes.

    Returns:
        The official splits, 180,040 / 30,212 / 30,135 sentences as published, each with its abstract as group.

    Raises:
        TaskError: If a file is missing or broken.
        UnknownNameError: If a label is none of the five.
    """
    found, called = find_folder("rct", folder, files=list(RCT_FILES.values()))
    tables: dict[str | None, RawTable] = {split: rct_table(found / file) for split, file in RCT_FILES.items()}
    examples, notes = gather_examples(tables, ClassColumns(group="abstract"), bad_rows=bad_rows)
    card = TaskCard(
        "rct", f"{', '.join(RCT_FILES.values())} in {called}", licence="PubMed abstracts, see NLM's copyright page",
        class_names=RCT_CLASSES, look_both_ways_rows=1000,
    )  # fmt: skip
    return assemble_task(examples, card, notes=notes)
