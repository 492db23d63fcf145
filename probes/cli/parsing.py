"""Reading a run's configuration: a YAML file, and any key of it on the command line."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from jsonargparse import ArgumentError, ArgumentParser, set_parsing_settings

from extract.errors import ConfigError, IcecoreError, first_line, unknown_name
from probes.cli.config_file import is_file, load_config_file, load_yaml
from probes.cli.sections import check_arguments, check_sections, refuse_trust_from_files
from probes.runs.config import RunConfig

# Options of heads and tasks are checked by the head or task itself, and merged key by key into what the file says.
FREE_FORM = ("heads", "task.options", "pretraining.options", "pretraining.autoencoder")

Flags = dict[str, tuple[type, Any, str]]


@dataclass(frozen=True)
class Parsed:
    """A configuration and the flags beside it."""

    config: RunConfig
    flags: dict[str, Any]


def make_parser(command: str, description: str | None) -> ArgumentParser:
    """Make the parser of a command that takes no configuration."""
    return ArgumentParser(prog=f"icecore {command}", description=description, exit_on_error=False)


def parse_command(parser: ArgumentParser, argv: Sequence[str], *, usage: str) -> Any:
    """Parse the arguments of a command that takes no configuration; the error says how to use it."""
    try:
        return parser.parse_args(list(argv))
    except ArgumentError as error:
        text = " ".join(str(error).split())
        command = parser.prog.removeprefix("icecore ")
        raise ConfigError(f"{command} cannot be done: {text}. Usage: {parser.prog} {usage}.") from error


def read_arguments(command: str, argv: Sequence[str], *, description: str, flags: Flags) -> Parsed:
    """Read the arguments of a command that takes a configuration.

    A YAML file comes first, if any, then `--key value` or `--key=value` for any key, and the flags of the command: name
    to type, default and help text. An unknown key is refused with the nearest match.
    """
    arguments = list(argv)
    if arguments and not arguments[0].startswith("-"):
        arguments[:1] = ["--config", arguments[0]]
    parser = _build_parser(command, description, flags)
    files = {name: load_config_file(name) for name in _config_files(arguments)}
    for name, values in files.items():
        check_sections(values, name)
    check_arguments(arguments)
    try:
        arguments, free = _split_free(arguments)
        found = parser.parse_args(arguments)
        _refuse_unknown_empty(files.values(), parser)
        values = found.as_dict()
        _merge_free(values, free)
        made = parser.instantiate(parser.parse_object(values))
        config = RunConfig(**{key: getattr(made, key) for key in RunConfig.__dataclass_fields__})
    except IcecoreError:
        raise
    except Exception as error:  # the parser raises a dozen unrelated types, all about these values
        raise _explain(error, parser) from error
    refuse_trust_from_files(config, arguments)
    return Parsed(config, {name: getattr(made, name) for name in flags})


def _config_files(arguments: Sequence[str]) -> Iterator[str]:
    """Name the files given with --config, as `_split_free` and the parser will meet them."""
    for argument, following in zip(arguments, [*arguments[1:], ""], strict=False):
        if argument == "--config":
            _require_file(following)
            yield following
        elif argument.startswith("--config="):
            _require_file(argument.partition("=")[2])
            yield argument.partition("=")[2]
        elif "*" in argument and "&" in argument:
            load_yaml(argument.partition("=")[2] or argument, where="an argument")


def _require_file(name: str) -> None:
    if not is_file(name):
        known = sorted(str(path) for path in Path("configs").rglob("*.yaml")) if Path("configs").is_dir() else []
        near = get_close_matches(name, known, n=1, cutoff=0.5)
        guess = f" Did you mean {near[0]!r}?" if near else ""
        raise ConfigError(f"there is no config file {name!r}.{guess} Give a YAML file, as configs/demo.yaml.")


def _build_parser(command: str, description: str, flags: Flags) -> ArgumentParser:
    set_parsing_settings(docstring_parse_attribute_docstrings=True)
    parser = ArgumentParser(
        prog=f"icecore {command} [CONFIG]", description=description, exit_on_error=False, allow_abbrev=False
    )
    parser.add_argument("--config", action="config", help="YAML file; may also stand first, without --config")
    for name, (kind, default, text) in flags.items():
        option = f"--{name.replace('_', '-')}"
        if kind is bool:
            parser.add_argument(option, dest=name, action="store_true", help=text)
        else:
            parser.add_argument(option, dest=name, type=kind, default=default, help=text)
    parser.add_class_arguments(RunConfig)
    return parser


def _split_free(arguments: Sequence[str]) -> tuple[list[str], list[tuple[str, Any]]]:
    """Take `--heads.NAME.KEY value` and `--task.options.KEY value` out of the arguments."""
    kept: list[str] = []
    free: list[tuple[str, Any]] = []
    rest = iter(arguments)
    for argument in rest:
        key, equals, value = argument.removeprefix("--").partition("=")
        if argument.startswith("--") and key.startswith(tuple(f"{name}." for name in FREE_FORM)):
            if not equals:
                value = next(rest, "")
            free.append((key, load_yaml(value, where=f"--{key}")))
        else:
            kept.append(argument)
    return kept, free


def _merge_free(values: dict[str, Any], free: list[tuple[str, Any]]) -> None:
    for key, value in free:
        prefix = next(name for name in FREE_FORM if key.startswith(f"{name}."))
        place = values
        for part in [*prefix.split("."), *key.removeprefix(f"{prefix}.").split(".")[:-1]]:
            if not isinstance(place.get(part), dict):  # a single value in the file gives way
                place[part] = {}
            place = place[part]
        place[key.rsplit(".", 1)[1]] = value
    for group, key in (("task", "options"), ("pretraining", "options"), ("pretraining", "autoencoder")):
        values[group][key] = values[group][key] or {}  # a key left empty in YAML is null


def _refuse_unknown_empty(files: Iterable[dict[str, Any]], parser: ArgumentParser) -> None:
    """Refuse an unknown key that holds an empty mapping: the parser drops it before it looks at its name."""
    for values in files:
        for key in _empty_keys(values):
            if key not in _keys(parser) and not key.startswith(tuple(f"{name}." for name in FREE_FORM)):
                raise _unknown_key(key, parser)


def _empty_keys(values: Any, prefix: str = "") -> Iterator[str]:
    for key, value in values.items():
        if value == {}:
            yield f"{prefix}{key}"
        elif isinstance(value, dict):
            yield from _empty_keys(value, f"{prefix}{key}.")


def _explain(error: Exception, parser: ArgumentParser) -> IcecoreError:
    """Turn the parser's message into one sentence, with the nearest match where a key or a value is unknown."""
    text = re.sub(r"<class '(\w+)'>", r"\1", " ".join(str(error).split()))
    choice = re.search(r'key "([\w.-]+)": Expected a typing\.Literal\[(.*)\]\. Got value: (.*)', text)
    if choice:
        return unknown_name(choice[1], choice[3].rstrip("."), re.findall(r"'([^']*)'", choice[2]))
    unknown = re.search(r"unrecognized arguments: --([\w.-]+)", text) or re.search(r"Option '([\w.-]+)'", text)
    inside = re.search(r"Group '([\w.-]+)' does not accept option '([\w.-]+)'", text)
    key = ".".join(inside.groups()) if inside else unknown.group(1) if unknown else ""
    if not key:
        reason = text.rstrip(".") if isinstance(error, ArgumentError | TypeError) else first_line(error)
        return ConfigError(f"the configuration cannot be used: {reason}.")
    return _unknown_key(key, parser)


def _unknown_key(key: str, parser: ArgumentParser) -> ConfigError:
    known = sorted(_keys(parser))
    near = get_close_matches(key, known, n=1, cutoff=0.5)
    guess = f" Did you mean {near[0]!r}?" if near else ""
    return ConfigError(f"unknown key {key!r}.{guess} Allowed: {', '.join(known)}.")


def _keys(parser: ArgumentParser) -> list[str]:
    hidden = {"help", "config", "print_config", "print_shtab"}
    return [action.option_strings[0].removeprefix("--") for action in parser._actions if action.dest not in hidden]
