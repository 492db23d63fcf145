"""What commands take, and reading it: dataclasses become signatures, which cyclopts reads, checks and describes."""

import inspect
import os
import sys
import textwrap
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, get_args, get_origin, get_type_hints

from extract.errors import UsageError, printable, unknown_name
from extract.records import to_plain
from extract.registry import PLACE, allow_code
from probes.adaptation.adapt_config import AdaptConfig, read_adapt_config
from probes.runs.config_file import ROLES, Pairs, list_keys, read_config, read_data, require_typed
from probes.runs.run_config import RunConfig

if TYPE_CHECKING:
    from cyclopts import App, CycloptsError

# --- What a command is ---


@dataclass(frozen=True)
class Argument:
    """One argument of a command: what its field declares, and the field's name, type and default."""

    help: str
    """What it is, without a full stop."""
    is_positional: bool = False
    """Whether it goes by its position rather than by its name."""
    values: tuple[str, ...] = ()
    """The only values allowed; any where empty."""
    read: Callable[[str], object] | None = None
    """What reads its text, and may refuse it; the type where there is none."""
    completes: str = ""
    """What a shell offers for it: a table of `icecore list`, `configs`, `files` or nothing."""
    alias: str = ""
    """Another name of an option."""
    needs: tuple[str, ...] = ()
    """Options of which one must be typed with it, as without them it would do nothing."""
    excludes: tuple[str, ...] = ()
    """Other arguments that cannot be typed with it, as one of the two would be ignored."""
    key: str = ""
    """Name of its field."""
    hint: object = str
    """Its type."""
    default: object = ""
    """Its value when it is absent; `MISSING` where it cannot be."""

    @classmethod
    def of(cls, item: Field[object], hint: object) -> "Argument":
        """Complete what a field declares."""
        declared: Argument = item.metadata["argument"]
        values = get_args(hint) if get_origin(hint) is Literal else declared.values
        return replace(declared, key=item.name, hint=hint, default=item.default, values=values)

    @property
    def name(self) -> str:
        """How it is written: in capitals for a place, else with dashes."""
        return self.key.upper() if self.is_positional else f"--{self.key.replace('_', '-')}"

    @property
    def names(self) -> tuple[str, ...]:
        """All names of an option."""
        return tuple(filter(None, (self.name, self.alias)))

    @property
    def is_many(self) -> bool:
        """Whether it takes all words that are left."""
        return self.is_positional and get_origin(self.hint) is tuple

    @property
    def is_repeated(self) -> bool:
        """Whether an option may be typed several times."""
        return not self.is_positional and self.read is None and self.hint == tuple[str, ...]


def option(default: Any, help: str, **more: Any) -> Any:
    """Declare an option, which goes by its name; `more` are fields of `Argument`."""
    return field(default=default, metadata={"argument": Argument(help, **more)})


def positional(help: str, default: Any = MISSING, **more: Any) -> Any:
    """Declare an argument that goes by its position; one without a default must be given."""
    return field(default=default, metadata={"argument": Argument(help, is_positional=True, **more)})


@dataclass(frozen=True, kw_only=True)
class Args:
    """The arguments of a command, read."""

    typed: frozenset[str] = field(default=frozenset(), compare=False)
    """Names of the arguments that were typed."""
    checks_heads: ClassVar[bool] = True
    """Whether the values of heads' options are checked while the command line is read, which loads torch."""

    def announce(self) -> str:
        """Say in a line what the command is about to do, behind its name; empty where that is soon done."""
        return ""


@dataclass(frozen=True, kw_only=True)
class Configured(Args):
    """The arguments of a command that takes a configuration."""

    config: RunConfig = field(default_factory=RunConfig)
    """The configuration."""
    data: Any = None
    """The file of data that stands for one."""
    fits_heads: ClassVar[bool] = False
    """Whether the heads of the configuration are fitted."""

    def announce(self) -> str:
        """Name the run, its task, decoder, plan and heads; or the file whose texts are extracted."""
        config, file = self.config, getattr(self, "file", "") or getattr(self, "texts", "")
        subject = f"{file}:" if file else f"{config.name}: {config.task.name}"
        names = getattr(self, "head", "") or ", ".join(config.heads)
        heads = f"; heads {names}" if self.fits_heads else ""
        return f"{subject} on {config.decoder.name}, plan {config.extraction.plan}{heads}"


@dataclass(frozen=True, kw_only=True)
class Adapting(Args):
    """The arguments of a command that takes the settings of an adaptation."""

    config: AdaptConfig
    """The settings."""

    def announce(self) -> str:
        """Name the adapter, its decoder, plan, objectives and steps."""
        config = self.config
        objectives = " + ".join(sorted(config.used))
        return f"{config.name}: {objectives} on {config.decoder.name}, plan {config.plan}, {config.steps:,} steps"


@dataclass(frozen=True, kw_only=True)
class Watched(Args):
    """The arguments of a command that reports its progress."""

    quiet: bool = option(False, "report no progress")
    verbose: bool = option(False, "report every epoch or step, a line each", excludes=("--quiet",))


@dataclass(frozen=True, kw_only=True)
class Computing(Watched):
    """The arguments of a command that computes."""

    threads: int | None = option(None, "threads that compute; when absent, as many as there are cores that are free")


@dataclass(frozen=True)
class Command:
    """One command."""

    name: str
    """What it is called."""
    args: type[Args]
    """What it takes."""
    module: str
    """Where its function is, in `probes.cli`."""
    group: str
    """The title under which the help lists it."""
    examples: tuple[str, ...]
    """Command lines that show it, without `icecore`."""
    imports_code: bool
    """Whether a file that it reads may name code of the user's."""

    @property
    def record(self) -> type | None:
        """The record of the configuration that follows, as a file, as keys, or both; None where none does."""
        return (
            RunConfig if issubclass(self.args, Configured) else AdaptConfig if issubclass(self.args, Adapting) else None
        )

    @property
    def takes_config(self) -> bool:
        """Whether a configuration follows."""
        return self.record is not None

    @property
    def arguments(self) -> tuple[Argument, ...]:
        """Its arguments; the file of a configuration last among the positional ones."""
        hints = get_type_hints(self.args)
        declared = [item for item in fields(self.args) if "argument" in item.metadata]
        declared.sort(key=lambda item: item.name in Computing.__dataclass_fields__)
        file = {RunConfig: [CONFIG], AdaptConfig: [ADAPT_CONFIG]}.get(self.record, [])  # type: ignore[arg-type]
        shared = file + [ALLOW_CODE] * self.imports_code
        return (*(Argument.of(item, hints[item.name]) for item in declared), *shared)

    @property
    def positional(self) -> tuple[Argument, ...]:
        """Arguments that go by their position."""
        return tuple(argument for argument in self.arguments if argument.is_positional)

    @property
    def options(self) -> tuple[Argument, ...]:
        """Arguments that go by their name."""
        return tuple(argument for argument in self.arguments if not argument.is_positional)

    @property
    def about(self) -> list[str]:
        """What it does: the paragraphs of its record's docstring, the first of which is one sentence."""
        return [" ".join(text.split()) for text in (inspect.getdoc(self.args) or "").split("\n\n")]

    @property
    def usage(self) -> str:
        """How to write it, in a line."""
        words = []
        for item in self.positional:
            words += [item.name] * (item.default is MISSING)
            words += [f"[{item.name} ...]"] * item.is_many
            words += [f"[{item.name}]"] * (item.default is not MISSING and not item.is_many)
        more = ["[options]"] * bool(self.options or self.takes_config) + ["[--KEY VALUE ...]"] * self.takes_config
        return " ".join(["icecore", self.name, *words, *more])


CONFIG = Argument(
    "YAML file, a file of data, as reviews.csv, or a shipped config by name (icecore list configs)",
    is_positional=True,
    completes="configs",
    key="config",
)
ADAPT_CONFIG = replace(CONFIG, help="YAML file of an adaptation", completes="files")
ALLOW_CODE = Argument(
    "modules that files may import, with ',' between them: those of your own poolings, masks and heads",
    key="allow_code",
)


# --- Reading a command line ---

STANDARD_INPUT = "\0"
"""What stands for `-` on the way through cyclopts, which takes it for an option."""


def read_command(command: Command, argv: Sequence[str]) -> Any:
    """Read the arguments of a command as its dataclass."""
    from cyclopts import CycloptsError

    own, pairs = split_keys(command, argv)
    words = [command.name, *_with_dashed_values(command, own)]
    try:
        bound = build_app(command).parse_args(words, exit_on_error=False, print_error=False)[1]
    except CycloptsError as error:
        raise _explain(command, error) from None
    typed = {key: _with_dashes(value) for key, value in bound.arguments.items() if value != ()}
    names = frozenset(argument.name for argument in command.arguments if argument.key in typed)
    _refuse_ignored(command, names)
    values = {item.key: _read(item, typed[item.key]) for item in command.arguments if item.key in typed}
    values.pop("allow_code", None)  # which was read before anything could be imported
    options = [argument.name.lstrip("-") for argument in command.options]
    if command.record is AdaptConfig:
        values["config"] = read_adapt_config(pairs, file=values.pop("config", ""), options=options)
    elif command.takes_config:
        file = values.pop("config", "")
        require_typed(pairs, options)  # before a file of data is asked what only a mistyped option would have said
        roles = {key: values[key] for key in ROLES if f"--{key}" in names}
        data = values["data"] = read_data(file, roles)
        if data is not None:
            sys.stderr.write(printable(f"{data}\n"))
        values["config"] = read_config(
            pairs, file="" if data else file, data=data, options=options, checks_heads=command.args.checks_heads
        )
    return command.args(typed=names, **values)


def split_keys(command: Command, argv: Sequence[str]) -> tuple[list[str], Pairs]:
    """Separate the words of a command line from the keys of a configuration, which keep their order."""
    if not command.takes_config:
        return list(argv), []
    names = {"--help", *(name for argument in command.options for name in argument.names)}
    own, pairs, words = list[str](), Pairs(), list(argv)
    while words:
        word = words.pop(0)
        name, equals, text = word.partition("=")
        if word == "--":
            return [*own, word, *words], pairs
        if not name.startswith("--") or name in names:
            own.append(word)
        else:
            value = text if equals else words.pop(0) if words and not words[0].startswith("--") else None
            pairs.append((name.removeprefix("--"), value))
    return own, pairs


def _with_dashed_values(command: Command, words: Sequence[str]) -> list[str]:
    """Write `--layer -1,-4` as `--layer=-1,-4`, and a `-` alone by what stands for it."""
    options = [argument for argument in command.options if argument.hint is not bool]
    names = {name for argument in options for name in argument.names}
    joined: list[str] = []
    for word in words:
        if "--" not in joined and joined[-1:] and joined[-1] in names and word[:1] == "-" != word[1:2]:
            joined[-1] += f"={word}"
        else:
            joined.append(STANDARD_INPUT if word == "-" else word)
    return joined


def read_allowed(argv: Sequence[str]) -> list[str]:
    """Read the modules behind every `--allow-code`, before anything that may import one."""
    words = argv[: argv.index("--")] if "--" in argv else argv
    values = [
        text if equals else following
        for word, following in zip(words, [*words[1:], ""], strict=False)
        for name, equals, text in [word.partition("=")]
        if name == "--allow-code"
    ]
    return [name for value in values for name in map(str.strip, value.split(",")) if name]


def _with_dashes(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_with_dashes, value))
    return "-" if value == STANDARD_INPUT else value


def _read(argument: Argument, value: Any) -> Any:
    if argument.read is None:
        return tuple(value) if argument.is_repeated else value
    with allow_code(PLACE.findall(value)):  # code that is typed is the user's own
        return argument.read(value)


def _refuse_ignored(command: Command, typed: frozenset[str]) -> None:
    """Refuse options of which one would be ignored; `UsageError` names it and what is in its way."""
    for argument in command.arguments:
        if argument.name not in typed:
            continue
        for other in argument.excludes:
            if other in typed:
                raise UsageError(f"{argument.name} and {other} exclude each other; give one of them.")
        if argument.needs and not typed & set(argument.needs):
            raise UsageError(f"{argument.name} does nothing by itself; give it with {' or '.join(argument.needs)}.")


NOUNS = {int: "a whole number", float: "a number"}
DATA = (".csv", ".tsv", ".jsonl", ".parquet", ".conll")
"""Suffixes of files of data."""


def _explain(command: Command, error: "CycloptsError") -> UsageError:
    """Turn what cyclopts says of a command line into a sentence of ours."""
    from cyclopts import exceptions

    names = {name: argument for argument in command.arguments for name in argument.names}
    token = getattr(error, "token", None)
    argument = names.get(error.argument.name if error.argument else token.keyword if token else "")
    text = f"{str(error).rstrip('.')}; allowed: {command.usage}."
    if isinstance(error, exceptions.UnknownOptionError):
        word = (error.token.keyword or error.token.value).partition("=")[0]
        options = [name for name in names if name.startswith("-")]
        text = str(unknown_name(f"option of {command.name}", word, [*options, "--help"]))
    elif isinstance(error, exceptions.UnusedCliTokensError) and error.unused_tokens:
        word = _with_dashes(error.unused_tokens[0])
        text = f"{word!r} is one word too many; allowed: {command.usage}."
        if command.takes_config and Path(word).suffix.lower() in DATA:
            files = "{name: pair-files, options: {files: {train: FILE, test: FILE}}}"
            text += f" Several files go into a config, as task: {files}."
    elif isinstance(error, exceptions.RepeatArgumentError) and argument:
        text = f"{argument.name} is typed twice; give it once."
    elif isinstance(error, exceptions.MissingArgumentError) and argument:
        text = f"{argument.name} lacks its value; allowed: {argument.name} VALUE, or {argument.name}=VALUE."
        if argument.is_positional:
            text = f"{argument.name} is missing ({argument.help}); allowed: {command.usage}."
    elif isinstance(error, exceptions.CoercionError) and argument and token:
        text = _explain_value(argument, _with_dashes(token.value))
    return UsageError(text)


def _explain_value(argument: Argument, value: str) -> str:
    if argument.values:
        return str(unknown_name(argument.key, value, argument.values))
    if argument.hint is bool:
        return f"{argument.name} is given {value!r}; allowed: {argument.name} alone, without a value."
    nouns = [noun for kind, noun in NOUNS.items() if kind in (argument.hint, *get_args(argument.hint))]
    return f"{argument.name} is {value!r}; allowed: {nouns[0] if nouns else 'a text'}."


# --- For cyclopts ---


def build_app(command: Command) -> "App":
    """Build the program with which cyclopts reads the command line of one command."""
    from cyclopts import App

    app = App("icecore", version_flags=(), help_flags=(), result_action="return_value")
    app.command(_function(command), name=command.name)
    return app


def _function(command: Command) -> Callable[..., None]:
    """Write the arguments of a command as the signature of a function, which is what cyclopts reads."""
    from cyclopts import Parameter

    def run(**_: object) -> None:
        raise NotImplementedError

    parameters = []
    for argument in command.arguments:
        by_name, alone, many = (
            inspect.Parameter.KEYWORD_ONLY,
            inspect.Parameter.POSITIONAL_ONLY,
            inspect.Parameter.VAR_POSITIONAL,
        )
        kind = many if argument.is_many else alone if argument.is_positional else by_name
        hint: Any = str if argument.is_many or argument.read else argument.hint
        if argument.is_repeated:
            hint = list[str] | None  # cyclopts checks defaults where pydantic is imported
        if argument.values:
            hint = Literal[argument.values]
        about = Parameter(name=argument.names, negative="", required=argument.default is MISSING)
        default: Any = argument.default
        if argument.is_many or default is MISSING:
            default = inspect.Parameter.empty
        elif argument.values:
            default = default if default in argument.values else argument.values[0]
        elif argument.is_repeated:
            default = None
        elif hint is str and not isinstance(default, str):  # cyclopts checks defaults where pydantic is imported
            default = ""
        parameters.append(inspect.Parameter(argument.key, kind, default=default, annotation=Annotated[hint, about]))
    parameters.sort(key=lambda parameter: parameter.kind)
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return run


# --- Help ---

WIDTH, INDENT = 80, 24
"""Columns of the help, and of the names in it."""
ABOUT = "Drill a core through a frozen decoder: cache every layer once, then probe it with light heads."
GROUPS = {
    "decoder": "decoder",
    "extraction": "what is extracted",
    "task": "task",
    "pretraining": "pretraining",
    "": "heads and run",
}
"""Sections of a configuration, in the order of the help; keys of no section are in the last."""


def print_program_help(commands: Collection[Command], groups: Iterable[str]) -> None:
    """Print the help of the program: its commands, under the titles of their groups."""
    rows = {
        title: [(command.name, command.about[0]) for command in commands if command.group == title] for title in groups
    }
    last = ["icecore COMMAND --help lists the options of a command."]
    _print_help("icecore COMMAND [options]", ABOUT, rows, last, indent=14)


def print_help(command: Command) -> None:
    """Print the help of a command: its arguments, and the keys of a configuration."""
    groups = {
        "arguments": [(item.name, _about(item)) for item in command.positional],
        "options": [(_label(item), _about(item)) for item in command.options],
    }
    if command.record is not None:
        groups |= {title: [] for title in GROUPS.values()}
        for key in list_keys(command.record):
            section = key.name.rpartition(".")[0].partition(".")[0]
            row = (f"--{key.name} {_noun(key.hint)}", _with_default(key.help, key.default))
            groups.setdefault(GROUPS.get(section, section), []).append(row)
    examples = [strong("examples:"), *(f"  icecore {example}" for example in command.examples)]
    _print_help(command.usage, " ".join(command.about), groups, examples)


def _print_help(
    usage: str,
    about: str,
    groups: Mapping[str, Sequence[tuple[str, str]]],
    last: Sequence[str],
    *,
    indent: int = INDENT,
) -> None:
    """Print usage, what it does, groups of names and texts in two columns, and what comes last."""
    lines = [f"{strong('usage:')} {usage}", "", *textwrap.wrap(about, WIDTH)]
    for title, rows in groups.items():
        if rows:
            lines += ["", strong(f"{title}:"), *two_columns(rows, indent)]
    sys.stdout.write("\n".join([*lines, "", *last, ""]))


def _label(argument: Argument) -> str:
    names = ", ".join(argument.names)
    return names if argument.hint is bool else f"{names} {_noun(argument.hint)}"


def _about(argument: Argument) -> str:
    """Describe an argument with its values, where its help does not name them, and its default."""
    text = argument.help
    if not all(value in text for value in argument.values):
        text = f"{' or '.join(argument.values)}; {text}"
    return _with_default(text, argument.default)


def _noun(hint: object) -> str:
    nouns = {"tuple": "[A,B]", "dict": "{KEY: VALUE}", "int": "N", "float": "X", "bool": "BOOL"}
    return nouns.get(getattr(get_origin(hint) or hint, "__name__", ""), "VALUE")


def _with_default(text: str, default: object) -> str:
    if default in ("", None, False, (), MISSING) or isinstance(default, Mapping):
        return text
    shown = ",".join(map(str, default)) if isinstance(default, tuple) else default
    if isinstance(default, tuple) and any(map(is_dataclass, default)):
        import yaml

        shown = yaml.safe_dump(to_plain(default), default_flow_style=True, width=1000).strip()
    return f"{text.removesuffix('.')} (default: {shown})"


def two_columns(rows: Iterable[tuple[str, str]], indent: int = INDENT, *, width: int = WIDTH) -> Iterator[str]:
    """Lay out names and texts in two columns; a name that is too long has its own line."""
    for name, text in rows:
        lines = textwrap.wrap(text, width - indent, break_on_hyphens=False) or [""]
        if len(name) > indent - 4:
            yield f"  {name}"
        else:
            yield f"  {name:{indent - 2}}{lines.pop(0)}"
        yield from (f"{' ' * indent}{line}" for line in lines)


def strong(text: str) -> str:
    """Make a heading bold on a terminal that has colours."""
    is_plain = not sys.stdout.isatty() or "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb"
    return text if is_plain else f"\x1b[1m{text}\x1b[0m"
