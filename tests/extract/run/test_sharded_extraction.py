"""Extraction into shards: the numbers of one file, whatever the texts come from and whenever it was stopped."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import distribute_tensor

from extract.decoders.decoder import Decoder
from extract.errors import CacheError, CacheIdentityError, ConfigError, IcecoreError, InputError, TruncationWarning
from extract.inputs.joined_text import JoinedText, join_words
from extract.inputs.template import InputTemplate
from extract.run.extraction import extract_latents
from extract.run.extraction_spec import ExtractionSpec, WordSpec
from extract.run.shards import DRAFTS, LOCK, extract_shards, read_windows
from extract.store import reader
from extract.store.cache import LatentCache, ShardedCache
from extract.store.format import read_layout
from extract.store.reader import ShardIndex, digest_file
from tests.extract.recorder import Recorder
from tests.extract.tiny_decoders import assert_same_arrays, make_decoder

SPEC = ExtractionSpec(poolings=("last", "mean"), batch_tokens=64)
WINDOW, N_TEXTS = 12, 24

pytestmark = pytest.mark.usefixtures("unchecked_shapes")


@pytest.fixture(scope="module")
def texts(texts: list[str]) -> list[str]:
    """Some distinct texts of mixed lengths."""
    return texts[:N_TEXTS]


@pytest.fixture(scope="module")
def folder(decoder: Decoder, texts: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Texts in two shards; read-only."""
    place = tmp_path_factory.mktemp("shards")
    extract_shards(decoder, iter(texts), folder=place, spec=SPEC, window=WINDOW)
    return place


@pytest.fixture
def copied(folder: Path, tmp_path: Path) -> Path:
    """A copy of the shards."""
    return Path(shutil.copytree(folder, tmp_path / "copied"))


@pytest.fixture(scope="module")
def in_one(decoder: Decoder, texts: list[str], tmp_path_factory: pytest.TempPathFactory) -> LatentCache:
    """The same texts in one file."""
    return extract_latents(decoder, texts, spec=SPEC, folder=tmp_path_factory.mktemp("one"))


def listed(folder: Path) -> list[str]:
    """Name the shards that the index lists."""
    return [shard["file"] for shard in json.loads((folder / "index.json").read_text())["shards"]]


def test_shards_hold_the_latents_of_one_file(folder: Path, in_one: LatentCache, texts: list[str]) -> None:
    cache = ShardedCache(folder)
    assert (len(cache), cache.n_shards, cache.is_complete) == (N_TEXTS, 2, True)
    for pooling in SPEC.poolings:
        got = cache.gather(cache.rows_of(texts), pooling)
        torch.testing.assert_close(got, in_one.gather(in_one.rows_of(texts), pooling), atol=1e-5, rtol=0)
    assert replace(cache.identity, text_digest=in_one.identity.text_digest) == in_one.identity
    assert cache.identity != in_one.identity
    assert sorted(path.name for path in folder.iterdir()) == [LOCK, "index.json", *listed(folder)]


def test_every_shard_is_a_whole_cache_of_its_window(folder: Path, decoder: Decoder, texts: list[str]) -> None:
    for number, name in enumerate(listed(folder)):
        part = texts[WINDOW * number : WINDOW * (number + 1)]
        shard = LatentCache(folder / name)
        assert len(shard.rows_of(part)) == len(shard) == len(part)
        assert shard.certificate["frozen"]["weight_digest"] == decoder.description.weight_digest


def test_stopped_anywhere_it_goes_on(folder: Path, decoder: Decoder, texts: list[str], tmp_path: Path) -> None:
    """Stopped after one batch of the second window, which is then in a draft, half done."""

    def stop(_: int) -> None:
        if stopped.n_written > WINDOW:
            raise KeyboardInterrupt

    stopped = Recorder(on_advance=stop)
    with pytest.raises(KeyboardInterrupt):
        extract_shards(decoder, texts, folder=tmp_path, spec=SPEC, window=WINDOW, progress=stopped)
    assert listed(tmp_path) == ["shard-000000.h5"]
    before = (tmp_path / "shard-000000.h5").stat().st_mtime_ns
    on = Recorder()
    extract_shards(decoder, (text for text in texts), folder=tmp_path, spec=SPEC, window=WINDOW, progress=on)
    assert (on.n_rows, on.n_done, on.n_finished) == (0, WINDOW, 1)
    assert stopped.n_written + on.n_written == N_TEXTS, "a batch was computed twice, or none was kept"
    assert (tmp_path / "shard-000000.h5").stat().st_mtime_ns == before
    for name in listed(folder):
        assert_same_arrays(folder / name, tmp_path / name)


@pytest.mark.parametrize("moment", ["before it is moved", "before it is listed"])
def test_killed_between_the_steps(
    moment: str, folder: Path, decoder: Decoder, texts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        step = {"before it is moved": (Path, "replace"), "before it is listed": (ShardIndex, "write")}[moment]
        patch.setattr(*step, lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            extract_shards(decoder, texts, folder=tmp_path, spec=SPEC, window=WINDOW)
    assert not (tmp_path / "index.json").exists()
    extract_shards(decoder, texts, folder=tmp_path, spec=SPEC, window=WINDOW)
    assert listed(tmp_path) == listed(folder)
    for name in listed(folder):
        assert_same_arrays(folder / name, tmp_path / name)
    assert not (tmp_path / DRAFTS).exists()


def test_a_shard_that_is_gone_is_made_again(folder: Path, copied: Path, decoder: Decoder, texts: list[str]) -> None:
    (copied / "shard-000001.h5").unlink()
    again = Recorder()
    extract_shards(decoder, texts, folder=copied, spec=SPEC, window=WINDOW, progress=again)
    assert again.n_written == WINDOW
    assert_same_arrays(folder / "shard-000001.h5", copied / "shard-000001.h5")
    ShardedCache(copied).verify()


def _flip(path: Path, byte: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[byte] ^= 1
    path.write_bytes(raw)


def _damage(folder: Path, what: str) -> None:
    first, second = (folder / f"shard-{number:06d}.h5" for number in range(2))
    if what == "swapped":
        first.rename(folder / "aside")
        second.rename(first)
        (folder / "aside").rename(second)
    elif what == "copied":
        shutil.copy(second, first)
    else:
        latents = read_layout(first)[1]["/latents/mean/block_01"].offset
        _flip(first, {"latents": latents + 5, "structure": 100, "seal": first.stat().st_size - 9}[what])


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("latents", "shard 'shard-000000.h5' of .* is damaged"),
        ("structure", "shard 'shard-000000.h5' of .* is damaged"),
        ("seal", "shard 'shard-000000.h5' of .* is damaged"),
        ("swapped", "holds what the index lists as 'shard-000001.h5'"),
        ("copied", "holds what the index lists as 'shard-000001.h5'"),
    ],
)
def test_shards_that_changed_are_refused(
    what: str, said: str, copied: Path, decoder: Decoder, texts: list[str]
) -> None:
    _damage(copied, what)
    before = {path.name: path.read_bytes() for path in copied.iterdir()}
    with pytest.raises(CacheError, match=said):
        extract_shards(decoder, texts, folder=copied, spec=SPEC, window=WINDOW)
    with pytest.raises(CacheError, match=said):
        ShardedCache(copied).verify()
    assert {path.name: path.read_bytes() for path in copied.iterdir()} == before, "something was lost"


def test_a_shard_that_was_cut_short_is_made_again(
    folder: Path, copied: Path, decoder: Decoder, texts: list[str]
) -> None:
    with (copied / "shard-000000.h5").open("r+b") as file:
        file.truncate(4096)
    again = Recorder()
    extract_shards(decoder, texts, folder=copied, spec=SPEC, window=WINDOW, progress=again)
    assert again.n_written == WINDOW
    assert_same_arrays(folder / "shard-000000.h5", copied / "shard-000000.h5")
    ShardedCache(copied).verify()


def test_a_shard_is_read_for_its_digest_once(
    copied: Path, decoder: Decoder, texts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of earlier calls are; what a call has written itself is not read again."""
    names: list[str] = []

    def digest(files: Any, name: str) -> str:
        names.append(name)
        return digest_file(files, name)

    monkeypatch.setattr(reader, "digest_file", digest)
    extract_shards(decoder, texts, folder=copied, spec=SPEC, window=WINDOW)
    extract_shards(decoder, texts, folder=tmp_path / "new", spec=SPEC, window=WINDOW)
    assert names == listed(copied)


def test_other_texts_are_refused(copied: Path, decoder: Decoder, texts: list[str]) -> None:
    with pytest.raises(CacheIdentityError, match=r"shard-000000\.h5.*not of the texts of window 0 \(texts 0 to 11\)"):
        extract_shards(decoder, texts[::-1], folder=copied, spec=SPEC, window=WINDOW)
    with pytest.raises(CacheIdentityError, match=r"there are 1 windows of texts, but .* has a shard of window 1"):
        extract_shards(decoder, texts[:12], folder=copied, spec=SPEC, window=WINDOW)
    ShardedCache(copied).verify()


def test_shards_of_something_else_are_refused(copied: Path, decoder: Decoder, texts: list[str]) -> None:
    other = ExtractionSpec(poolings=("last", "mean"), plan="backward")
    with pytest.raises(CacheIdentityError, match="holds something else: plan is 'causal', expected 'backward'"):
        extract_shards(decoder, texts, folder=copied, spec=other, window=WINDOW)
    with pytest.raises(CacheIdentityError, match="windows of 12 texts, and 20 were asked for"):
        extract_shards(decoder, texts, folder=copied, spec=SPEC, window=20)
    joined = [join_words(["Ice", str(i)], [True, True]) for i in range(3)]
    with pytest.raises(CacheIdentityError, match=r"words\.n_words|words\.on_lost is None, expected 'error'"):
        extract_shards(decoder, joined, folder=copied, spec=SPEC, window=WINDOW)


def test_repeats_are_stored_once_in_a_window(decoder: Decoder, tmp_path: Path) -> None:
    texts = ["Ice.", "Snow.", "Ice.", "Rain.", "Ice.", "Ice."]
    cache = extract_shards(decoder, texts, folder=tmp_path, spec=SPEC, window=3)
    assert len(cache) == 4
    rows = cache.rows_of(["Ice.", "Rain.", "Ice.", "Snow."]).tolist()
    assert rows[0] == rows[2] == int(LatentCache(tmp_path / "shard-000000.h5").rows_of(["Ice."])), "not the first"
    assert len({*rows}) == 3
    latents = cache.gather(range(4), "mean", layers="block_01")[0]
    assert sum(torch.allclose(latents[rows[0]], each, atol=1e-5) for each in latents) == 2


def test_memory_is_that_of_a_window(decoder: Decoder, tmp_path: Path) -> None:
    """Texts are taken as they are needed: when a window is written, none after it has been read."""
    taken: list[int] = []
    at_advance: list[int] = []

    def texts() -> Iterator[str]:
        for i in range(6):
            taken.append(i)
            yield f"Core number {i} was drilled."

    watch = Recorder(on_advance=lambda _: at_advance.append(len(taken)))
    extract_shards(decoder, texts(), folder=tmp_path, spec=SPEC, window=3, progress=watch)
    assert sorted(set(at_advance)) == [3, 6]


def test_words_are_streamed_too(decoder: Decoder, texts: list[str], tmp_path: Path) -> None:
    joined = [join_words(text.split(), [True] * len(text.split())) for text in texts[:5]]
    joined.append(joined[0])
    spec = ExtractionSpec(
        words=WordSpec(("last", "mean")), template=InputTemplate(max_tokens=12, on_long="windows"), batch_tokens=64
    )
    cache = extract_shards(decoder, joined, folder=tmp_path / "shards", spec=spec, window=3)
    one = extract_latents(decoder, joined, folder=tmp_path / "one", spec=spec)
    assert cache.n_words == one.n_words + len(joined[0].spans)
    found, wanted = cache.words_of(joined), one.words_of(joined)
    assert found.offsets.tolist() == wanted.offsets.tolist()
    assert found.flags.tolist() == wanted.flags.tolist()
    for pooling in ("last", "mean"):
        got = cache.gather(found.positions, pooling)
        torch.testing.assert_close(got, one.gather(wanted.positions, pooling), atol=1e-5, rtol=0)
    assert len(cache.items.row_of_latent) == len(cache.has_latent) == cache.n_words


def test_bad_texts_are_named_by_their_place(decoder: Decoder, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"text 5 is ' '"):
        extract_shards(decoder, ["Ice."] * 5 + [" "], folder=tmp_path, spec=SPEC, window=4)
    with pytest.raises(InputError, match="there are no texts"):
        extract_shards(decoder, [], folder=tmp_path / "none", spec=SPEC)
    with pytest.raises(InputError, match="texts is the single string 'Ice'"):
        extract_shards(decoder, "Ice", folder=tmp_path / "none", spec=SPEC)
    mixed: list[str | JoinedText] = ["Ice.", join_words(["Ice"], [False])]
    with pytest.raises(InputError, match=r"text 1 is JoinedText.*either plain texts or texts with their words"):
        list(read_windows(mixed, 1))
    strict = ExtractionSpec(template=InputTemplate(max_tokens=4, on_long="error"))
    with pytest.raises(InputError, match=r"in window 1 \(texts 2 to 3\), counted in it: .*text 1"):
        extract_shards(
            decoder, ["a", "b", "c", "One two three four five six."], folder=tmp_path / "long", spec=strict, window=2
        )
    assert listed(tmp_path / "long") == ["shard-000000.h5"]


def test_long_texts_are_counted_once(decoder: Decoder, tmp_path: Path) -> None:
    spec = ExtractionSpec(template=InputTemplate(max_tokens=4))
    texts = ["One two three four five six.", "a", "Seven eight nine ten eleven."]
    with pytest.warns(TruncationWarning, match="2 of 3 texts have more than 4 tokens") as caught:
        extract_shards(decoder, texts, folder=tmp_path, spec=spec, window=1)
    assert len(caught) == 1


def test_what_cannot_be_is_refused(decoder: Decoder, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="window is 0; allowed: a whole number of texts, at least 1"):
        extract_shards(decoder, ["Ice."], folder=tmp_path, window=0)
    several = ExtractionSpec(template=InputTemplate(name="meta-eol-8"), poolings=("last",))
    assert len(several.members) == 8
    with pytest.raises(ConfigError, match="the template stands for 8 whose latents are averaged"):
        extract_shards(decoder, ["Ice."], folder=tmp_path, spec=several)


def test_a_decoder_split_over_processes_cannot_have_shards_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder = make_decoder()
    attention: Any = decoder.blocks[0].self_attn
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        split = distribute_tensor(attention.q_proj.weight.data, init_device_mesh("cpu", (1,)))
        monkeypatch.setattr(attention.q_proj, "weight", nn.Parameter(split, requires_grad=False))
        monkeypatch.setenv("WORLD_SIZE", "2")
        monkeypatch.setenv("RANK", "1")
        with pytest.raises(
            ConfigError, match=r"2 processes were started, and decoder\.tp_plan splits one decoder over"
        ):
            extract_shards(decoder, ["Ice."], folder=tmp_path / "split")
        assert not (tmp_path / "split").exists()
    finally:
        distributed.destroy_process_group()


def test_a_second_writer_does_what_is_left(decoder: Decoder, tmp_path: Path) -> None:
    second = Recorder()

    def join() -> None:
        extract_shards(decoder, ["Ice.", "Snow."], folder=tmp_path, window=1, progress=second)

    first = Recorder(on_start=join)
    extract_shards(decoder, ["Ice.", "Snow."], folder=tmp_path, window=1, progress=first)
    assert listed(tmp_path) == ["shard-000000.h5", "shard-000001.h5"]
    assert (second.n_written, first.n_written) == (2, 0), "a window was done twice"


def test_another_decoder_is_refused(copied: Path, texts: list[str]) -> None:
    with pytest.raises(CacheIdentityError, match=r"decoder\.weight_digest is"):
        extract_shards(make_decoder(seed=1, adds_bos=True), texts, folder=copied, spec=SPEC, window=WINDOW)
    ShardedCache(copied).verify()


def test_drafts_that_are_a_link_are_refused(decoder: Decoder, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "shards").mkdir()
    (tmp_path / "shards" / DRAFTS).symlink_to(tmp_path / "other")
    with pytest.raises(ConfigError, match=f"{DRAFTS}' is a link, and nothing is written through links"):
        extract_shards(decoder, ["One text.", "Another."], folder=tmp_path / "shards")
    assert [path.name for path in (tmp_path / "shards").iterdir()] == [DRAFTS]


@pytest.mark.parametrize("name", [LOCK, f"{DRAFTS}/window-000000.claim"])
def test_nothing_is_written_through_a_link_in_a_folder_of_shards(decoder: Decoder, tmp_path: Path, name: str) -> None:
    precious, link = tmp_path / "precious.txt", tmp_path / "shards" / name
    precious.write_text("my thesis")
    link.parent.mkdir(parents=True)
    link.symlink_to(precious)
    with pytest.raises(IcecoreError):
        extract_shards(decoder, ["One text.", "Another."], folder=tmp_path / "shards")
    assert precious.read_text() == "my thesis"
