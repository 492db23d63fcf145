"""Scoring new rows with finished runs: the predictions of the run again, and what is refused."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from extract.errors import CacheIdentityError, HeadError, InputError, UnknownNameError
from extract.inputs.joined_text import join_words
from extract.run.extraction_spec import ExtractionSpec
from probes.heads.layer_head import load_head
from probes.runs.folder import read_spec
from probes.runs.predict import load_scorer
from probes.runs.run_config import TaskSpec
from tests.extract.tiny_decoders import make_decoder
from tests.probes.finished_run import Finished, edit_scores
from tests.probes.scored_runs import QUICK, by_sentence, predicted, run_class_pairs, run_classes, run_words

pytestmark = pytest.mark.long

LAYERS = ("embedding", "block_01", "block_02", "block_03", "final_norm")


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory, decoder_folder: Path) -> Path:
    return run_words(tmp_path_factory.mktemp("words"), decoder_folder)


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory, decoder_folder: Path) -> Path:
    return run_classes(tmp_path_factory.mktemp("classes"), decoder_folder)


@pytest.fixture(scope="module")
def class_pairs(tmp_path_factory: pytest.TempPathFactory, decoder_folder: Path) -> Path:
    return run_class_pairs(tmp_path_factory.mktemp("class-pairs"), decoder_folder)


@pytest.fixture
def copy(finished: Finished, tmp_path: Path) -> Path:
    """A run folder to spoil."""
    return Path(shutil.copytree(finished.folder, tmp_path / "copy"))


def chosen_layer(folder: Path, head: str) -> str:
    return str(json.loads((folder / "scores.json").read_text(encoding="utf-8"))["heads"][head]["chosen"]["layer"])


@pytest.mark.parametrize("head", ["layer-cosine", "cosine-mlp", "siamese-cosine"])
def test_scores_of_test_pairs_are_those_of_the_run(finished: Finished, head: str) -> None:
    rows = predicted(finished.folder)
    found = load_scorer(finished.folder, head=head).score([(row["sentence1"], row["sentence2"]) for row in rows])
    np.testing.assert_allclose(found, [float(row[head]) for row in rows], atol=1e-4, rtol=0)


def test_a_layer_cosine_reduced_to_its_layer_says_the_same(finished: Finished) -> None:
    head: Any = load_head(finished.folder / "heads" / "layer-cosine" / "seed_0").head
    a, b = torch.randn(2, head.n_layers, 6, head.width, generator=torch.Generator().manual_seed(0))
    for kind, layer in ((0, 1), (1, 3)):
        head.chosen.copy_(torch.tensor([kind, layer]))
        here = slice(layer, layer + 1)
        torch.testing.assert_close(head.only(layer)(a[here], b[here]), head(a, b))


def test_an_identical_pair_gets_the_reported_constant(finished: Finished) -> None:
    for name, result in finished.scores["heads"].items():
        scorer = load_scorer(finished.folder, head=name)
        found = scorer.score([("Ice is cold.", "Ice is cold."), ("Snow.", "Snow.")])
        records = [seed.record.details["calibration"] for seed in scorer.seeds]
        expected = np.mean(
            [
                np.clip(c["slope"] * entry["identical_similarity"] + c["intercept"], c["low"], c["high"])
                for c, entry in zip(records, result["seeds"], strict=True)
            ]
        )
        np.testing.assert_allclose(found, expected, atol=1e-4)


def test_texts_get_the_classes_of_the_run(classes: Path) -> None:
    rows, scorer = predicted(classes), load_scorer(classes)
    texts = [row["text"] for row in rows]
    names = scorer.score(texts)
    assert names == [row["logistic-probe"] for row in rows]
    assert len(set(names)) == 2
    shares = scorer.probabilities(texts)
    assert shares.sum(1).tolist() == pytest.approx([1.0] * len(texts))
    known = scorer.seeds[0].head.arguments()["class_names"]
    assert [known[k] for k in shares.argmax(1).tolist()] == names


@pytest.mark.parametrize("head", ["logistic-probe", "cosine-threshold"])
def test_pairs_of_texts_get_the_classes_of_the_run(class_pairs: Path, head: str) -> None:
    rows, scorer = predicted(class_pairs), load_scorer(class_pairs, head=head)
    names = scorer.score([(row["text1"], row["text2"]) for row in rows])
    assert names == [row[head] for row in rows]
    assert len(set(names)) == 2


def test_a_cosine_threshold_is_kept_with_what_was_chosen(class_pairs: Path) -> None:
    saved = load_head(class_pairs / "heads" / "cosine-threshold")
    result = json.loads((class_pairs / "scores.json").read_text(encoding="utf-8"))["heads"]["cosine-threshold"]
    assert saved.record.layers == (result["chosen"]["layer"],)
    arguments = saved.head.arguments()
    assert {key: arguments[key] for key in ("kind", "threshold")} == {
        key: result["chosen"][key] for key in ("kind", "threshold")
    }
    with pytest.raises(HeadError, match=r"'cosine-threshold' gives no probabilities .*allowed: logistic-probe"):
        load_scorer(class_pairs, head="cosine-threshold").probabilities([("a", "b")])


@pytest.mark.long
@pytest.mark.parametrize("head", ["token-classifier", "token-mix"])
def test_words_get_the_tags_of_the_run(words: Path, head: str) -> None:
    sentences, tags = by_sentence(words, "word"), by_sentence(words, head)
    scorer = load_scorer(words, head=head)
    first = replace(scorer, seeds=scorer.seeds[:1])  # what a run writes down is of its first seed
    found = first.score(sentences)
    assert [[tag or "" for tag in row] for row in found] == tags
    assert any(tag is None for row in found for tag in row)  # a word that was cut off
    assert len({tag for row in found for tag in row}) > 2


def test_seeds_are_averaged(words: Path) -> None:
    sentences, scorer = by_sentence(words, "word"), load_scorer(words, head="token-classifier")
    alone = [replace(scorer, seeds=(seed,)).score(sentences) for seed in scorer.seeds]
    assert alone[0] != alone[1]
    assert replace(scorer, seeds=scorer.seeds[:1] * 3).score(sentences) == alone[0]
    assert scorer.score(sentences) == replace(scorer, seeds=scorer.seeds[::-1]).score(sentences)


def test_a_sentence_is_a_text_a_list_of_words_or_a_text_with_its_words(words: Path) -> None:
    scorer = load_scorer(words, head="token-classifier")
    [sentence] = by_sentence(words, "word")[:1]
    joined = join_words(sentence, [True] * len(sentence))
    one, two, three = scorer.score([sentence, " ".join(sentence), joined])
    assert one == two == three
    assert len(one) == len(sentence)
    with pytest.raises(InputError, match=r"text 1 \(''\) has no words"):
        scorer.score([sentence, []])


def test_a_run_on_every_token_gives_a_word_the_tag_of_its_first_token(
    tmp_path_factory: pytest.TempPathFactory, decoder_folder: Path
) -> None:
    folder = run_words(
        tmp_path_factory.mktemp("every-token"),
        decoder_folder,
        protocol="look-both-ways",
        extraction=ExtractionSpec(),
        seeds=(0,),
        heads={"token-classifier": {**QUICK, "layers": "block_02"}},
    )
    task: Any = TaskSpec("words-sample", {"tags": "pos"}, pairs=24).load()
    sentences = task.joined("test")
    pieces, tags = by_sentence(folder, "word"), by_sentence(folder, "token-classifier")
    expected = []
    for text, cut, told in zip(sentences, pieces, tags, strict=True):
        starts = np.cumsum([0, *map(len, cut[:-1])])  # in characters, spaces left out
        begins = np.cumsum([0, *(end - start for start, end in text.spans[:-1])])
        expected.append([told[int(np.searchsorted(starts, begin))] for begin in begins])
    assert sum(map(len, expected)) < sum(map(len, tags))
    found = load_scorer(folder).score(sentences)
    assert [[tag or "" for tag in row] for row in found] == expected
    assert len({tag for row in found for tag in row}) > 2


def test_only_the_layers_that_a_head_reads_are_computed(finished: Finished, words: Path, class_pairs: Path) -> None:
    layer = chosen_layer(finished.folder, "layer-cosine")
    assert load_scorer(finished.folder, head="layer-cosine").spec.layers == (layer,)
    assert load_scorer(finished.folder, head="siamese-cosine").spec.layers == LAYERS[1:4]
    pooling, _, layer = chosen_layer(words, "token-classifier").partition("/")
    spec = load_scorer(words, head="token-classifier").spec
    assert (spec.layers, spec.words.poolings) == ((layer,), (pooling,))
    spec = load_scorer(words, head="token-mix").spec
    assert (spec.layers, spec.words.poolings) == (LAYERS, ("last",))
    pooling, _, layer = chosen_layer(class_pairs, "cosine-threshold").partition("/")
    spec = load_scorer(class_pairs, head="cosine-threshold").spec
    assert (spec.layers, spec.poolings) == ((layer,), (pooling,))


def test_the_best_head_on_validation_is_taken(words: Path, finished: Finished) -> None:
    for folder in (words, finished.folder):
        heads = json.loads((folder / "scores.json").read_text(encoding="utf-8"))["heads"]
        assert load_scorer(folder).name == max(heads, key=lambda name: heads[name]["selection_score"])


def test_the_extraction_is_read_back_whole(words: Path) -> None:
    values = yaml.safe_load((words / "config.yaml").read_text(encoding="utf-8"))["extraction"]
    spec = read_spec(values)
    assert (spec.words.poolings, spec.template.max_tokens) == (("mean", "last"), 40)


def test_another_decoder_is_refused_by_its_digest(finished: Finished) -> None:
    with pytest.raises(CacheIdentityError, match=r"the heads of '.*tiny' were fitted on .*decoder\.weight_digest is"):
        load_scorer(finished.folder, decoder=make_decoder("llama", seed=5, adds_bos=True, max_position_embeddings=256))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("plan: causal", "plan: backward", "plan is 'backward', the run has 'causal'"),
        ("instruction: ''", "instruction: 'Say '", "template.instruction is 'Say ', the run has ''"),
    ],
)
def test_a_config_that_was_edited_is_refused(copy: Path, old: str, new: str, message: str) -> None:
    text = (copy / "config.yaml").read_text(encoding="utf-8")
    assert old in text
    (copy / "config.yaml").write_text(text.replace(old, new), encoding="utf-8")
    edit_scores(copy, lambda _: None)  # by somebody who knows the seal
    with pytest.raises(CacheIdentityError, match=message):
        load_scorer(copy)


def test_a_run_of_an_earlier_version_says_to_run_again(copy: Path) -> None:
    scores = json.loads((copy / "scores.json").read_text(encoding="utf-8"))
    (copy / "scores.json").write_text(json.dumps({**scores, "schema": 2}), encoding="utf-8")
    with pytest.raises(HeadError, match="schema 2 of a run, this version reads schema 3; run its config again"):
        load_scorer(copy)


@pytest.mark.parametrize("text", ['{"task": {}}', "{}", "[]", "{", "null", '{"schema": 3, "heads": {}}'])
def test_a_folder_without_a_finished_run_is_refused(copy: Path, text: str) -> None:
    (copy / "scores.json").write_text(text, encoding="utf-8")
    with pytest.raises(HeadError, match=r"holds no finished run \(\w+: .*\); allowed: a folder made by `icecore run`"):
        load_scorer(copy)


def test_what_a_scorer_cannot_do(finished: Finished) -> None:
    scorer = load_scorer(str(finished.folder), head="layer-cosine")
    with pytest.raises(InputError, match="there are no pairs to score"):
        scorer.score([])
    with pytest.raises(InputError, match="text 1 is ' '"):
        scorer.score([("a", " ")])
    with pytest.raises(UnknownNameError, match=r"unknown head of this run 'cosine-mpl': did you mean 'cosine-mlp'\?"):
        load_scorer(finished.folder, head="cosine-mpl")
    with pytest.raises(HeadError, match="'layer-cosine' gives no probabilities of classes"):
        scorer.probabilities([("a", "b")])
