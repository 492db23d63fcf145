"""Rows count once the weights that computed them have been compared with their digest afterwards."""

from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

from extract.decoders.decoder import Decoder
from extract.errors import CertificateError
from extract.masks.mask_plan import parse_plan
from extract.run.extraction import Session, extract_latents
from extract.run.extraction_spec import ExtractionSpec
from extract.run.shards import extract_shards, sweep_latents
from extract.store.cache import LatentCache
from tests.extract.recorder import Recorder
from tests.extract.tiny_decoders import assert_same_arrays, make_decoder, read_arrays

SPEC = ExtractionSpec(poolings=("last", "mean"), batch_tokens=64)
PLANS = [parse_plan(plan) for plan in ("causal", "backward:1", "bidirectional")]


@pytest.fixture(scope="module", autouse=True)
def fast(unchecked_shapes: None) -> None:
    """Save the time of checking shapes."""


class KilledError(BaseException):
    """Stands for a kill, after which a process does nothing more."""


@pytest.fixture
def victim() -> Decoder:
    return make_decoder(adds_bos=True)


def changing(victim: Decoder, *, after: int, then: Callable[[int], object] = lambda _: None) -> Recorder:
    """Change a weight once so many batches are written, and then act."""
    weight = next(victim.blocks[0].parameters())

    def act(n_batches: int) -> None:
        if n_batches == after:
            weight.data.mul_(1.5)
        then(n_batches)

    return Recorder(on_advance=act)


def stop_with(error: BaseException, *, after: int) -> Callable[[int], None]:
    def act(n_batches: int) -> None:
        if n_batches == after:
            raise error

    return act


def never_due(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("extract.run.extraction.SHARE", 0.0)


def n_counted(folder: Path) -> list[int]:
    return [LatentCache(path, allow_partial=True).n_done for path in sorted(folder.glob("*.h5"))]


def test_weights_that_change_in_a_sweep_void_the_rows_of_all_plans(
    decoder: Decoder, victim: Decoder, texts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    never_due(monkeypatch)
    clean = sweep_latents(decoder, texts, PLANS, spec=SPEC, folder=tmp_path / "clean")
    with pytest.raises(CertificateError, match="the weights changed"):
        sweep_latents(victim, texts, PLANS, spec=SPEC, folder=tmp_path / "hurt", progress=changing(victim, after=4))
    assert n_counted(tmp_path / "hurt") == [0, 0, 0]
    again = sweep_latents(decoder, texts, PLANS, spec=SPEC, folder=tmp_path / "hurt")
    for one, other in zip(clean, again, strict=True):
        assert_same_arrays(one.path, other.path)
        assert other.certificate["frozen"]["is_bit_identical"]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), KilledError()], ids=["interrupted", "killed"])
@pytest.mark.parametrize("is_sweep", [False, True], ids=["one plan", "sweep"])
def test_rows_written_after_weights_changed_are_computed_again(
    decoder: Decoder,
    victim: Decoder,
    texts: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
    is_sweep: bool,
) -> None:
    never_due(monkeypatch)
    plans = PLANS if is_sweep else PLANS[:1]
    clean = sweep_latents(decoder, texts, plans, spec=SPEC, folder=tmp_path / "clean")
    progress = changing(victim, after=2, then=stop_with(error, after=6))
    with pytest.raises(type(error)), monkeypatch.context() as patch:
        if isinstance(error, KilledError):
            patch.setattr(Session, "close_if_frozen", lambda _: None)
        if is_sweep:
            sweep_latents(victim, texts, plans, spec=SPEC, folder=tmp_path / "hurt", progress=progress)
        else:
            extract_latents(victim, texts, spec=SPEC, folder=tmp_path / "hurt", progress=progress)
    assert n_counted(tmp_path / "hurt") == [0] * len(plans)
    recorder = Recorder()
    again = sweep_latents(decoder, texts, plans, spec=SPEC, folder=tmp_path / "hurt", progress=recorder)
    assert (recorder.n_done, recorder.n_written) == (0, len(plans) * len(texts))
    for one, other in zip(clean, again, strict=True):
        assert_same_arrays(one.path, other.path)


def test_rows_up_to_the_last_comparison_survive_a_kill(
    decoder: Decoder, texts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("extract.run.extraction.SHARE", float("inf"))  # due after every batch
    monkeypatch.setattr(Session, "close_if_frozen", lambda _: None)
    with pytest.raises(KilledError):
        extract_latents(
            decoder, texts, spec=SPEC, folder=tmp_path, progress=Recorder(on_advance=stop_with(KilledError(), after=6))
        )
    (n_done,) = n_counted(tmp_path)
    assert 0 < n_done < len(texts)
    recorder = Recorder()
    cache = extract_latents(decoder, texts, spec=SPEC, folder=tmp_path, progress=recorder)
    assert (recorder.n_done, recorder.n_written) == (n_done, len(texts) - n_done)
    whole = extract_latents(decoder, texts, spec=SPEC, folder=tmp_path / "whole")
    assert_same_arrays(whole.path, cache.path)


def test_weights_that_change_are_noticed_before_the_end(
    victim: Decoder, texts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("extract.run.extraction.SHARE", float("inf"))
    progress = changing(victim, after=3)
    with pytest.raises(CertificateError, match="the weights changed"):
        extract_latents(victim, texts, spec=ExtractionSpec(batch_tokens=16), folder=tmp_path, progress=progress)
    assert progress.n_written < len(texts)


def test_ctrl_c_loses_nothing(
    decoder: Decoder, texts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    never_due(monkeypatch)
    recorder = Recorder(on_advance=stop_with(KeyboardInterrupt(), after=3))
    with pytest.raises(KeyboardInterrupt):
        extract_latents(decoder, texts, spec=SPEC, folder=tmp_path, progress=recorder)
    assert n_counted(tmp_path) == [recorder.n_written]


def test_weights_that_change_within_a_shard_void_that_shard_alone(
    decoder: Decoder, victim: Decoder, texts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    never_due(monkeypatch)
    weight = next(victim.blocks[0].parameters())

    def change(_: int) -> None:
        if 20 < progress.n_written < 30:  # in the second shard
            weight.data.mul_(1.5)

    progress = Recorder(on_advance=change)
    with pytest.raises(CertificateError, match="the weights changed"):
        extract_shards(victim, texts, spec=SPEC, folder=tmp_path / "hurt", window=20, progress=progress)
    assert len(list((tmp_path / "hurt").glob("*.h5"))) == 1
    extract_shards(decoder, texts, spec=SPEC, folder=tmp_path / "hurt", window=20)
    extract_shards(decoder, texts, spec=SPEC, folder=tmp_path / "clean", window=20)
    for path in (tmp_path / "clean").glob("*.h5"):
        assert_same_arrays(path, tmp_path / "hurt" / path.name)


def test_whole_caches_of_earlier_versions_stay_readable(decoder: Decoder, texts: list[str], tmp_path: Path) -> None:
    path = extract_latents(decoder, texts, spec=SPEC, folder=tmp_path).path
    assert set(read_arrays(path)["rows/is_done"]) == {2}
    with h5py.File(path, "r+") as file:
        file["rows/is_done"][:] = np.uint8(1)
    recorder = Recorder()
    cache = extract_latents(decoder, texts, spec=SPEC, folder=tmp_path, progress=recorder)
    assert (cache.path, cache.is_complete, recorder.n_written) == (path, True, 0)


def test_a_half_done_cache_of_an_earlier_version_is_computed_again(
    decoder: Decoder, texts: list[str], tmp_path: Path
) -> None:
    path = extract_latents(decoder, texts, spec=SPEC, folder=tmp_path).path
    with h5py.File(path, "r+") as file:
        file["rows/is_done"][:] = np.uint8(1)
        file["certificate"][:] = np.uint8(0)
    recorder = Recorder()
    extract_latents(decoder, texts, spec=SPEC, folder=tmp_path, progress=recorder)
    assert recorder.n_written == len(texts)
