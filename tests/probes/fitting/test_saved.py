"""A head is fitted once under the same circumstances."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import probes.fitting.saved_fits
from extract.errors import ConfigError, HeadError
from extract.store.cache import LatentCache
from probes.fitting.saved_fits import RECORD, WEIGHTS, FitRecord, describe_latents, fit_or_load, save_fitted
from probes.heads.layer_head import load_head
from probes.heads.linear_probes import LinearProbe
from tests.probes.planted_latents import make_task, plant


@pytest.fixture(scope="module")
def latents(tmp_path_factory: pytest.TempPathFactory) -> LatentCache:
    return plant(tmp_path_factory.mktemp("latents") / "c.h5", make_task(sizes={"train": 8}))


def save(folder: Path, value: float) -> None:
    """Save a head all of whose weights are one value, which its record says too."""
    head = LinearProbe(3, ["a", "b"])
    head.load_state_dict({key: torch.full_like(part, value) for key, part in head.state_dict().items()})
    save_fitted(folder, head, FitRecord("logistic-probe", details={"value": value}))


def values(folder: Path) -> set[float]:
    """What weights and record of a head say."""
    saved = load_head(folder)
    parts = saved.head.state_dict().values()
    return {saved.record.details["value"], *(value for part in parts for value in part.reshape(-1).tolist())}


def obtain(folder: Path, fit_id: str, calls: list[str], cache: LatentCache) -> FitRecord:
    def fit() -> tuple[LinearProbe, FitRecord]:
        calls.append(fit_id)
        return LinearProbe(3, ["a", "b"]), FitRecord("logistic-probe", details={"n": len(calls)})

    return fit_or_load(folder, fit_id, fit, lambda record: LinearProbe(**record.arguments), cache=cache).record


def test_a_head_is_found_again_with_the_same_record(latents: LatentCache, tmp_path: Path) -> None:
    calls: list[str] = []
    assert obtain(tmp_path / "head", "one", calls, latents) == obtain(tmp_path / "head", "one", calls, latents)
    assert calls == ["one"]
    assert obtain(tmp_path / "head", "two", calls, latents).details["n"] == 2


@pytest.mark.parametrize("spoil", ["schema", "cut"])
def test_a_head_that_cannot_be_read_is_fitted_again(spoil: str, latents: LatentCache, tmp_path: Path) -> None:
    calls: list[str] = []
    record = obtain(tmp_path, "one", calls, latents)
    text = json.dumps({**record.to_plain(), "schema": 99}) if spoil == "schema" else "{"
    (tmp_path / "head.json").write_text(text, encoding="utf-8")
    obtain(tmp_path, "one", calls, latents)
    assert calls == ["one", "one"]


def test_a_record_says_what_latents_the_head_reads(latents: LatentCache, tmp_path: Path) -> None:
    record = obtain(tmp_path, "one", [], latents)
    assert record.latents == describe_latents(latents)
    assert record.latents["cache"] == latents.manifest.id


STEPS = ("remove_file", WEIGHTS, RECORD)


@pytest.mark.parametrize("is_done", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("step", STEPS)
def test_a_kill_while_saving_leaves_no_head_of_two_fits(
    step: str, is_done: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights of one fit under the record of another were accepted by the next run."""

    def killing(function: Callable[..., None]) -> Callable[..., None]:
        def call(path: Path, *content: str | bytes) -> None:
            is_it = step == (path.name if content else function.__name__)
            if not is_it or is_done:
                function(path, *content)
            if is_it:
                raise KeyboardInterrupt

        return call

    save(tmp_path, 1.0)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        for name in ("remove_file", "write_file"):
            patch.setattr(probes.fitting.saved_fits, name, killing(getattr(probes.fitting.saved_fits, name)))
        save(tmp_path, 2.0)
    if (step, is_done) == (STEPS[0], False):
        assert values(tmp_path) == {1.0}
    elif (step, is_done) == (STEPS[-1], True):
        assert values(tmp_path) == {2.0}
    else:
        with pytest.raises(HeadError, match="holds no readable head"):
            load_head(tmp_path)
    save(tmp_path, 3.0)
    assert values(tmp_path) == {3.0}
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([RECORD, WEIGHTS])


@pytest.mark.parametrize("foreign", [WEIGHTS, RECORD])
def test_a_part_of_another_head_is_refused(foreign: str, tmp_path: Path) -> None:
    for name, value in (("one", 1.0), ("two", 2.0)):
        save(tmp_path / name, value)
    (tmp_path / "one" / foreign).write_bytes((tmp_path / "two" / foreign).read_bytes())
    with pytest.raises(HeadError, match=rf"{WEIGHTS} is not the file that {RECORD} was written with; fit it again"):
        load_head(tmp_path / "one")


def test_every_flipped_byte_of_a_head_is_refused(tmp_path: Path) -> None:
    save(tmp_path, 1.0)
    for name in (WEIGHTS, RECORD):
        whole = (tmp_path / name).read_bytes()
        for place in range(0, len(whole) - 1, 7):  # not the line break at the end of the record
            spoilt = bytearray(whole)
            spoilt[place] ^= 1 << place % 8
            (tmp_path / name).write_bytes(spoilt)
            try:
                assert (name, values(tmp_path)) == (RECORD, {1.0}), place  # white space between two keys
            except HeadError:
                continue
        (tmp_path / name).write_bytes(whole)
    assert values(tmp_path) == {1.0}


def test_heads_without_digests_still_open(tmp_path: Path) -> None:
    save(tmp_path, 1.0)
    record = json.loads((tmp_path / RECORD).read_text(encoding="utf-8"))
    early = {key: value for key, value in record.items() if not key.endswith("_sha256")} | {"schema": 3}
    (tmp_path / RECORD).write_text(json.dumps(early), encoding="utf-8")
    assert values(tmp_path) == {1.0}
    (tmp_path / RECORD).write_text(json.dumps({**early, "schema": 4}), encoding="utf-8")
    with pytest.raises(HeadError, match="KeyError: 'record_sha256'"):
        load_head(tmp_path)


def test_no_head_is_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "victim").mkdir()
    (tmp_path / "head").symlink_to(tmp_path / "victim")
    with pytest.raises(ConfigError, match="head' is a link"):
        save(tmp_path / "head", 1.0)
    assert not list((tmp_path / "victim").iterdir())
