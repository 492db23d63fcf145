"""Every token labelled: the texts stay, and each word's tag goes to its tokens."""

from typing import Any

import pytest

from extract.inputs.template import InputTemplate
from probes.data.word_files import load_words_sample
from probes.data.word_task import label_every_token
from tests.extract.word_tokenizers import WORD_TOKENIZERS, word_tokenizer


@pytest.mark.long
@pytest.mark.parametrize("name", WORD_TOKENIZERS)
@pytest.mark.parametrize("tags", ["ner", "pos"])
def test_tags_of_words_go_to_their_tokens(name: str, tags: str) -> None:
    task = load_words_sample(tags).subset(8)
    tokens = label_every_token(task, word_tokenizer(name), template=InputTemplate())
    assert tokens.metric == task.metric
    assert "scores are of tokens" in tokens.notes[0]
    for split in task.splits:
        assert [text.text for text in tokens.joined(split)] == [text.text for text in task.joined(split)]
        for words, pieces in zip(task.splits[split], tokens.splits[split], strict=True):
            assert spread(words, pieces) == pieces["tags"]


def spread(row: Any, pieces: Any) -> list[str]:
    """Tag each piece as the rule says, found by the characters alone."""
    found: list[str] = []
    rest = iter(pieces["words"])
    for word, tag in zip(row["words"], row["tags"], strict=True):
        seen = ""
        while seen != word:
            later = tag.replace("B-", "I-", 1) if tag.startswith("B-") else tag
            found.append(later if seen else tag)
            seen += next(rest)
    return found


def test_the_task_says_how_many_words_became_how_many_tokens() -> None:
    task = load_words_sample("pos").subset(3)
    tokens = label_every_token(task, word_tokenizer(next(iter(WORD_TOKENIZERS))), template=InputTemplate())
    counts = [sum(map(len, row["words"])) for row in task.splits.values()]
    assert f"{sum(counts):,} words" in tokens.notes[0]
    assert task.digest() != tokens.digest()
