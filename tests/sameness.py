"""Numbers, identities, options and names of this version, in files that two versions can be compared by.

    python -m tests.sameness write FOLDER [CASE ...]
    python -m tests.sameness compare FOLDER FOLDER

`write` runs commands on a tiny decoder, a case each: the sample configurations made small, every kind of task with
every head (those of `tests.archive.make_archive`), extractions of many sorts, and what reads finished runs. It takes
minutes on one core. Only public names and the command line are used. What differs from run to run (times, versions) is
left out; `compare` prints the lines that differ and exits with 1 if there are any.
"""

import argparse
import contextlib
import difflib
import inspect
import io
import json
import os
import re
import shutil
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import Any
from unittest import mock

import h5py
import torch
import yaml

import icecore
from probes.cli.main import main as icecore_main
from tests.archive.make_archive import AUTOENCODER, COMMANDS, FEW, SCORED, TOKENS, score, write_files

CONFIGS = Path(__file__).resolve().parent.parent / "configs"
SHOWN = 12
VARYING = (
    "batches",
    "seconds",
    "commit",
    "versions",
    "products",
    "command",
    "sha256",
    "config_sha256",
    "record_sha256",
    "source",
)
"""Keys that differ between two runs (rows of `batches` are proved when they are closed, which time decides), or sum up
files that hold such keys."""
FITTED: dict[str, dict[str, Any]] = {
    "cosine-mlp": FEW,
    "cosine-linear": FEW,
    "siamese-cosine": {**FEW, "hidden": 8},
    "token-classifier": TOKENS,
    "token-mix": TOKENS,
    "token-normed": TOKENS,
    "few-shot-probe": {"rows": 1, "draws": 2},
}
PLANS = """backward bidirectional:1 nosink-causal local3:1+backward [causal,bidirectional] extend/backward:1
extra/bidirectional:1 inter-stack/bidirectional:1 inter-block/bidirectional:1 causal~tp1-2 causal~kv1-2
causal~skip1@1"""
EXTRACTIONS = [
    *(f"--extraction.plan {plan}" for plan in PLANS.split()),
    "--extraction.poolings last,mean,weighted-mean,first,max,median,token:0,last:2,role:text",
    "--extraction.template.name echo --extraction.poolings echo-last,echo-mean,reba-last,reba-mean",
    "--extraction.template.name prompt-eol --extraction.template.bos force",
    "--extraction.layers taps:value,taps:attention,block_01.mid,final_norm",
    "--extraction.storage_dtype bfloat16 --decoder.dtype bfloat16",
    "--decoder.name tiny-llama@random-1",
]
READING = """
layers runs/masked --resamples 100 --orders 10 --out tables/pairs.csv
layers runs/classes --resamples 100 --orders 10 --out tables/classes.csv
layers runs/words --resamples 100 --orders 10 --out tables/words.csv
layers runs/retrieval --resamples 100 --out tables/retrieval.csv
compare runs/pairs runs/masked --out tables/compared
compare runs/pairs runs/masked --by-layer --out tables/by-layer
compare runs/pairs runs/numbers runs/classes --across --out tables/across
geometry runs/masked runs/pairs --out tables/geometry
export safetensors runs/masked tables/masked.safetensors --layer 1
predict runs/masked pairs.txt --out tables/predicted.csv
table runs/pairs runs/masked --out tables/table.csv
report runs/pairs
sweep plans.yaml --k 0-2 --k0 0-2 --search coordinate --budget 0.9 --task.pairs 40
fit pairs.yaml --head autoencoder
"""


def small(config: Path) -> dict[str, Any]:
    """Read a sample configuration and make it tiny."""
    settings: dict[str, Any] = yaml.safe_load(config.read_text(encoding="utf-8"))
    text = json.dumps(settings)
    settings = json.loads(re.sub(r"(bidirectional|backward|causal):\d+", r"\1:1", text))
    heads = {name: {**(options or {}), **FITTED.get(name, {})} for name, options in settings.get("heads", {}).items()}
    settings |= {"decoder": {"name": "tiny-llama", "device": "cpu"}, "heads": heads, "bootstrap": 100}
    settings["task"] |= {"pairs": 160 if "banking" in config.stem else 24}
    settings["seeds"] = settings.get("seeds", [0])[:2]
    settings["name"] = f"{config.parent.name}-{config.stem}"
    if "pretraining" in settings:
        settings["pretraining"] |= {"texts": 40, "autoencoder": AUTOENCODER}
    return settings


def cases() -> dict[str, Sequence[str]]:
    """Return every command by the name of its case, in the order in which they are run."""
    made = {" ".join(command[:2]): command for command in COMMANDS}
    sampled = {}
    for config in sorted(path for path in CONFIGS.rglob("*.yaml") if path.parent.name != "adapt"):
        settings = small(config)
        Path(f"{settings['name']}.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
        is_sweep = "sweep" in config.stem
        more = ["--kinds", "backward,nosink-bidirectional", "--k", "0-2"] if is_sweep else []
        sampled[str(config.relative_to(CONFIGS))] = ["sweep" if is_sweep else "run", f"{settings['name']}.yaml", *more]
    common = ["extract", "--texts", "texts.txt", "--decoder.name", "tiny-llama", "--decoder.device", "cpu"]
    merge = "[{name: tiny-llama, weight: 0.5}, {name: tiny-llama@random-1, weight: 0.5}]"
    extracted = {text: text.split() for text in EXTRACTIONS} | {"merge": ["--decoder.merge", merge]}
    extracted = {
        name: [*common, *words, "--caches", f"caches/{i:02}"] for i, (name, words) in enumerate(extracted.items())
    }
    return {**made, **sampled, **extracted, **{line: line.split() for line in READING.strip().splitlines()}}


def run(command: Sequence[str], root: str) -> str:
    """Run a command; return what it says, without times, figures and the folder."""
    said = io.StringIO()
    torch.manual_seed(0)
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said), warnings.catch_warnings():
        code = icecore_main([*command])
    text = said.getvalue().replace(root, ".")
    return "" if code == 0 else f"exit {code}: {text.strip().splitlines()[-1]}\n"


def plain(value: Any) -> Any:
    """Leave out of a record what varies."""
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items() if key not in VARYING}
    return [plain(inner) for inner in value] if isinstance(value, list) else value


def arrays_of(cache: Path) -> dict[str, str]:
    """Digest every array of a cache, and its identity; the certificate holds times."""
    found = {}
    with h5py.File(cache, "r") as file:
        names: list[str] = []
        file.visit(names.append)
        for name in sorted(names):
            if isinstance(file[name], h5py.Dataset) and "certificate" not in name:
                array = file[name][()]
                found[name] = sha256(array.tobytes() if hasattr(array, "tobytes") else bytes(array)).hexdigest()[:24]
    found["identity"] = json.dumps(icecore.open_cache(cache).identity.to_plain(), sort_keys=True)
    return found


def dump_files(folder: Path) -> Iterator[tuple[str, str]]:
    """Give the name and the text of every file that a comparison needs."""
    for path in sorted(path for part in ("runs", "caches", "tables") for path in Path(folder, part).rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.suffix == ".h5":
            yield f"{name}.json", json.dumps(arrays_of(path), indent=1)
        elif path.suffix == ".json" and "metadata" not in name:
            values = json.loads(path.read_text(encoding="utf-8"))
            if path.name == "index.json":  # its digest sums up shards, which hold times
                del values["digest"]
            if path.name == "stamp.json":  # times of files, and digests of this library and of what is installed
                values = {**values, "inputs": sorted(values["inputs"]), "caches": sorted(values["caches"])}
                values["files"] = sorted(values["files"])
            if path.name.endswith(".drawn.json"):  # digests of pages, which hold times
                values = {what: sorted(made["files"]) for what, made in values.items() if what != "schema"}
            yield name, json.dumps(plain(values), indent=1, sort_keys=True)
        elif path.suffix in (".csv", ".tex", ".txt"):
            yield name, path.read_text(encoding="utf-8")
        elif path.suffix in (".safetensors", ".parquet", ".npy"):
            yield f"{name}.digest", sha256(path.read_bytes()).hexdigest()
    runs = [path.parent for path in sorted(Path(folder, "runs").glob("*/scores.json"))]
    runs = [run for run in runs if json.loads((run / "scores.json").read_text("utf-8"))["what"] != "pretraining"]
    frame = icecore.results(runs)
    yield "results.csv", frame[frame["record"] != "seconds"].to_csv(index=False)


def signature(thing: Any) -> str:
    """Return a signature without the paths of modules."""
    try:
        return re.sub(r"\b(?:extract|probes)(?:\.\w+)*\.(?=\w)| at 0x\w+", "", str(inspect.signature(thing)))
    except (TypeError, ValueError):
        return ""


def public_names() -> Iterator[str]:
    """List what `icecore` exports: names, signatures, and the public members of classes."""
    for name in sorted(icecore.__all__):
        thing = getattr(icecore, name)
        yield f"{name}{signature(thing)}"
        for member in sorted(dir(thing)) if isinstance(thing, type) else ():
            if not member.startswith("_"):
                yield f"{name}.{member}{signature(getattr(thing, member, None))}"


def config_keys(spec: Any, prefix: str = "") -> Iterator[str]:
    """List the keys of a configuration with their defaults."""
    for field in fields(spec):
        value = getattr(spec, field.name)
        if is_dataclass(value):
            yield from config_keys(value, f"{prefix}{field.name}.")
        else:
            yield f"{prefix}{field.name} = {value!r}"


def options() -> Iterator[str]:
    """List every option of every command with its default, as the help tells them."""
    yield from config_keys(icecore.RunConfig())
    for command in re.findall(r"^  ([a-z]+)  ", said_by("--help"), re.MULTILINE):
        for chunk in re.split(r"\n\W*(?=--[a-z])", said_by(command, "--help"))[1:]:
            default = re.search(r"[(\[]default: (.*?)[)\]]", " ".join(chunk.split()))
            yield f"{command} {chunk.split()[0].rstrip(',')} {default[1] if default else ''}".rstrip()


def said_by(*command: str) -> str:
    """Return what a command writes."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
        icecore_main([*command])
    return said.getvalue()


def write(target: Path, only: Sequence[str] = ()) -> None:
    """Run the cases in a folder of their own and write what came of them."""
    torch.set_num_threads(1)
    target.mkdir(parents=True)
    data = os.environ.get("ICECORE_DATA", "")
    sys.stderr.write("" if data else "ICECORE_DATA is not set: configurations that need it are skipped\n")
    with tempfile.TemporaryDirectory() as name, contextlib.chdir(name):
        root = os.path.realpath(name)
        sys.path.insert(0, root)
        write_files(Path(root))
        Path("tables").mkdir()
        failed = []
        with mock.patch("matplotlib.figure.Figure.savefig", lambda *_, **__: None):
            for case, command in cases().items():
                if not only or case in only:
                    failed.append(f"{case}: {run(command, root)}")
                    sys.stderr.write(failed[-1].rstrip("\n") + "\n")
        files = dict(dump_files(Path(root)))
        files["failed.txt"] = "".join(line for line in failed if "exit" in line)
        scored = [run for run in SCORED if Path("runs", run, "scores.json").is_file()]
        heads_of = {run: json.loads(Path("runs", run, "scores.json").read_text("utf-8"))["heads"] for run in scored}
        predicted = [f"{run} {head} {score(run, head)!r}" for run in scored for head in heads_of[run]]
        files |= {"predicted.txt": "\n".join(predicted), "api.txt": "\n".join(public_names())}
        files |= {"options.txt": "\n".join(sorted(set(options()))), "lists.txt": said_by("list")}
        for path, text in files.items():
            place = target / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text.replace(root, ".").replace(data or root, "DATA"), encoding="utf-8")
        heads = re.findall(r"^  ([\w-]+)  ", said_by("list", "heads"), re.MULTILINE)
        never = [head for head in heads if not any(Path("runs").glob(f"**/*{head}"))]
        sys.stderr.write(f"{len(files)} files; heads without a run: {', '.join(never) or 'none'}\n")


def compare(one: Path, other: Path) -> list[str]:
    """List the lines that differ, of each file the first few."""
    files = [{path.relative_to(root).as_posix(): path for path in root.rglob("*.*")} for root in (one, other)]
    texts = [
        {name: path.read_text("utf-8").splitlines() for name, path in part.items() if path.is_file()} for part in files
    ]
    report = []
    for name in sorted(set(chain(*texts))):
        a, b = (text.get(name) for text in texts)
        if a is None or b is None:
            report.append(f"{name}: only in {other if a is None else one}")
        elif a != b:
            lines = [
                line for line in difflib.unified_diff(a, b, n=0, lineterm="") if not line.startswith(("---", "+++"))
            ]
            report += [f"{name}: {len(lines)} lines of difference", *(f"    {line[:300]}" for line in lines[:SHOWN])]
    return report


def main() -> int:
    """Write or compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("write", "compare"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("more", nargs="*", help="the other folder, or cases to run")
    given = parser.parse_args()
    if given.action == "write":
        shutil.rmtree(given.folder, ignore_errors=True)
        write(given.folder.resolve(), given.more)
        return 0
    report = compare(given.folder, Path(*given.more))
    sys.stdout.write("\n".join(report or ["the same"]) + "\n")
    return int(bool(report))


if __name__ == "__main__":
    sys.exit(main())
