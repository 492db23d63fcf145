"""The stamp of a finished run: digests of what decided it, and the state of its files; loads no torch.

`icecore run` finds a finished run by its stamp instead of computing it again. Whatever is not known without computing
(code of the user's own, a decoder at the hub, pretraining, latents that were handed over) leaves no stamp, and any
difference counts as a change: then the run goes the whole way, where every part decides by itself what is reused.
"""

import json
import os
import platform
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from extract import registry
from extract.decoders.decoder_spec import DecoderSpec
from extract.decoders.fetch import list_decoder_files
from extract.errors import IcecoreError
from extract.files import digest_json, read_file, write_file
from extract.records import Values, to_plain
from probes.data.task import ROW, Task
from probes.report.drawn import digest_code, package_versions
from probes.runs.folder import RunFolder, choose_folder, name_plans, without_absolute_paths
from probes.runs.run_config import RunConfig, load_run_task

if TYPE_CHECKING:
    from extract.store.cache import LatentCache

STAMP, SWEEP = "stamp.json", "sweep"
SCHEMA = 1
DEVICE_VARIABLES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
"""Variables that decide which device `auto` stands for."""
States = dict[str, list[int]]
"""Path to size and times of a file, which change when it is written, replaced or copied."""


@dataclass(frozen=True)
class Inputs:
    """What decides a run besides its rows, as digests, so that what has changed can be named."""

    config: str
    code: str
    """The source of this library."""
    packages: str
    """Versions of Python and of the packages that this library needs."""
    machine: str
    """What computes."""
    decoder: str
    """State of the files of the decoder and of its adapters."""


def describe_inputs(config: RunConfig, *beside: str) -> Inputs | None:
    """Digest what decides a run, or a sweep with what is set beside its configuration; None where it is not known."""
    files = _decoder_files(config.decoder)
    if files is None or registry.ADDED or config.pretraining.corpus:
        return None
    templates = [view.template.to_dict() for view in config.extraction.readings.values()]
    settings = {**config.to_dict(), "template": templates if config.views else templates[0]}
    for key in ("caches", "runs", "name"):  # where it goes; the state of what is there is compared by itself
        del settings[key]
    settings |= {"beside": list(beside)} if beside else {}
    devices = [*sorted(map(str, Path("/dev").glob("nvidia[0-9]*"))), *map(os.environ.get, DEVICE_VARIABLES)]
    return Inputs(
        config=digest_json(without_absolute_paths(to_plain(settings))),
        code=digest_code(),
        packages=digest_json(list(package_versions())),
        machine=digest_json([sys.platform, platform.machine(), *devices]),
        decoder=digest_json(_states(files, Path("/"))),
    )


def write_stamp(
    folder: Path, inputs: Inputs, *, task: Task, caches: Sequence["LatentCache"], cache_id: str | None = None
) -> None:
    """Write the stamp of a run that has just ended; `inputs` are from before it began.

    The folder belongs to the cache `cache_id`, the first by default; that of a sweep to none.
    """
    values = {
        "schema": SCHEMA,
        "inputs": asdict(inputs),
        "rows": _digest_rows(task),
        "cache": caches[0].manifest.id if cache_id is None else cache_id,
        "caches": _states((path for cache in caches for path in cache.files), folder),
        "files": _states(_files_of(folder), folder),
    }
    write_file(folder / STAMP, json.dumps(values, indent=1) + "\n")


def find_finished(config: RunConfig, plans: Sequence[str] = (), *, test: str = "") -> RunFolder | None:
    """Find the folder of a finished run of a configuration of which nothing has changed; None where it is to be run.

    With plans, that of a sweep over them which read `test` for some. The task is loaded as in a run, wherever its rows
    come from.
    """
    stamps = [(path.parent, stamp) for path in _stamp_files(config) if (stamp := _read_stamp(path))]
    inputs = describe_inputs(config, *((SWEEP, test) if plans else ())) if stamps else None
    stamps = [
        (folder, stamp)
        for folder, stamp in stamps
        if inputs is not None and stamp["inputs"] == asdict(inputs) and _is_untouched(folder, stamp)
    ]
    if not stamps:
        return None
    task = load_run_task(config)
    name, settings = name_plans(config, SWEEP, plans) if plans else (config.name, config.to_dict())
    if not plans:
        settings["task"]["options"] = {**config.task.options, **task.inferred_options()}
    rows = _digest_rows(task)
    for folder, stamp in stamps:
        if stamp["rows"] == rows and choose_folder(config.runs, name, settings, stamp["cache"]) == folder:
            run = RunFolder(folder)
            try:
                run.values if plans else run.scores  # noqa: B018 - read and checked
            except IcecoreError:
                return None
            return run
    return None


def _stamp_files(config: RunConfig) -> list[Path]:
    try:
        names = sorted(path for path in Path(config.runs).iterdir() if path.name.startswith(config.name))
        return [path / STAMP for path in names if (path / STAMP).is_file()]
    except OSError:
        return []


def _read_stamp(path: Path) -> Values | None:
    """Read a stamp; None where it cannot be read, or is of another version."""
    try:
        stamp = json.loads(read_file(path))
        kinds = {"inputs": dict, "rows": str, "cache": str, "caches": dict, "files": dict}
        is_whole = all(isinstance(stamp[key], kind) for key, kind in kinds.items())
        return stamp if is_whole and stamp["schema"] == SCHEMA else None
    except (OSError, ValueError, KeyError, TypeError, IcecoreError):
        return None


def _is_untouched(folder: Path, stamp: Values) -> bool:
    """Whether the caches and every file of a run are as they were when it ended, and none came."""
    try:
        caches = [folder / name for name in stamp["caches"]]
        return bool(_states(_files_of(folder), folder) == stamp["files"] and _states(caches, folder) == stamp["caches"])
    except (OSError, ValueError):
        return False


def _files_of(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.name != STAMP)


def _states(files: Iterable[Path], start: Path) -> States:
    states = {}
    for path in files:
        state = path.stat()
        states[os.path.relpath(path, start)] = [state.st_size, state.st_mtime_ns, state.st_ctime_ns]
    return states


def _decoder_files(spec: DecoderSpec) -> list[Path] | None:
    """List the files of a decoder and of its adapters; None where they are not known."""
    names = [part.name for part in spec.merge] or [spec.name]
    listed = [list_decoder_files(name) for name in names]
    for adapter in (*spec.adapters, *(adapter for part in spec.merge for adapter in part.adapters)):
        folder = Path(adapter).expanduser()
        listed.append(_files_of(folder) or None if folder.is_dir() else None)
    files = [path for paths in listed for path in paths or ()]
    return None if any(paths is None for paths in listed) else files


def _digest_rows(task: Task) -> str:
    """Digest all that a run reads of its task."""
    places = [list(rows[ROW]) for rows in task.splits.values() if ROW in rows.column_names]
    return digest_json(json.loads(json.dumps([task.describe().to_plain(), task.inferred_options(), places])))
