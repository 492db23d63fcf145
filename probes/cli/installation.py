"""What is installed: its versions, its pins, and a demo of it."""

import platform
import sys
from importlib.metadata import version
from pathlib import Path

from extract.decoders.decoder_spec import DecoderSpec
from extract.decoders.fetch import missing_gguf_modules
from extract.errors import ConfigError, UsageError, printable
from extract.files import write_file
from probes.cli.commands import DemoArgs, InitArgs, VersionArgs
from probes.runs.config_file import ROLES, config_of_data, dump_config, read_data, shipped

NOSINK = "nosink-bidirectional:10"
DEMO = (
    ("run", "configs/demo.yaml"),
    ("run", "configs/demo.yaml", "--extraction.plan", NOSINK),
    ("run", "configs/demo-words.yaml"),
    ("compare", "runs/demo", "runs/demo-nosink-bidirectional-10", "--out", "runs/demo-compared"),
)
"""The commands of the demo, one after the other."""


def version_command(args: VersionArgs) -> int:
    """Print versions and device, or the path of the pins."""
    if args.constraints:
        sys.stdout.write(f"{shipped('constraints.txt')}\n")
        return 0
    versions = {name: version(name) for name in ("icecore", "torch", "transformers")}
    rows = {"icecore": versions["icecore"], "python": platform.python_version(), **versions, "device": _device()}
    sys.stdout.write("".join(f"{name:13} {text}\n" for name, text in rows.items()))
    if missing := missing_gguf_modules():
        sys.stdout.write(
            f"The default decoder, {DecoderSpec().name}, comes as a GGUF file where the hub cannot be reached; to read "
            f"it: pip install {' '.join(missing)}\n"
        )
    return 0


def _device() -> str:
    """Name the device that `auto` stands for; torch is imported only where its build knows another than the CPU."""
    if version("torch").endswith("+cpu"):
        return "cpu"
    import torch

    from extract.decoders.decoder import choose_device

    device = choose_device("auto")
    return f"{device}, {torch.cuda.get_device_name(device)}" if torch.device(device).type == "cuda" else str(device)


def demo_command(args: DemoArgs) -> int:
    """Run the demo in the working folder; stops at the first command that fails."""
    from probes.cli.main import main

    for words in DEMO:
        flags = [f"--{flag}" for flag in ("quiet", "verbose") if getattr(args, flag) and words[0] == "run"]
        sys.argv[1:] = words  # reports name the command that makes them again
        sys.stdout.write(f"\n$ icecore {' '.join(words)}\n")
        sys.stdout.flush()
        if args.threads and words[0] == "run":
            flags.append(f"--threads={args.threads}")
        if code := main([*words, *flags]):
            return code
    sys.stdout.write("Look at runs/demo-compared/report.html, runs/demo/report.html and runs/demo-words/report.html.\n")
    return 0


# Commands on files of data, which load no torch: init.


def init_command(args: InitArgs) -> int:
    """Write the configuration that a file of data stands for."""
    roles = {name: getattr(args, name) for name in ROLES if getattr(args, name)}
    data = read_data(args.file, roles)
    if data is None:
        raise UsageError(f"{args.file!r} is no file of data; allowed: CSV, TSV, JSON Lines, Parquet, CoNLL or CoNLL-U.")
    path = Path(args.out or f"{config_of_data(data)['name']}.yaml")
    text = dump_config(data, path)
    if path.exists() and path.read_text(encoding="utf-8", errors="replace") != text:
        raise ConfigError(f"{str(path)!r} is there already; remove it, or name another file with --out.")
    write_file(path, text)
    sys.stdout.write(printable(f"{data}\nwritten: {path}; run it: icecore run {path}\n"))
    return 0
