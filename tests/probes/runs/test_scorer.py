"""Scoring new pairs with a finished run."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from extract.errors import CacheIdentityError, HeadError, InputError, UnknownNameError
from probes.runs.scorer import load_scorer
from probes.tasks import load_task
from tests.extract.tiny_decoders import make_decoder
from tests.probes.finished_run import Finished


def test_an_identical_pair_gets_the_reported_constant(finished: Finished) -> None:
    for name, result in finished.scores["heads"].items():
        scorer = load_scorer(finished.folder, head=name)
        found = scorer.score([("Ice is cold.", "Ice is cold."), ("Snow.", "Snow.")])
        records = [seed.record["calibration"] for seed in scorer.seeds]
        expected = np.mean(
            [
                np.clip(c["slope"] * entry["identical_similarity"] + c["intercept"], c["low"], c["high"])
                for c, entry in zip(records, result["seeds"], strict=True)
            ]
        )
        np.testing.assert_allclose(found, expected, atol=1e-4)


def test_scores_of_test_pairs_are_those_of_the_run(finished: Finished) -> None:
    task = load_task("pair-files", files=str(finished.base / "pairs.tsv"))
    part = task.splits["test"]
    pairs = list(zip(part["sentence1"], part["sentence2"], strict=True))
    scorer = load_scorer(finished.folder, head="cosine-mlp")
    one_seed = type(scorer)(scorer.name, scorer.seeds[:1], scorer.decoder, scorer.spec)
    found = np.corrcoef(one_seed.score(pairs), part["score"])[0, 1]
    expected = finished.scores["heads"]["cosine-mlp"]["seeds"][0]["scores"]["test"]["pearson"]
    assert found == pytest.approx(expected, abs=0.02)  # clipping to the range may change it a little


def test_another_decoder_is_refused_by_its_digest(finished: Finished) -> None:
    with pytest.raises(
        CacheIdentityError, match=r"of the decoder for '.*tiny' holds something else: .*weight_digest is"
    ):
        load_scorer(finished.folder, decoder=make_decoder("llama", seed=5, adds_bos=True, max_position_embeddings=256))


def test_what_a_scorer_cannot_do(finished: Finished, tmp_path: Path) -> None:
    scorer = load_scorer(str(finished.folder), head="layer-cosine")
    with pytest.raises(InputError, match="there are no pairs to score"):
        scorer.score([])
    with pytest.raises(InputError, match="text 1 is ' '"):
        scorer.score([("a", " ")])
    with pytest.raises(UnknownNameError, match=r"unknown head of this run 'cosine-mpl': did you mean 'cosine-mlp'\?"):
        load_scorer(finished.folder, head="cosine-mpl")
    for text in ('{"task": {}}', "{}", "[]", "{", "null", '{"heads": {}}'):
        (tmp_path / "scores.json").write_text(text, encoding="utf-8")
        shutil.copy(finished.folder / "config.yaml", tmp_path)
        with pytest.raises(HeadError, match="holds no finished run; allowed: a folder made by `icecore run`"):
            load_scorer(tmp_path)


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (
            {"name": "ner", "tags": ["O"]},
            r"a run on words \(task 'ner'\).*probes\.load_head\('.*/heads/NAME/",
        ),
        ({"name": "topic", "class_names": ["a"]}, r"a run on classes \(task 'topic'\).*probes\.load_head\('"),
    ],
)
def test_a_run_on_something_else_says_what_reads_its_heads(
    finished: Finished, tmp_path: Path, task: dict[str, Any], message: str
) -> None:
    (tmp_path / "scores.json").write_text(json.dumps({"task": task, "heads": {}}), encoding="utf-8")
    shutil.copy(finished.folder / "config.yaml", tmp_path)
    with pytest.raises(HeadError, match=message):
        load_scorer(tmp_path)
