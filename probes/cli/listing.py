"""Commands that need no decoder: lists of names, downloads, completion, versions, and files to start from."""

import platform
import sys
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import version
from itertools import takewhile
from pathlib import Path
from shutil import get_terminal_size

from extract.decoders.decoder_spec import GROUPS, KNOWN_DECODERS, TAPS, DecoderSpec, known_decoder
from extract.decoders.fetch import missing_gguf_modules
from extract.errors import ConfigError, UsageError, printable
from extract.files import write_file
from extract.inputs.template import SETS, TEMPLATES
from extract.masks.mask_plan import KINDS, PLANS
from extract.poolings.pooling_table import AUTO, AUTO_RULE, POOLINGS, TOKEN_SETS, WORD_POOLINGS
from extract.registry import option_names, parameter_names
from probes.cli.arguments import Command, strong, two_columns
from probes.cli.commands import (
    COMMANDS,
    CompletionArgs,
    DemoArgs,
    FetchArgs,
    InitArgs,
    ListArgs,
    TableArgs,
    VersionArgs,
)
from probes.data.task_table import CORPORA, INSTRUCTIONS, TASKS
from probes.heads.head_table import AUTOENCODER, HEADS, SOURCES
from probes.networks.network_options import LOSSES
from probes.runs.config_file import (
    ROLES,
    config_of_data,
    dump_config,
    list_keys,
    read_data,
    shipped,
    shipped_configs,
)
from probes.runs.encoders import ENCODERS

# --- Tables of names ---

Rows = Iterable[tuple[str, str]]
"""Names, and a text about each."""
MOST_INDENT = 32
"""Columns of the names; a longer one has a line of its own."""


def _with_options(text: str, options: Iterable[str]) -> str:
    return f"{text}; options: {', '.join(options) or 'none'}"


def _decoders() -> Rows:
    for entry in KNOWN_DECODERS.values():
        more = ", also from the package index" * bool(entry.wheel) + f"; {entry.note}" * bool(entry.note)
        blocks = f"{entry.n_layers} blocks, width {entry.width}"
        yield entry.name, f"{entry.hub_id}, {entry.family}, {blocks}, {entry.license}{more}"


def _poolings() -> Rows:
    yield from ((name, text) for name, (_, text) in POOLINGS.items())
    yield from ((name, text) for name, (_, _, text) in TOKEN_SETS.items())
    yield f"words: {AUTO}", AUTO_RULE
    yield from ((f"words: {name}", text) for name, (_, text) in WORD_POOLINGS.items())


def _layers() -> Rows:
    yield from GROUPS.items()
    yield from ((f"block_07.{tap}", f"of the seventh block {value}") for tap, value in TAPS.items())


def _templates() -> Rows:
    yield from ((name, f"{entry.source}: {entry.show()}") for name, entry in TEMPLATES.items())
    yield from ((name, f"the mean of {len(names)}: {names[0]} to {names[-1]}") for name, names in SETS.items())


def _encoders() -> Rows:
    for name, entry in ENCODERS.items():
        rest = {"template": entry.template, "plan": entry.plan, "layers": entry.layers}
        parts = [f"{key} {value}" for key, value in rest.items() if value]
        parts += ["the text twice"] * (entry.repeat > 1) + ["standardised"] * (entry.transform != "none")
        yield name, ", ".join([f"pooling {entry.pooling}", *parts])


def _corpora() -> Rows:
    yield from ((name, _with_options(text, parameter_names(load))) for name, (load, text) in CORPORA.items())
    yield "any task", "the texts of the task; its own options"


def _heads() -> Rows:
    for name, entry in HEADS.items():
        yield name, _with_options(f"{entry.kind}: {entry.description}", entry.options())
    description = "layer-wise, for `start: pretrained` or `frozen`, or by `icecore fit --head autoencoder`"
    options = (option for source in SOURCES for option in option_names(source))
    yield AUTOENCODER, _with_options(f"pretraining.autoencoder: {description}", options)


def _instructions() -> Rows:
    for name, entry in INSTRUCTIONS.items():
        of_task = f"; task {entry.task}" * bool(entry.task)
        yield name, f"{repr(entry.prompt)[1:-1] or 'none'} ({entry.source}{of_task})"


def _about(config: Path) -> str:
    """Read the first sentence of the comment that a config opens with, behind its command and runtime."""
    lines = takewhile(lambda line: line.startswith("#"), config.read_text(encoding="utf-8").splitlines()[1:])
    text = " ".join(line.removeprefix("# ") for line in lines)
    return next(s for s in text.split(". ") if not s.startswith("Runtime")).removesuffix(".")


TABLES: dict[str, Callable[[], Rows]] = {
    "decoders": _decoders,
    "plans": PLANS.items,
    "masks": lambda: ((name, f"{row.what} ({row.source})") for name, row in KINDS.items()),
    "poolings": _poolings,
    "layers": _layers,
    "templates": _templates,
    "encoders": _encoders,
    "tasks": lambda: (
        (name, _with_options(f"{entry.kind}: {entry.description}", entry.options())) for name, entry in TASKS.items()
    ),
    "corpora": _corpora,
    "heads": _heads,
    "losses": lambda: ((name, text) for name, (_, text) in LOSSES.items()),
    "instructions": _instructions,
    "configs": lambda: ((name, _about(path)) for name, path in shipped_configs().items()),
}


def list_command(args: ListArgs) -> int:
    width = get_terminal_size().columns
    for name in args.table or TABLES:
        rows = [(printable(key), printable(text)) for key, text in TABLES[name]()]
        indent = min(max(len(key) for key, _ in rows) + 4, MOST_INDENT)
        sys.stdout.write("\n".join([strong(name), *two_columns(rows, indent, width=width)]) + "\n")
    return 0


# --- Completion ---

KEYS = {
    "decoder.name": "decoders",
    "extraction.plan": "masks",
    "extraction.poolings": "poolings",
    "task.name": "tasks",
    "heads": "heads",
    "pretraining.corpus": "corpora",
}
"""Keys whose values begin with a name of a table of `icecore list`."""
HEADERS = {
    "bash": "# Completion of icecore for bash: icecore completion bash >> ~/.bashrc",
    "zsh": "# Completion of icecore for zsh: icecore completion zsh >> ~/.zshrc\n"
    "(( $+functions[compdef] )) || { autoload -U compinit && compinit; }\nautoload -U +X bashcompinit && bashcompinit",
}


def write_script(shell: str) -> str:
    """Write the script of bash, or of zsh, which reads the same one."""
    cases = [f'        {pattern}) _icecore_offer "{" ".join(names)}"; return ;;' for pattern, names in _values()]
    for command in COMMANDS.values():
        values = [name for argument in command.positional for name in (*argument.values, *_names(argument.completes))]
        cases.append(
            f'        "{command.name} "*) _icecore_offer "{" ".join(_options(command))}" "{" ".join(values)}" ;;'
        )
    return "\n".join(
        [
            HEADERS[shell],
            "_icecore_offer() {  # options once a dash is typed, else names; files where there are none",
            '    local word="${COMP_WORDS[COMP_CWORD]}" words="${2-$1}"',
            '    [[ "$word" == -* ]] && words="$1"',
            '    COMPREPLY=($(compgen -W "$words" -- "$word"))',
            "}",
            "_icecore() {",
            "    COMPREPLY=()",
            '    if [ "$COMP_CWORD" -eq 1 ]; then',
            f'        _icecore_offer "{" ".join([*COMMANDS, "--help", "--version"])}"',
            "        return",
            "    fi",
            '    case "${COMP_WORDS[1]} ${COMP_WORDS[COMP_CWORD-1]}" in',
            *cases,
            "    esac",
            "}",
            "complete -o default -F _icecore icecore",
            "",
        ]
    )


def _names(table: str) -> list[str]:
    """List the names of a table that can be typed as they are; none where it is no table."""
    rows = TABLES[table]() if table in TABLES else []
    names = dict.fromkeys(name.removeprefix("words: ") for name, _ in rows)
    return [name for name in names if all(c.isalnum() or c in "-_." for c in name)]


def _options(command: Command) -> list[str]:
    own = [name for argument in command.options for name in argument.names]
    keys = [f"--{key.name}" for key in list_keys()] if command.takes_config else []
    return [*own, *keys, "--help"]


def _values() -> Iterator[tuple[str, list[str]]]:
    """Pair the commands and options before a value with the names that it may be."""
    for command in COMMANDS.values():
        for argument in command.options:
            if names := [*argument.values, *_names(argument.completes)]:
                yield f'"{command.name} {argument.name}"', names
    configured = [command.name for command in COMMANDS.values() if command.takes_config]
    for key in list_keys():
        if names := [*key.values, *_names(KEYS.get(key.name, ""))]:
            yield "|".join(f'"{command} --{key.name}"' for command in configured), names


def completion_command(args: CompletionArgs) -> int:
    sys.stdout.write(write_script(args.shell))
    return 0


# --- Decoders ---


def fetch_command(args: FetchArgs) -> int:
    known_decoder(args.name)  # before anything heavy is loaded
    from extract.decoders.fetch import fetch_decoder
    from probes.cli.screen import show, watcher_of

    fetched = fetch_decoder(args.name, source=args.source, report=watcher_of(args).say)
    show(f"{fetched.folder} ({fetched.source}, {fetched.revision})")
    return 0


# --- What is installed ---


NOSINK = "nosink-bidirectional:10"
DEMO = (
    ("run", "configs/demo.yaml"),
    ("run", "configs/demo.yaml", "--extraction.plan", NOSINK),
    ("run", "configs/demo-words.yaml"),
    ("compare", "runs/demo", "runs/demo-nosink-bidirectional-10", "--out", "runs/demo-compared"),
)
"""The commands of the demo, one after the other."""


def version_command(args: VersionArgs) -> int:
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


# --- Files to start from ---


def init_command(args: InitArgs) -> int:
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


def table_command(args: TableArgs) -> int:
    from probes.runs.results import write_table

    text = write_table(args.runs, args.format)
    if args.out:
        write_file(Path(args.out), text)
    else:
        sys.stdout.write(printable(text))
    return 0
