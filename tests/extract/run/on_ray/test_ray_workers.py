"""Workers on Ray fill a folder as one process does, whatever befalls them. Needs the extra."""

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import pytest
import torch

from extract.errors import ConfigError, IcecoreError, InputError, TruncationWarning
from extract.inputs.batches import stream_texts
from extract.inputs.template import InputTemplate
from extract.run.extraction_spec import ExtractionSpec
from extract.run.ray import RayWorkers, extract_shards_on_ray, joined_cluster
from extract.run.shards import extract_shards
from extract.store.cache import ShardedCache
from tests.extract.recorder import Recorder
from tests.extract.run.on_ray.troubled import Troubled
from tests.extract.tiny_decoders import assert_same_arrays, make_decoder, make_texts

SPEC = ExtractionSpec(poolings=("last", "mean"), batch_tokens=256)
N_TEXTS, WINDOW, N_SHARDS = 600, 100, 6

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("default"),
    pytest.mark.usefixtures("unchecked_shapes"),
]


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """One thread here and in every worker: with another number, sums may end in other bits."""
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        yield
    torch.set_num_threads(n_threads)


@pytest.fixture(scope="module")
def ray(one_thread: None) -> Iterator[Any]:
    """A cluster that these tests share."""
    del one_thread
    ray = pytest.importorskip("ray", reason="needs the extra: pip install '.[ray]'")
    before = signal.getsignal(signal.SIGTERM)
    with joined_cluster(ray, RayWorkers(3)):
        assert signal.getsignal(signal.SIGTERM) == before, "Ray answers SIGTERM in place of the program"
        yield ray


@pytest.fixture(scope="module")
def alone(one_thread: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shards that one process makes."""
    del one_thread
    folder = tmp_path_factory.mktemp("alone")
    extract_shards(make_decoder(adds_bos=True), make_texts(N_TEXTS), folder=folder, spec=SPEC, window=WINDOW)
    return folder


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    """Where decoders note that they were made."""
    (tmp_path / "notes").mkdir()
    return tmp_path / "notes"


def assert_same_shards(folder: Path, alone: Path) -> None:
    assert sorted(path.name for path in folder.iterdir()) == sorted(path.name for path in alone.iterdir())
    ShardedCache(folder).verify()
    for path in alone.glob("*.h5"):
        assert_same_arrays(path, folder / path.name)


def test_one_is_killed_and_one_is_slow(ray: Any, alone: Path, notes: Path, tmp_path: Path) -> None:
    assert ray.is_initialized()
    folder, told = tmp_path / "shards", Recorder()
    troubled = Troubled(notes, folder, n_killed=1, n_slow=1)
    cache = extract_shards_on_ray(
        troubled, make_texts(N_TEXTS), folder=folder, workers=3, spec=SPEC, window=WINDOW, progress=told
    )
    assert ray.is_initialized(), "a cluster that was joined before was left"
    [killed] = notes.glob("killed-*")
    drafts = [(h5py.File(path)["rows/is_done"][()] != 0).sum() for path in killed.glob("*.h5")]
    assert any(0 < n_done < WINDOW for n_done in drafts), "nobody was killed within a window"
    assert cache.n_shards == N_SHARDS
    assert (told.n_rows, told.n_written, told.n_finished) == (N_TEXTS, N_TEXTS, 1)
    assert_same_shards(folder, alone)


def test_a_worker_that_dies_is_started_again(ray: Any, alone: Path, notes: Path, tmp_path: Path) -> None:
    """Alone, and twice; the texts are read from a file."""
    del ray
    (tmp_path / "texts.txt").write_text("\n".join(make_texts(N_TEXTS)), encoding="utf-8")
    folder = tmp_path / "shards"
    extract_shards_on_ray(
        Troubled(notes, folder, n_killed=2),
        stream_texts(tmp_path / "texts.txt"),
        folder=folder,
        spec=SPEC,
        window=WINDOW,
        workers=RayWorkers(1, restarts=2),
    )
    assert sorted(path.name for path in notes.iterdir()) == ["killed-0", "killed-1", "made-0", "made-1", "made-2"]
    assert_same_shards(folder, alone)


def test_none_is_left(ray: Any, alone: Path, notes: Path, tmp_path: Path) -> None:
    """What they did before is kept, and others go on from there."""
    del ray
    folder = tmp_path / "shards"
    with pytest.raises(IcecoreError, match=r"all Ray workers died, each as often as it may be restarted \(The act"):
        extract_shards_on_ray(
            Troubled(notes, folder, n_killed=2, after=40),
            make_texts(N_TEXTS),
            folder=folder,
            spec=SPEC,
            window=WINDOW,
            workers=RayWorkers(2, restarts=0),
        )
    n_left = len(list(folder.glob("*.h5")))
    assert 0 < n_left < N_SHARDS
    on = Recorder()
    extract_shards(
        make_decoder(adds_bos=True), make_texts(N_TEXTS), folder=folder, spec=SPEC, window=WINDOW, progress=on
    )
    assert on.n_done == n_left * WINDOW
    assert_same_shards(folder, alone)


def test_an_error_is_the_same_sentence(ray: Any, notes: Path, tmp_path: Path) -> None:
    del ray
    strict = ExtractionSpec(template=InputTemplate(max_tokens=4, on_long="error"))
    texts = ["a", "b", "One two three four five six."]
    with pytest.raises(InputError) as alone:
        extract_shards(make_decoder(adds_bos=True), texts, folder=tmp_path / "alone", spec=strict)
    folder = tmp_path / "shards"
    with pytest.raises(InputError) as found:
        extract_shards_on_ray(Troubled(notes, folder, n_killed=0), texts, folder=folder, spec=strict, workers=2)
    assert (type(found.value), str(found.value)) == (type(alone.value), str(alone.value))
    assert not (folder / "index.json").exists(), "nothing else can be begun there"
    with pytest.raises(InputError, match=r"text 1 is ' '"):
        extract_shards_on_ray(Troubled(notes, folder, n_killed=0), ["a", " "], folder=folder, workers=1)


def test_long_texts_are_counted_here(ray: Any, notes: Path, tmp_path: Path) -> None:
    del ray
    short = ExtractionSpec(template=InputTemplate(max_tokens=4))
    texts = ["One two three four five six.", "a", "Seven eight nine ten eleven."]
    make = Troubled(notes, tmp_path, n_killed=0)
    with pytest.warns(TruncationWarning, match="2 of 3 texts have more than 4 tokens"):
        extract_shards_on_ray(make, texts, folder=tmp_path / "shards", spec=short, window=1, workers=1)


def test_what_cannot_be_sent(ray: Any, tmp_path: Path) -> None:
    del ray
    with Path(__file__).open("rb") as file, pytest.raises(ConfigError, match="texts or the decoder cannot be sent"):
        extract_shards_on_ray(lambda: make_decoder(file.name), ["Ice."], folder=tmp_path, workers=1)
