"""`Probe(decoder).fit(texts, labels)`: a run of whatever holds texts and labels, with scikit-learn's manners."""

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from extract.decoders.decoder import load_decoder
from extract.errors import ConfigError, HeadError, IcecoreError, InputError, TaskError, UnknownNameError, UsageError
from extract.store.cache import LatentCache
from probes.data.task_table import load_task
from probes.layers.study import StudyOptions
from probes.runs.layer_studies import LayerStudy, compare_layers
from probes.runs.predict import LoadedRun, load_run
from probes.runs.probe import Gold, Probe

TASK: Any = load_task("class-sample")
TEXTS = [text for rows in TASK.splits.values() for text in rows["text"]][:120]
LABELS = [TASK.class_names[k] for rows in TASK.splits.values() for k in rows["label"]][:120]
NUMBERS = [len(text) / 10 for text in TEXTS]
Make = Callable[..., Probe]


@pytest.fixture(scope="module", autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A cache folder of its own."""
    folder = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ICECORE_HOME", str(folder))
        yield folder


@pytest.fixture(scope="module")
def make(decoder_folder: Path) -> Make:
    """Make a probe that is quick to fit."""
    return lambda **options: Probe(decoder_folder, **{"bootstrap": 100, "layers": [0, -1], **options})


@pytest.fixture(scope="module")
def fitted(make: Make) -> Probe:
    return make().fit(TEXTS, LABELS)


def test_a_probe_is_a_run_in_the_users_cache_folder(fitted: Probe, home: Path) -> None:
    assert isinstance(fitted.run, LoadedRun)
    assert fitted.run.folder.parent == home / "runs"
    assert fitted.run.record.heads["logistic-probe"].layers == ("embedding", "final_norm")
    assert {len(rows) for rows in (fitted.predict(TEXTS), TEXTS)} == {120}
    assert fitted.score(TEXTS, LABELS) == np.mean(fitted.predict(TEXTS) == np.array(LABELS))
    shares = fitted.predict_proba(TEXTS[:5])
    assert shares.shape == (5, len(fitted.classes_))
    assert fitted.classes_[shares.argmax(1)].tolist() == fitted.predict(TEXTS[:5]).tolist()


def test_it_predicts_as_the_run_of_its_folder(fitted: Probe) -> None:
    again = load_run(fitted.run.folder)
    assert type(again) is type(fitted.run)
    assert again.predict(TEXTS[:4]) == fitted.predict(TEXTS[:4]).tolist()
    assert again.table().equals(fitted.run.table())
    assert repr(again) == repr(fitted.run)


def test_the_same_rows_are_the_same_run(fitted: Probe, make: Make, home: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in (home / "caches").iterdir()}
    assert make().fit(np.array(TEXTS), np.array(LABELS)).run.folder == fitted.run.folder
    assert {path: path.stat().st_mtime_ns for path in (home / "caches").iterdir()} == before


@pytest.mark.parametrize(
    "shape",
    [list, tuple, np.array, pd.Series, lambda texts: pd.DataFrame({"any name": texts}), lambda t: np.array(t)[:, None]],
    ids=["list", "tuple", "array", "series", "frame", "column"],
)
def test_rows_come_in_whatever_holds_them(shape: Callable[[Any], Any]) -> None:
    assert Gold.of(shape(TEXTS), LABELS) == Gold(TEXTS, LABELS)
    assert Gold.of(shape(TEXTS), pd.Series(LABELS)).targets == LABELS


@pytest.mark.parametrize(
    ("labels", "name", "kind"),
    [
        (LABELS, "", "classes"),
        ([k % 3 for k in range(60)], "", "classes"),
        ([k % 3 for k in range(60)], "stars", "numbers"),
        ([k % 2 for k in range(60)], "stars", "classes"),
        ([k % 3 + 0.5 for k in range(60)], "", "numbers"),
        (np.arange(60) % 3 == 0, "", "classes"),
        ([["O"], ["B-X"]] * 30, "", "words"),
    ],
)
def test_the_kind_is_that_of_a_bare_file(labels: Any, name: str, kind: str) -> None:
    targets = pd.Series(list(labels), name=name or None)
    assert Gold.of(TEXTS[: len(labels)], targets).guess_kind() == kind


def test_scores_of_pairs_are_numbers_and_their_words_classes() -> None:
    pairs = [*pairwise(TEXTS)][:60]
    assert Gold.of(pairs, [k % 5 for k in range(60)]).guess_kind() == "pairs"
    assert Gold.of(np.array(pairs), ["same", "other"] * 30).guess_kind() == "classes"


@pytest.mark.parametrize(
    ("rows", "labels", "message"),
    [
        (TEXTS, ["a"] * 120, "the labels are all 'a'; give at least two"),
        (TEXTS, range(120), "120 different whole numbers of y may be .*kind='classes' or kind='numbers'"),
        (TEXTS, LABELS[:5], "there are 120 texts and 5 labels"),
        (TEXTS, None, "y is missing"),
        ([], [], "there are no texts"),
        ("text", LABELS, "texts are a str, 'text'"),
        ({"a": 1}, LABELS, "texts are a dict"),
        (pd.DataFrame({"a": TEXTS, "b": TEXTS, "c": TEXTS}), LABELS, "texts have the columns a, b, c; choose one"),
        ([*TEXTS[:118], [TEXTS[0]] * 2, TEXTS[1]], LABELS[:120], "rows have 1 to 2 texts"),
        (TEXTS[:3], LABELS[:3], "two classes of 3 rows or more and has 0"),
        (TEXTS[:3], [1.5, 2, 3], "has 3 rows, 3 of them different, too few to draw splits"),
    ],
)
def test_rows_that_make_no_task_end_in_a_sentence(make: Make, rows: Any, labels: Any, message: str) -> None:
    with pytest.raises((InputError, TaskError), match=message):
        make().fit(rows, labels)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"kind": "class"}, UnknownNameError, "unknown kind 'class': did you mean 'classes'"),
        ({"kind": "numbers"}, TaskError, "kind is 'numbers', but y holds 'money', which is no number"),
        ({"kind": "words"}, ConfigError, "kind is 'words', but y holds 'money'"),
        ({"plam": "causal"}, UsageError, "unknown key 'plam'. Did you mean 'plan'"),
        ({"plan": "backwards"}, UnknownNameError, "unknown mask plan 'backwards'"),
        ({"options": {}}, UsageError, "'options' is one of several sections; write .*task__options"),
        ({"template": 3, "instruction": "x"}, UsageError, "template is a int, so instruction cannot be set"),
    ],
)
def test_options_that_say_nothing_end_in_a_sentence(
    make: Make, options: dict[str, Any], error: type[IcecoreError], message: str
) -> None:
    with pytest.raises(error, match=message):
        make(**options).fit(TEXTS, LABELS)


def test_it_is_cloned_and_set_as_other_estimators_are(make: Make) -> None:
    probe = make(plan="causal")
    twin = clone(probe)
    assert (twin.get_params(), twin is probe) == (probe.get_params(), False)
    assert twin.set_params(plan="backward", kind="numbers") is twin
    assert (twin.get_params()["plan"], probe.get_params()["plan"]) == ("backward", "causal")
    assert is_classifier(probe)
    assert is_regressor(twin)
    with pytest.raises(NotFittedError, match="call fit"):
        probe.predict(TEXTS)
    assert repr(probe).splitlines()[1] == " not fitted"
    assert "Not fitted" in probe._repr_mimebundle_()["text/html"]


def test_options_reach_their_sections(make: Make) -> None:
    probe = make(
        plan="backward", template="prompt-eol", seed=3, metric="f1-macro", decoder__dtype="float32", poolings="last"
    )
    config = probe.fit(TEXTS, LABELS).run._run.config
    assert (config.extraction.plan, config.extraction.template.name) == ("backward", "prompt-eol")
    assert (config.extraction.poolings, config.decoder.dtype, config.seeds) == (("last",), "float32", (3,))
    assert (probe.metric, config.task.options["seed"]) == ("f1-macro", 3)


def test_missing_texts_and_labels_are_left_out_with_a_warning(make: Make) -> None:
    texts = [None, "", np.nan, *TEXTS]
    labels = [*LABELS[:3], *LABELS[:119], None]
    with pytest.warns(UserWarning, match=r"4 of 123 rows are left out: .*missing text: 2, empty text: 1"):
        probe = make().fit(texts, labels)
    assert sum(probe.run.record.header.task["n_rows"].values()) == 119
    with pytest.raises(InputError, match="row 1 is 'None'"):
        probe.predict(["a text", None])


def test_rows_that_are_held_out_already_are_the_splits(make: Make) -> None:
    probe = make().fit(
        TEXTS[:80], LABELS[:80], validation=(TEXTS[80:100], LABELS[80:100]), test=(TEXTS[100:], LABELS[100:])
    )
    assert probe.run.record.header.task["n_rows"] == {"train": 80, "validation": 20, "test": 20}
    scores = probe.run.record.heads["logistic-probe"].summary["test"]["accuracy"]
    assert probe.score(TEXTS[100:], LABELS[100:]) == pytest.approx(scores.mean)


@pytest.mark.parametrize(
    ("labels", "expected"),
    [([k % 3 for k in range(120)], int), ([k % 2 == 0 for k in range(120)], bool), (np.arange(120) % 2 + 1.0, float)],
)
def test_classes_come_back_as_they_were_given(make: Make, labels: Any, expected: type) -> None:
    probe = make(kind="classes").fit(TEXTS, labels)
    assert all(type(value) is expected for value in probe.predict(TEXTS[:3]).tolist())
    assert set(probe.classes_.tolist()) == set(np.asarray(labels).tolist())


def test_numbers_are_scored_by_their_correlation(make: Make) -> None:
    probe = make().fit(TEXTS, NUMBERS)
    assert probe.score(TEXTS, NUMBERS) == pytest.approx(np.corrcoef(probe.predict(TEXTS), NUMBERS)[0, 1])
    assert is_regressor(probe)
    with pytest.raises(HeadError):
        probe.predict_proba(TEXTS[:2])


@pytest.mark.long
def test_pairs_and_words(make: Make) -> None:
    pairs = pd.DataFrame({"one": TEXTS, "other": TEXTS[::-1]})
    probe = make(heads="layer-cosine").fit(pairs, NUMBERS)
    assert (probe.run.kind, probe.predict(pairs[:3]).shape) == ("pairs", (3,))
    sample: Any = load_task("words-sample")
    words = [list(row) for rows in sample.splits.values() for row in rows["words"]]
    tags = [list(row) for rows in sample.splits.values() for row in rows["tags"]]
    tagger = make(poolings="last").fit(words, tags)
    assert tagger.run._run.config.extraction.words.poolings == ("last",)
    assert [len(row) for row in tagger.predict(words[:4])] == [len(row) for row in words[:4]]
    assert 0 <= tagger.score(words[:30], tags[:30]) <= 1


@pytest.mark.long
def test_it_goes_into_pipelines_and_cross_validation(make: Make, home: Path) -> None:
    lower = FunctionTransformer(lambda rows: [row.lower() for row in rows])
    pipeline = make_pipeline(lower, make()).fit(TEXTS, LABELS)
    assert (
        pipeline.predict(TEXTS[:3]).tolist()
        == make().fit([text.lower() for text in TEXTS], LABELS).predict([text.lower() for text in TEXTS[:3]]).tolist()
    )
    make().fit(TEXTS, LABELS)
    n_caches = len(list((home / "caches").iterdir()))
    scores = cross_val_score(make(), TEXTS, LABELS, cv=2, error_score="raise")
    assert ((scores >= 0) & (scores <= 1)).all()
    assert len(list((home / "caches").iterdir())) == n_caches  # the cache of all rows holds those of every fold


def test_layers_are_the_study_of_the_run(fitted: Probe) -> None:
    study = fitted.layers()
    expected = compare_layers(fitted.run.folder, options=StudyOptions(views=("alone", "baselines")))
    assert study.frame.equals(expected)
    assert set(study.findings.best_set) == set(study.frame.query("view == 'alone' and in_set").layer)
    assert set(study.frame.view) == {"alone", "baseline"}
    assert len(repr(study).splitlines()) == 2
    assert f"Use {study.findings.recommended}" in study.answer
    html = study._repr_html_()
    assert html.count("data:image/png;base64,") == 1
    assert html.count("<tr>") > 2
    assert LayerStudy.of(fitted.run.folder).findings == study.findings
    with pytest.raises(UnknownNameError, match="unknown head of this run 'ridge-probe'"):
        fitted.layers("ridge-probe")


def test_a_decoder_is_named_in_any_form(fitted: Probe, decoder_folder: Path) -> None:
    decoder = load_decoder(decoder_folder)
    for source in (str(decoder_folder), {"name": str(decoder_folder)}, decoder):
        probe = Probe(source, bootstrap=100, layers=[0, -1]).fit(TEXTS, LABELS)
        assert probe.predict(TEXTS[:5]).tolist() == fitted.predict(TEXTS[:5]).tolist()
    assert isinstance(fitted.run.cache(), LatentCache)


def test_html_escapes_what_a_user_wrote(fitted: Probe) -> None:
    probe = clone(fitted).set_params(instruction="<script>alert(1)</script>")
    assert "<script>" not in probe._repr_html_()
    assert fitted._repr_html_().count("<img") <= 1
    assert "statistically" in fitted.run.answer or "On test it has" in fitted.run.answer


def test_rows_are_written_as_they_are(make: Make, home: Path) -> None:
    texts = [f'quote " and line\nbreak \ud800 {k}' for k in range(60)]
    with pytest.raises(IcecoreError):
        make().fit(texts, [k % 2 for k in range(60)])
    [path] = [path for path in (home / "runs").glob("*.jsonl") if "line\\nbreak" in path.read_text(encoding="utf-8")]
    assert json.loads(path.read_text(encoding="utf-8").splitlines()[0])["text"] == texts[0]
