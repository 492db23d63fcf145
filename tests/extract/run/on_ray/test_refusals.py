"""What is refused before Ray is needed, and what is said where it is missing."""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from extract.decoders.decoder import Decoder
from extract.decoders.decoder_spec import DecoderSpec
from extract.errors import ConfigError, InputError
from extract.inputs.template import InputTemplate
from extract.run.extraction_spec import ExtractionSpec
from extract.run.ray import ListedProgress, RayWorkers, extract_shards_on_ray, joined_cluster
from tests.extract.recorder import Recorder
from tests.extract.tiny_decoders import make_texts, write_shards

pytestmark = pytest.mark.usefixtures("unchecked_shapes")


def test_a_missing_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"extra package ray .* pip install 'ray'"):
        extract_shards_on_ray("gpt2", ["Ice."], folder=tmp_path / "some", workers=2)
    assert not (tmp_path / "some").exists()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"n_workers": 0}, "the number of Ray workers is 0; allowed: a whole number, at least 1"),
        ({"n_workers": 2, "cpus": -1}, "each Ray worker gets -1 CPUs and None GPUs"),
        ({"n_workers": 2, "gpus": -0.5}, r"each Ray worker gets 1 CPUs and -0\.5 GPUs"),
        ({"n_workers": 2, "restarts": -2}, "restarts is -2; allowed: a whole number, or -1"),
    ],
)
def test_numbers_that_mean_nothing(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        RayWorkers(**values)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (DecoderSpec(device_map="auto"), r"decoder\.device_map spreads one decoder .*; leave decoder\.device_map out"),
        (DecoderSpec(tp_plan="auto"), r"decoder\.tp_plan splits one decoder .*; leave decoder\.tp_plan out"),
        (DecoderSpec(device="cuda:1"), r"decoder\.device is 'cuda:1', and Ray chooses .*allowed: auto, cpu, cuda"),
    ],
)
def test_a_decoder_is_the_workers_own(spec: DecoderSpec, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        extract_shards_on_ray(spec, ["Ice."], folder=tmp_path, workers=2)


def test_what_other_processes_cannot_have(decoder: Decoder, tmp_path: Path) -> None:
    given: Any = decoder
    with pytest.raises(ConfigError, match="the decoder is a Decoder, and every Ray worker makes its own"):
        extract_shards_on_ray(given, ["Ice."], folder=tmp_path, workers=2)
    with pytest.raises(InputError, match="texts is a generator, which can be read only once"):
        extract_shards_on_ray("gpt2", (text for text in ["Ice."]), folder=tmp_path, workers=2)


def test_what_shards_cannot_hold_is_refused_before_ray_is_joined(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="window is 0; allowed"):
        extract_shards_on_ray("gpt2", ["Ice."], folder=tmp_path, workers=2, window=0)
    several = ExtractionSpec(template=InputTemplate(name="meta-eol-8"), poolings=("last",))
    with pytest.raises(ConfigError, match="the template stands for 8 whose latents are averaged"):
        extract_shards_on_ray("gpt2", ["Ice."], folder=tmp_path, workers=2, spec=several)


def test_a_named_cluster_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is started in its place."""
    asked: list[str] = []

    def init(*, address: str, **_: Any) -> None:
        asked.append(address)
        raise ConnectionError("nobody answers")

    ray = ModuleType("ray")
    vars(ray).update(init=init, is_initialized=lambda: False, shutdown=lambda: None)
    monkeypatch.setenv("RAY_ADDRESS", "ice:6379")
    with (
        pytest.raises(ConfigError, match=r"'ice:6379' cannot be joined \(ConnectionError: nobody answers\)"),
        joined_cluster(ray, RayWorkers(2)),
    ):
        pass
    assert asked == ["ice:6379"]
    monkeypatch.delenv("RAY_ADDRESS")
    with (
        pytest.raises(ConfigError, match=r"Ray cannot be started on this machine \(ConnectionError: nobody answers\)"),
        joined_cluster(ray, RayWorkers(2)),
    ):
        pass
    assert asked == ["ice:6379", "auto", "local"]


def test_progress_is_what_is_listed(tmp_path: Path) -> None:
    told = Recorder()
    watch = ListedProgress(tmp_path, told)
    watch.start(n_rows=5)
    watch.look()
    assert (told.n_rows, told.n_done, told.n_batches) == (5, 0, 0)
    write_shards(tmp_path, make_texts(5), window=2)
    watch.look()
    watch.look()
    assert (told.n_batches, told.n_written) == (1, 5)
    assert told.n_tokens == 2 * (1 + 2) + 1
    again = Recorder()
    ListedProgress(tmp_path, again).start(n_rows=5)
    assert again.n_done == 5
