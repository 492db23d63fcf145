"""A fit that was killed goes on from its last state, and ends as if nothing had happened."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from extract.errors import DiskFullError
from extract.store.cache import LatentCache
from probes.data.pair_task import PairTask
from probes.fitting import saved_fits as unfinished
from probes.fitting.fit import FitResult, LayerFit, fit_head, fit_layers
from probes.fitting.fit_options import EpochOptions, FitOptions
from probes.fitting.saved_fits import FitRecord, Unfinished, fit_or_load
from probes.heads.word_fits import TokenFit, TokenOptions, fit_token_head
from probes.latents.text_latents import TextLatents
from probes.latents.word_latents import Streaming, WordLatents
from probes.networks.layerwise_networks import LayerAutoencoder, TokenClassifier
from probes.networks.pair_networks import SiameseCosine
from tests.probes.heads.words.planted_words import WIDTH as WORD_WIDTH
from tests.probes.heads.words.planted_words import make_task as make_words
from tests.probes.heads.words.planted_words import plant
from tests.probes.planted_latents import LAYERS, WIDTH, pair_data

FIT_ID = "f" * 64


class KilledError(Exception):
    """Stands for a kill: nothing after it runs."""


@pytest.fixture(autouse=True)
def _every_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write a state after every epoch."""
    monkeypatch.setattr(unfinished, "PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(unfinished, "LARGEST_SHARE", 1e9)


def stopping(after: int, told: list[int]) -> Callable[[int, dict[str, float]], None]:
    """Make a report that notes the epochs, and kills the fit in the one behind an epoch (before its state is kept)."""

    def report(epoch: int, _: dict[str, float]) -> None:
        told.append(epoch)
        if epoch == after + 1:
            raise KilledError

    return report


Fit = Callable[..., tuple[Any, Any]]


@pytest.fixture
def fit_siamese(cache: LatentCache, task: PairTask) -> Fit:
    def fit(state: Unfinished | None = None, *, report: Any = lambda *_: None, **how: Any) -> tuple[Any, FitResult]:
        torch.manual_seed(0)
        head = SiameseCosine(len(LAYERS), WIDTH, bottleneck=8, hidden=8, dropout=0.5, network_dropout=0.5)
        options = EpochOptions(**{"batch_size": 40, "max_epochs": 7, "patience": 4, **how})
        return head, fit_head(head, pair_data(cache, task), options=options, report=report, unfinished=state)

    return fit


@pytest.fixture
def fit_autoencoders(cache: LatentCache) -> Fit:
    def fit(state: Unfinished | None = None, *, report: Any = lambda *_: None) -> tuple[Any, LayerFit]:
        torch.manual_seed(0)
        module = LayerAutoencoder(len(LAYERS), WIDTH, bottleneck="4, upper half 6", dropout=0.3, learning_rate=3e-2)
        data = TextLatents(cache, pooling="last", batch_size=30)
        options = FitOptions(batch_size=30, max_epochs=9, patience=2)
        return module, fit_layers(module, data, options=options, report=report, unfinished=state)

    return fit


@pytest.fixture
def fit_words() -> Fit:
    task = make_words()
    planted = plant(task, noise=1.5)

    def fit(state: Unfinished | None = None, *, report: Any = lambda *_: None, **how: Any) -> tuple[Any, TokenFit]:
        options = TokenOptions(
            **{"max_epochs": 5, "patience": 2, "epoch_steps": 20, "batch_size": 8, "dropout": 0.4, **how}
        )
        data = WordLatents(planted, task, streaming=Streaming(chunk_words=40, buffer_mb=1))
        head = TokenClassifier(len(data.layers), WORD_WIDTH, len(data.classes), **options.head_arguments())
        return head, fit_token_head(head, data, options, report=report, unfinished=state)

    return fit


def require_same(one: tuple[Any, Any], other: tuple[Any, Any]) -> None:
    """Require the same weights, bit for bit, and the same history."""
    for (name, found), expected in zip(one[0].state_dict().items(), other[0].state_dict().values(), strict=True):
        assert torch.equal(found, expected), name
    assert one[1].history == other[1].history


def kill_and_go_on(fit: Fit, folder: Path, *, after: int, **how: Any) -> tuple[tuple[Any, Any], list[int]]:
    """Kill a fit in the epoch behind one, fit again, and give that with the epochs that it went through."""
    with pytest.raises(KilledError):
        fit(Unfinished(folder, FIT_ID), report=stopping(after, []), **how)
    told: list[int] = []
    return fit(Unfinished(folder, FIT_ID), report=lambda epoch, _: told.append(epoch), **how), told


@pytest.mark.parametrize("after", [1, 3, 6])
def test_a_head_goes_on_as_if_it_had_not_been_killed(fit_siamese: Fit, tmp_path: Path, after: int) -> None:
    found, told = kill_and_go_on(fit_siamese, tmp_path, after=after)
    plain = fit_siamese()
    require_same(found, plain)
    assert found[1].best_epoch == plain[1].best_epoch
    assert told == list(range(after + 1, len(plain[1].history) + 1))


@pytest.mark.parametrize("after", [2, 4, 5])
def test_looks_at_every_third_epoch_go_on(fit_siamese: Fit, tmp_path: Path, after: int) -> None:
    how = {"every": 3, "patience": 9, "max_epochs": 9}
    found, _ = kill_and_go_on(fit_siamese, tmp_path, after=after, **how)
    plain = fit_siamese(**how)
    require_same(found, plain)
    assert found[1].best_epoch == plain[1].best_epoch
    assert found[1].best_epoch % 3 == 0


def test_autoencoders_go_on(fit_autoencoders: Fit, tmp_path: Path) -> None:
    found, told = kill_and_go_on(fit_autoencoders, tmp_path, after=4)
    plain = fit_autoencoders()
    require_same(found, plain)
    assert found[1].best_epochs == plain[1].best_epochs
    assert len(set(plain[1].best_epochs)) > 1, "layers that end at different epochs are the point"
    assert told[0] == 5


@pytest.mark.parametrize("how", [{}, {"keep": "last", "schedule": "linear"}], ids=["best", "last"])
@pytest.mark.parametrize("after", [1, 3])
def test_heads_of_words_go_on(fit_words: Fit, tmp_path: Path, after: int, how: dict[str, Any]) -> None:
    found, told = kill_and_go_on(fit_words, tmp_path, after=after, **how)
    plain = fit_words(**how)
    require_same(found, plain)
    assert (found[1].best_epochs, found[1].scores) == (plain[1].best_epochs, plain[1].scores)
    assert told[0] == after + 1


def test_words_by_the_step_begin_anew(fit_words: Fit, tmp_path: Path) -> None:
    found, told = kill_and_go_on(fit_words, tmp_path, after=1, steps=140, keep="last")
    require_same(found, fit_words(steps=140, keep="last"))
    assert told[0] == 1


def test_the_time_of_both_processes_counts(fit_siamese: Fit, tmp_path: Path) -> None:
    with pytest.raises(KilledError):
        fit_siamese(Unfinished(tmp_path, FIT_ID), report=stopping(3, []))
    state = Unfinished(tmp_path, FIT_ID)
    _, result = fit_siamese(state)
    assert 0 < state.seconds_before < result.seconds


def test_another_fit_begins_anew(fit_siamese: Fit, tmp_path: Path) -> None:
    with pytest.raises(KilledError):
        fit_siamese(Unfinished(tmp_path, FIT_ID), report=stopping(3, []))
    told: list[int] = []
    fit_siamese(Unfinished(tmp_path, "e" * 64), report=lambda epoch, _: told.append(epoch))
    assert told[0] == 1


@pytest.mark.parametrize("damage", ["flipped", "cut", "empty", "text", "folder"])
def test_a_damaged_state_is_not_used(fit_siamese: Fit, tmp_path: Path, damage: str) -> None:
    with pytest.raises(KilledError):
        fit_siamese(Unfinished(tmp_path, FIT_ID), report=stopping(3, []))
    [path] = tmp_path.iterdir()
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    changed = {"flipped": bytes(content), "cut": bytes(content[:-100]), "empty": b"", "text": b"no state"}
    path.unlink()
    if damage == "folder":
        path.mkdir()
    else:
        path.write_bytes(changed[damage])
    told: list[int] = []
    state = Unfinished(tmp_path, FIT_ID)
    assert state.find() is None
    if damage == "folder":
        return  # nothing can be written in its place
    found = fit_siamese(state, report=lambda epoch, _: told.append(epoch))
    assert told[0] == 1
    require_same(found, fit_siamese())


def test_a_state_runs_nothing(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "trapped",))

    state = Unfinished(tmp_path, FIT_ID)
    state.files.save_checkpoint({"x": Trap()}, state.path)
    assert state.find() is None
    assert not (tmp_path / "trapped").exists()


def test_a_full_disk_costs_the_state_and_not_the_fit(
    fit_siamese: Fit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise DiskFullError("no space for 'x'; free some.")

    monkeypatch.setattr(unfinished, "replacing_file", full)
    with pytest.warns(RuntimeWarning, match="this fit cannot be resumed if it is killed: no space for 'x'"):
        found = fit_siamese(Unfinished(tmp_path, FIT_ID))
    require_same(found, fit_siamese())


def test_short_fits_write_no_state(fit_siamese: Fit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unfinished, "PAUSE_SECONDS", 60.0)
    with pytest.raises(KilledError):
        fit_siamese(Unfinished(tmp_path, FIT_ID), report=stopping(3, []))
    assert list(tmp_path.iterdir()) == []


def test_the_state_is_gone_when_the_head_is_there(fit_siamese: Fit, cache: LatentCache, tmp_path: Path) -> None:
    with pytest.raises(KilledError):
        fit_siamese(Unfinished(tmp_path, FIT_ID), report=stopping(3, []))

    def fit() -> tuple[SiameseCosine, FitRecord]:
        return fit_siamese(Unfinished(tmp_path, FIT_ID))[0], FitRecord("siamese-cosine")

    fit_or_load(tmp_path, FIT_ID, fit, lambda record: SiameseCosine(**record.arguments), cache=cache)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["head.json", "model.safetensors"]


def test_the_state_of_another_fit_under_this_name_is_not_used(fit_siamese: Fit, tmp_path: Path) -> None:
    with pytest.raises(KilledError):
        fit_siamese(Unfinished(tmp_path, "e" * 64), report=stopping(2, []))
    other, state = Unfinished(tmp_path, "e" * 64), Unfinished(tmp_path, FIT_ID)
    assert other.find() == other.path
    other.path.rename(state.path)
    assert state.find() is None
    told: list[int] = []
    fit_siamese(state, report=lambda epoch, _: told.append(epoch))
    assert told[0] == min(told)
    assert len(told) == 7
