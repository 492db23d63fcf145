"""Predictions of a run on words, as column files that conlleval and this project's own reader can read."""

from collections.abc import Mapping
from pathlib import Path

from probes.heads.words.evaluation import WordResult
from probes.metrics.spans import NO_PREDICTION
from probes.tasks.words.task import WordTask

WITHOUT = {"span-f1": ".", "accuracy": "-"}
"""Written for a word without a prediction. To conlleval a full stop is outside of every span, and not the tag O."""


def write_word_predictions(folder: Path, task: WordTask, results: Mapping[str, WordResult]) -> None:
    """Write one file a split: word, gold tag, and the tag that each head predicts with the first seed, parted by tabs.

    A blank line ends a sentence, a line `-DOCSTART-` begins a document. The conlleval script, told to part columns by
    tabs, scores the last column against the one before it, so with one head against gold.

    Args:
        folder: Where `SPLIT.conll` go; made when absent.
        task: The task.
        results: Head to what came of it.
    """
    folder.mkdir(exist_ok=True)
    for split, rows in task.splits.items():
        columns = [_tags(result, split, WITHOUT[task.metric]) for result in results.values()]
        before, at = "", 0
        with (folder / f"{split}.conll").open("w", encoding="utf-8", newline="\n") as file:
            for words, tags, document in zip(rows["words"], rows["tags"], rows["document"], strict=True):
                if document != before:
                    file.write("\t".join(["-DOCSTART-", "O", *("O" for _ in columns)]) + "\n\n")
                    before = document
                for word, tag in zip(words, tags, strict=True):
                    file.write("\t".join([word, tag, *(column[at] for column in columns)]) + "\n")
                    at += 1
                file.write("\n")


def _tags(result: WordResult, split: str, without: str) -> list[str]:
    names = result.names[split]
    return [without if k == NO_PREDICTION else names[k] for k in result.predictions[split].tolist()]
