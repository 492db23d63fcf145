"""Financial tasks: PhraseBank and FiQA sentiment (Look Both Ways, Appendix A), and Banking77 intents (MTEB)."""

from pathlib import Path

from extract.errors import TaskError, unknown_name
from probes.readers.checked_rows import check_rows
from probes.readers.hub import read_hub
from probes.readers.local import LocalFolder, data_hint, find_local, need_local
from probes.readers.published import fiqa_table, phrasebank_table
from probes.readers.raw_rows import read_raw
from probes.readers.splits import name_splits
from probes.tasks.classes.assemble import assemble_task, class_fields
from probes.tasks.classes.task import ClassTask
from probes.tasks.splitting import SplitRule

SENTIMENTS = ("negative", "neutral", "positive")
PHRASEBANK_FILES = {agree: f"Sentences_{agree}Agree.txt" for agree in ("All", "75", "66", "50")}
FIQA_HUB_ID = "ChanceFocus/flare-fiqasa"
BANKING77_FILES = {"train": ("train.csv",), "test": ("test.csv",)}


def load_phrasebank(
    folder: str | Path | None = None, *, agreement: str = "All", seed: int = 0, bad_rows: str = "error"
) -> ClassTask:
    """Read Financial PhraseBank: is a sentence of the financial press good, neutral or bad news for an investor.

    Args:
        folder: Where the `Sentences_*Agree.txt` are; None is `$ICECORE_DATA/financial-phrasebank`.
        agreement: Which of the four nested files, from 2,264 sentences (`All` annotators agreed) over `75` and `66` per
            cent to 4,846 (`50`).
        seed: Seed of the 80/10/10 split; there is no official one.
        bad_rows: `error` stops at a line that cannot be used, `drop` leaves it out and says so in the notes.
    """
    if agreement not in PHRASEBANK_FILES:
        raise unknown_name("agreement", agreement, PHRASEBANK_FILES)
    file = PHRASEBANK_FILES[agreement]
    local = need_local("financial-phrasebank", folder, example=file)
    rows, notes = check_rows({None: phrasebank_table(local.find(file))}, class_fields(), bad_rows=bad_rows)
    return assemble_task(
        rows,
        name="financial-phrasebank",
        source=local.source(file),
        licence="CC BY-NC-SA 3.0",
        class_names=SENTIMENTS,
        rule=SplitRule(seed),
        notes=notes,
    )


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
    classes and splits; that code takes the column `query`, whose texts carry a prompt.

    Args:
        folder: Where the challenge's JSON files of task 1 are; None is `$ICECORE_DATA/fiqa-sa` where it exists, else
            the hub.
        neutral: Scores from `-neutral` up to, not including, `neutral` are neutral; files only.
        hub_id: A dataset of the hub with a text column and the sentiment in `answer`.
        revision: Its branch, tag or commit.
        text: Text column of the hub's copy: `text`, or `query` as in the released code.
        seed: Seed of the split; files only.
        bad_rows: `error` stops at a row that cannot be used, `drop` leaves it out and says so in the notes.
    """
    local = find_local("fiqa-sa", folder)
    if local is None:
        help_text = data_hint("fiqa-sa", "*.json (the challenge's files)")
        found, source = read_hub(hub_id, revision=revision, help_text=help_text)
        known = name_splits(found, source)
        # the order in which the released code of Look Both Ways puts them together
        tables = {split: known[split] for split in ("train", "test", "validation") if split in known}
        rows, notes = check_rows(tables, class_fields(text, "answer"), bad_rows=bad_rows)
    else:
        paths = _fiqa_files(local)
        rows, notes = [], ()
        for path in paths:
            table = fiqa_table(path, neutral=neutral)
            found_here, dropped = check_rows({None: table}, class_fields(group="sentence"), bad_rows=bad_rows)
            rows, notes = [*rows, *found_here], (*notes, *dropped)
        source = f"{local.source(*paths)}, neutral within {neutral:g}"
    return assemble_task(
        rows,
        name="fiqa-sa",
        source=source,
        licence="not stated by its authors",
        class_names=SENTIMENTS,
        rule=SplitRule(seed),
        notes=notes,
    )


def _fiqa_files(local: LocalFolder) -> list[Path]:
    paths = sorted(local.path.glob("*.json"))
    if not paths:
        raise TaskError(
            f"{local.called} holds no JSON file: give the folder of the FiQA challenge's task 1 as `folder`."
        )
    return paths


def load_banking77(
    folder: str | Path | None = None, *, validation_fraction: float = 0.1, seed: int = 0, bad_rows: str = "error"
) -> ClassTask:
    """Read Banking77: which of 77 intents a bank customer's question has.

    3,080 test rows as published; the 10,003 training rows are cut into train and validation, `validation_fraction` of
    them. `folder` holds `train.csv` and `test.csv` (columns `text` and `category`); None is `$ICECORE_DATA/banking77`.
    """
    local = need_local("banking77", folder, example="train.csv")
    tables, source = local.read(BANKING77_FILES, read_raw)
    rows, notes = check_rows(tables, class_fields(label="category"), bad_rows=bad_rows)
    return assemble_task(
        rows,
        name="banking77",
        source=source,
        metrics=("accuracy",),
        licence="CC BY 4.0",
        rule=SplitRule(seed, validation_fraction),
        notes=notes,
    )
