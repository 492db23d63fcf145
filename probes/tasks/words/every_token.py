"""Every token labelled and scored by itself, as the script released with Look Both Ways does for CoNLL-2003."""

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

from extract.inputs.template import InputTemplate
from extract.inputs.text_encoder import cut_at_tokens
from probes.metrics.tags import split_tag
from probes.tasks.words.task import WordTask, build_word_splits

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

OUTSIDE = "O"


def label_every_token(task: WordTask, tokenizer: "PreTrainedTokenizerBase", *, template: InputTemplate) -> WordTask:
    """Make a word of every token: the same texts, cut into the pieces that the tokens of a decoder stand for.

    The first piece of a word has its tag, the later ones the I of its type, or its own tag where tags are scored by
    accuracy. Digests and label sets change.

    Source:
        The code released with Look Both Ways and No Sink (ACL 2025).
    """
    splits, n_words, n_pieces = {}, 0, 0
    for split, rows in task.splits.items():
        columns: dict[str, list[object]] = {name: [] for name in ("words", "tags", "document", "space_after")}
        cuts = cut_at_tokens(task.joined(split), tokenizer, template=template)
        for row, starts in zip(rows, cuts, strict=True):
            words, tags, spaces = _cut(row["words"], row["tags"], row["space_after"], starts=starts, task=task)
            for name, value in zip(columns, (words, tags, row["document"], spaces), strict=True):
                columns[name].append(value)
            n_words, n_pieces = n_words + len(row["words"]), n_pieces + len(words)
        splits[split] = columns
    note = (
        f"every token is a word here ({n_words:,} words, {n_pieces:,} tokens): the first token of a word has its tag, "
        f"the later ones {'the I of its type' if task.metric == 'span-f1' else 'the same tag'}; scores are of tokens"
    )
    return replace(task, splits=build_word_splits(splits), notes=(note, *task.notes))


def _cut(
    words: list[str], tags: list[str], space_after: list[bool], *, starts: list[list[int]], task: WordTask
) -> tuple[list[str], list[str], list[bool]]:
    pieces: list[str] = []
    labels: list[str] = []
    spaces: list[bool] = []
    for word, tag, has_space, begins in zip(words, tags, space_after, starts, strict=True):
        found = [word[first:last] for first, last in pairwise([*begins, len(word)])]
        later = f"I-{split_tag(tag)[1]}" if task.metric == "span-f1" and tag != OUTSIDE else tag
        pieces += found
        labels += [tag, *[later] * (len(found) - 1)]
        spaces += [*[False] * (len(found) - 1), has_space]
    return pieces, labels, spaces
