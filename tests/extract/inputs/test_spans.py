import json
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from extract.decoders.decoder import Decoder
from extract.errors import ConfigError, ConfigWarning, InputError
from extract.inputs.batches import collate
from extract.inputs.joined_text import CONTEXT, LONGEST, SHORTEST, GivenSpans, RandomSpans, read_spans
from extract.inputs.template import InputTemplate
from extract.inputs.tokens import TextEncoder
from extract.run.extraction import extract_latents
from extract.run.extraction_spec import ExtractionSpec
from extract.store.cache import LatentCache

TEXT = "The mouse ran under the table."


def words(text: str) -> NDArray[np.int64]:
    starts = [0, *(i + 1 for i, c in enumerate(text) if c == " ")]
    return np.array([starts, [*(s - 1 for s in starts[1:]), len(text)]]).T


def test_given_spans_cover_the_tokens_they_touch() -> None:
    numbers = GivenSpans({TEXT: [(4, 9), (20, 29)]}).assign(TEXT, words(TEXT))
    assert numbers.tolist() == [CONTEXT, 0, CONTEXT, CONTEXT, 1, 1]
    assert GivenSpans({TEXT: []}).assign("another text", words("another text")).tolist() == [CONTEXT, CONTEXT]


@pytest.mark.parametrize("spans", [[(0, 0)], [(5, 3)], [(0, 99)], [(-1, 3)], [(0, 5), (4, 9)]])
def test_a_span_that_cannot_be_used_is_refused_with_its_text(spans: list[tuple[int, int]]) -> None:
    with pytest.raises(InputError, match=r"'The mouse ran under the table\.' cannot be used"):
        GivenSpans({TEXT: spans})


def test_random_spans_keep_their_bounds_and_depend_on_seed_and_text_alone() -> None:
    offsets = np.array([(i, i + 1) for i in range(300)])
    seen = set()
    for number in range(60):
        text = f"text {number}"
        drawn = RandomSpans(7).assign(text, offsets)
        assert (drawn == RandomSpans(7).assign(text, offsets)).all()
        found = [int(n) for n in np.unique(drawn) if n != CONTEXT]
        seen.add(len(found))
        for span in found:
            columns = np.flatnonzero(drawn == span)
            assert SHORTEST <= len(columns) <= LONGEST
            assert (np.diff(columns) == 1).all()
        assert (drawn == CONTEXT).any()
    assert seen == {1, 2}
    assert any(
        (RandomSpans(8).assign(f"text {n}", offsets) != RandomSpans(7).assign(f"text {n}", offsets)).any()
        for n in range(5)
    )
    assert RandomSpans(7).assign("abc", offsets[:3]).tolist() == [CONTEXT] * 3


def test_a_file_of_spans_is_read_and_its_content_decides_the_identity(tmp_path: Path) -> None:
    one, other = tmp_path / "one.jsonl", tmp_path / "other.jsonl"
    for path in (one, other):
        path.write_text(json.dumps({"text": TEXT, "spans": [[4, 9]]}) + "\n\n", encoding="utf-8")
    first, second = read_spans(str(one)), read_spans(str(other))
    assert first is not None
    assert second is not None
    assert first.identity == second.identity
    assert InputTemplate(spans=str(one)).to_dict()["spans"] == first.identity


def test_a_line_separator_inside_a_text_ends_no_line(tmp_path: Path) -> None:
    path, text = tmp_path / "spans.jsonl", f"One\u2028line. {TEXT}"
    path.write_text(json.dumps({"text": text, "spans": [[0, 3]]}, ensure_ascii=False) + "\n", encoding="utf-8")
    source = read_spans(str(path))
    assert source is not None
    assert source.identity == GivenSpans({text: [(0, 3)]}).identity


def test_spans_that_cannot_be_read_are_refused_with_file_and_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="spans are 'randm:3'"):
        read_spans("randm:3")
    broken = tmp_path / "broken.jsonl"
    broken.write_text(json.dumps({"text": TEXT, "spans": []}) + '\n{"text": "x"}\n', encoding="utf-8")
    with pytest.raises(ConfigError, match=r"line 2 of '.*broken.jsonl' cannot be read \(KeyError"):
        read_spans(str(broken))
    assert read_spans("") is None


@pytest.mark.parametrize(
    "line",
    [
        b'{"text": "a\\ud800", "spans": [[0, 1]]}',
        '{"text": "\xe9", "spans": [[0, 1]]}'.encode("latin-1"),
        b'{"text": "abc", "spans": [[0, Infinity]]}',
        b'{"text": 3, "spans": [[0, 1]]}',
        b'{"text": "abc", "spans": ' + b"[" * 99999,
    ],
)
def test_a_line_of_spans_that_is_no_text_is_named(line: bytes, tmp_path: Path) -> None:
    path = tmp_path / "spans.jsonl"
    path.write_bytes(line + b"\n")
    with pytest.raises(ConfigError, match=r"line 1 of '.*spans.jsonl' cannot be read"):
        read_spans(str(path))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"text": "abcdef", "spans": [[0.9, 2.7]]}', r"line 2 of '.*' cannot be read \(ValueError: 0\.9 is no whole"),
        ('{"text": "ab", "spans": [[1, 2]]}', "line 2 of '.*' cannot be read .*an earlier line has other spans of"),
    ],
)
def test_spans_that_would_be_cut_or_lost_are_refused(line: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "spans.jsonl"
    file.write_text(f'{{"text": "ab", "spans": [[0, 1]]}}\n{line}\n', encoding="utf-8")
    with pytest.raises(ConfigError, match=message):
        read_spans(str(file))
    file.write_text('{"text": "ab", "spans": [[0, 1]]}\n' * 2, encoding="utf-8")
    read = read_spans(str(file))
    assert read is not None
    assert read.identity == GivenSpans({"ab": [(0, 1)]}).identity


def test_spans_stay_with_their_tokens_under_specials_instruction_and_padding(decoder: Decoder, tmp_path: Path) -> None:
    path = tmp_path / "spans.jsonl"
    path.write_text(json.dumps({"text": TEXT, "spans": [[4, 9]]}) + "\n", encoding="utf-8")
    template = InputTemplate(instruction="Say: ", spans=str(path))
    encoded = TextEncoder(decoder.tokenizer, template, window=64)([TEXT, "Ice!"])
    assert encoded[0].spans is not None
    inside = encoded[0].ids[encoded[0].spans == 0]
    assert str(decoder.tokenizer.decode(inside.tolist())).strip() == "mouse"
    batch = collate(encoded, [0, 1], side="left")
    assert batch.spans is not None
    assert (batch.spans[0] == torch.from_numpy(encoded[0].spans)).all()
    assert (batch.spans[1] == CONTEXT).all()


def test_a_hybrid_plan_without_spans_is_refused() -> None:
    with pytest.raises(InputError, match="the plan 'hybrid:2' needs spans and none are given"):
        ExtractionSpec(plan="hybrid:2")


def test_hybrid_latents_differ_by_their_spans_alone(decoder: Decoder, texts: list[str], tmp_path: Path) -> None:
    def top(plan: str, spans: str) -> LatentCache:
        spec = ExtractionSpec(plan=plan, template=InputTemplate(spans=spans))
        return extract_latents(decoder, texts, spec=spec, folder=tmp_path)

    caches = [top("hybrid", "random:0"), top("hybrid", "random:1"), top("bidirectional", "")]
    assert len({cache.manifest.id for cache in caches}) == 3
    latents = [cache.gather(cache.rows_of(texts), "mean")[-1] for cache in caches]
    assert float((latents[0] - latents[1]).abs().max()) > 1e-4
    assert float((latents[0] - latents[2]).abs().max()) > 1e-4


def test_a_file_of_spans_that_names_no_text_is_warned_of(decoder: Decoder, tmp_path: Path) -> None:
    path = tmp_path / "spans.jsonl"
    path.write_text(json.dumps({"text": TEXT, "spans": [[4, 9]]}) + "\n", encoding="utf-8")
    spec = ExtractionSpec(plan="hybrid", template=InputTemplate(spans=str(path)))
    extract_latents(decoder, [TEXT, "Ice!"], spec=spec, folder=tmp_path)  # warnings are errors
    with pytest.warns(ConfigWarning, match="names none of the 2 texts"):
        extract_latents(decoder, [f"{TEXT} ", "Ice!"], spec=spec, folder=tmp_path)
