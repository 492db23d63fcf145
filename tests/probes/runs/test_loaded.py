"""A finished run in Python: the predictions of the run again, its results as data, and what is refused."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from extract.errors import HeadError, InputError, UnknownNameError
from extract.store.cache import LatentCache
from probes.heads import layer_head
from probes.runs.new_rows import NewRow
from probes.runs.predict import LoadedRun, load_run
from probes.runs.results import COLUMNS, results
from tests.probes.finished_run import Finished
from tests.probes.scored_runs import by_sentence, predicted, run_classes, run_words


@pytest.fixture(scope="module")
def loaded(finished: Finished) -> LoadedRun:
    return load_run(finished.folder)


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory, decoder_folder: Path) -> LoadedRun:
    return load_run(run_words(tmp_path_factory.mktemp("words"), decoder_folder, seeds=(0,)))


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory, decoder_folder: Path) -> LoadedRun:
    return load_run(run_classes(tmp_path_factory.mktemp("classes"), decoder_folder))


def test_a_run_says_what_it_is(loaded: LoadedRun) -> None:
    assert (loaded.kind, loaded.plan, loaded.heads) == (
        "pairs",
        "causal",
        ("cosine-mlp", "layer-cosine", "siamese-cosine"),
    )
    assert loaded.best in loaded.heads
    assert repr(loaded).startswith(f"<run 'tiny': pairs, plan causal, 3 heads, best {loaded.best} with pearson 0.")


def test_pairs_get_the_scores_of_the_run(loaded: LoadedRun) -> None:
    rows = predicted(loaded.folder)
    pairs = [(row["sentence1"], row["sentence2"]) for row in rows]
    for head in loaded.heads:
        found = loaded.score_pairs(pairs, head=head)
        np.testing.assert_allclose(found, [float(row[head]) for row in rows], atol=1e-4, rtol=0)
    assert all(type(score) is float for score in loaded.predict(pairs[:2]))


def test_columns_of_a_dataset_are_rows(classes: LoadedRun) -> None:
    from datasets import Dataset

    texts = ["Ice melts in spring.", "The court adjourned."]
    column: Any = Dataset.from_dict({"text": texts})["text"]
    assert classes.predict(column) == classes.predict(texts)
    head = next(name for name in classes.heads if name == "logistic-probe")
    assert classes.predict_proba(column, head=head).equals(classes.predict_proba(texts, head=head))


def test_a_stream_holds_few_rows_at_a_time(loaded: LoadedRun) -> None:
    pairs = [("Ice melts.", "Snow falls."), ("A cat sleeps.", "A dog barks."), ("One.", "Two.")]
    read = []

    def rows() -> object:
        for pair in pairs:
            read.append(pair)
            yield pair

    stream = loaded.stream(rows(), at_a_time=2)  # type: ignore[arg-type]
    first = next(stream)
    assert len(read) == 2, "the third row is read when it is needed"
    np.testing.assert_allclose([first, *stream], loaded.predict(pairs), atol=1e-5)


def test_the_decoder_is_loaded_once(loaded: LoadedRun) -> None:
    assert loaded.scorer("cosine-mlp").decoder is loaded.scorer("layer-cosine").decoder


@pytest.mark.long
def test_words_get_the_tags_of_the_run(words: LoadedRun) -> None:
    tokens, tags = by_sentence(words.folder, "word"), by_sentence(words.folder, words.best)
    for own, given in zip(words.tag(tokens), tags, strict=True):
        assert [tag for tag, other in zip(own, given, strict=True) if other] == [tag for tag in given if tag]


def test_classes_have_probabilities(classes: LoadedRun) -> None:
    texts = [row["text"] for row in predicted(classes.folder)]
    shares = classes.predict_proba(texts)
    np.testing.assert_allclose(shares.sum(axis=1), 1.0, atol=1e-6)
    assert list(shares.idxmax(axis=1)) == classes.predict(texts)


def test_classes_and_their_probabilities_read_the_texts_once(
    classes: LoadedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    embed, n_read = layer_head.embed_once, list[int]()

    def count(*given: Any) -> Any:
        n_read.append(1)
        return embed(*given)

    monkeypatch.setattr(layer_head, "embed_once", count)
    texts = [row["text"] for row in predicted(classes.folder)][:3]
    answers = classes.scorer().answer([NewRow(text) for text in texts], with_probabilities=True)
    assert len(n_read) == 1
    assert [answer.prediction for answer in answers] == classes.predict(texts)
    assert [dict(answer.probabilities) for answer in answers] == classes.predict_proba(texts).to_dict("records")


@pytest.mark.parametrize("method", ["score_pairs", "tag"])
def test_a_run_on_something_else_is_refused(classes: LoadedRun, method: str) -> None:
    with pytest.raises(InputError, match=r"is on classes, not on (pairs|words); use predict"):
        getattr(classes, method)(["a"])


def test_what_is_no_row_is_refused(loaded: LoadedRun) -> None:
    with pytest.raises(InputError, match="rows is a str, 'a cat'; give a list of pairs of two texts"):
        loaded.predict("a cat")
    with pytest.raises(InputError, match="there are no pairs to score"):
        loaded.predict([])
    with pytest.raises(UnknownNameError, match="unknown head of this run 'siamese'"):
        loaded.predict([("a", "b")], head="siamese")
    with pytest.raises(HeadError, match="gives no probabilities"):
        loaded.predict_proba([("a", "b")])


@pytest.mark.parametrize(
    "row", ["hi", ("a", "b", "c"), ("a",), ("a", 1), {"a": "b", "c": "d"}, {"a", "b"}, None, [["a"], ["b"]]]
)
def test_what_is_no_pair_is_refused_by_its_place(loaded: LoadedRun, row: Any) -> None:
    """The characters of a text, the keys of an object and the first two of three were once scored as a pair."""
    allowed = "allowed for a run on pairs: pairs of two texts"
    rows = [("a", "b"), row]
    with pytest.raises(InputError, match=rf"row 1 is .*, a {type(row).__name__}; {allowed}"):
        loaded.predict(rows)
    with pytest.raises(InputError, match=rf"row 1 is .*; {allowed}"):
        list(loaded.stream(iter(rows), at_a_time=1))
    with pytest.raises(InputError, match=rf"row 1 is .*; {allowed}"):
        loaded.scorer().score(rows)


@pytest.mark.parametrize("row", [("a", "b"), ["a"], 1, None, {"text": "a"}])
def test_what_is_no_text_is_refused_by_its_place(classes: LoadedRun, row: Any) -> None:
    for predict in (classes.predict, classes.predict_proba, classes.scorer().probabilities):
        with pytest.raises(InputError, match=r"row 1 is .*; allowed for a run on classes: texts"):
            predict(["a", row])


def test_names_of_columns_are_no_rows(classes: LoadedRun) -> None:
    import pandas as pd

    for rows in (pd.DataFrame({"text": ["a"]}), {"text": "a"}):
        with pytest.raises(InputError, match="give a list of texts"):
            classes.predict(rows)  # type: ignore[arg-type]


def test_results_are_those_of_the_run(finished: Finished, loaded: LoadedRun) -> None:
    found = loaded.results()
    assert tuple(found.columns) == COLUMNS
    assert set(found["run"]) == {"tiny"}
    for name, head in finished.scores["heads"].items():
        own = found[found["head"] == name]
        score = own.query("record == 'score' and split == 'test' and metric == 'pearson'")
        for column, key in (("value", "mean"), ("low", "low")):
            expected = np.array(head["summary"]["test"]["pearson"][key], dtype=float)  # null is NaN
            np.testing.assert_array_equal(score[column].iloc[0], expected)
        for curve in head["curves"]:
            here = own[own["record"] == "curve"]
            for key, value in (("curve", curve["name"]), ("split", curve["split"]), ("metric", curve["metric"])):
                here = here[here[key] == value]
            assert list(here["layer"]) == head["layers"]
            np.testing.assert_array_equal(here["value"], np.array(curve["values"], dtype=float))
    seeds = found.query("record == 'seed' and head == 'siamese-cosine' and split == 'test' and metric == 'pearson'")
    assert list(seeds["seed"]) == [0, 3]


def test_several_runs_are_one_table(loaded: LoadedRun, classes: LoadedRun) -> None:
    both = results([loaded.folder, classes.folder])
    assert len(both) == len(loaded.results()) + len(classes.results())
    assert set(both["kind"]) == {"pairs", "classes"}


def test_the_table_is_that_of_the_summary(loaded: LoadedRun) -> None:
    summary = (loaded.folder / "summary.md").read_text(encoding="utf-8")
    table = loaded.table()
    assert "| " + " | ".join(table.columns) + " |" in summary
    for row in table.itertuples(index=False):
        assert "| " + " | ".join(row) + " |" in summary


def test_a_folder_without_results_is_refused(tmp_path: Path) -> None:
    with pytest.raises(HeadError, match=r"holds no finished run \(.*scores\.json.*\); allowed: a folder made by"):
        results(tmp_path)


def test_changed_results_are_refused(loaded: LoadedRun, tmp_path: Path) -> None:
    text = (loaded.folder / "scores.json").read_text(encoding="utf-8")
    (tmp_path / "scores.json").write_text(text.replace('"n_resamples": 100', '"n_resamples": 101'), encoding="utf-8")
    with pytest.raises(HeadError, match=r"scores\.json was changed after the run had ended"):
        results(tmp_path)


def test_a_run_with_few_layers_ignores_what_else_a_cache_holds(finished: Finished) -> None:
    """Heads were once fitted on every layer that lay in a reused cache."""
    cache = LatentCache(finished.cache)
    few = cache.shown_as(replace(cache.identity, layers=("block_02",), poolings=("last",)))
    assert few.gather([0], "last").shape[0] == 1
    assert few.manifest.id != cache.manifest.id
