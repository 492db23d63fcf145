"""What a command takes, and reading it: places in order, options with or without a value, then keys of a config."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from extract.errors import UsageError, unknown_name
from extract.own.gate import allow_code
from extract.own.names import PLACE

NOUNS: dict[Any, str] = {int: "a whole number", float: "a number"}


@dataclass(frozen=True)
class Argument:
    """One argument of a command.

    Attributes:
        name: In capitals for a place, such as `RUN`; with dashes for an option, such as `--out`.
        help: What it is, without a full stop.
        default: Its value when it is absent; a place without a `count` cannot be.
        kind: Type of the value, or what reads it; `bool` for an option without one.
        count: Of a place: `?` for one that may be left out, `*` for any number, `+` for at least one.
        values: The only values allowed; any where empty.
        completes: What a shell offers for it: a table of `icecore list`, `configs`, `files` or nothing.
        alias: Another name of an option.
        needs: Options of which one must be typed with it, as without them it would do nothing.
        excludes: Options and places that cannot be typed with it, as one of the two would be ignored.
    """

    name: str
    help: str
    default: Any = ""
    kind: Callable[[str], Any] = str
    count: str = ""
    values: tuple[str, ...] = ()
    completes: str = ""
    alias: str = ""
    needs: tuple[str, ...] = ()
    excludes: tuple[str, ...] = ()

    @property
    def is_option(self) -> bool:
        """Whether it goes by its name rather than by its place."""
        return self.name.startswith("-")

    @property
    def key(self) -> str:
        """Name of the value once it is read."""
        return self.name.lstrip("-").replace("-", "_").lower()

    def read(self, text: str) -> Any:
        """Read a value; `UsageError` for one that is not allowed."""
        if self.values and text not in self.values:
            raise UsageError(str(unknown_name(self.key, text, self.values)))
        try:
            with allow_code(PLACE.findall(text)):  # code that is typed is the user's own
                return self.kind(text)
        except ValueError:
            raise UsageError(f"{self.name} is {text!r}; allowed: {NOUNS[self.kind]}.") from None


ALLOW_CODE = Argument(
    "--allow-code", "modules that files may import, with ',' between them: those of your own poolings, masks and heads"
)


def read_allowed(argv: Sequence[str]) -> list[str]:
    """Read the modules behind every `--allow-code`, before anything that may import one."""
    words = argv[: argv.index("--")] if "--" in argv else argv
    values = [
        text if equals else following
        for word, following in zip(words, [*words[1:], ""], strict=False)
        for name, equals, text in [word.partition("=")]
        if name == ALLOW_CODE.name
    ]
    return [name for value in values for name in map(str.strip, value.split(",")) if name]


@dataclass(frozen=True)
class Command:
    """One command.

    Attributes:
        name: What it is called; its function is `NAME_command`.
        module: Where the function is, in `probes.cli.commands`.
        what: What it does, in the list of commands.
        about: The same in a sentence or two, in its own help.
        arguments: What it takes.
        takes_config: Whether a configuration follows, as a file, as keys, or both.
        imports_code: Whether a file that it reads may name code of the user's.
        examples: Command lines that show it, without `icecore`.
    """

    name: str
    module: str
    what: str
    about: str
    arguments: tuple[Argument, ...] = ()
    takes_config: bool = False
    examples: tuple[str, ...] = ()
    imports_code: bool = True

    @property
    def places(self) -> tuple[Argument, ...]:
        """Arguments that go by their place, that of a configuration last."""
        config = Argument("CONFIG", "YAML file, as configs/demo.yaml", "", count="?", completes="configs")
        return (*(each for each in self.arguments if not each.is_option), *([config] if self.takes_config else []))

    @property
    def options(self) -> tuple[Argument, ...]:
        """Arguments that go by their name."""
        return (*(each for each in self.arguments if each.is_option), *([ALLOW_CODE] if self.imports_code else []))

    @property
    def usage(self) -> str:
        """How to write it, in a line."""
        forms = {"": "{0}", "?": "[{0}]", "*": "[{0} ...]", "+": "{0} [{0} ...]"}
        places = [forms[each.count].format(each.name) for each in self.places]
        more = ["[options]"] * bool(self.options or self.takes_config) + ["[--KEY VALUE ...]"] * self.takes_config
        return " ".join(["icecore", self.name, *places, *more])


Pairs = list[tuple[str, str | None]]
"""Keys of a configuration on the command line, each with its value; None where that is missing."""


def read_command(command: Command, argv: Sequence[str]) -> tuple[SimpleNamespace, Pairs]:
    """Read the arguments of a command.

    Returns:
        Their values by key, and as `typed` the names of those that were typed; and the options that are not its own,
        with their values, where a configuration follows.

    Raises:
        UsageError: An argument is unknown, missing, not allowed, typed twice, or would be ignored beside the others.
    """
    options = {name: each for each in command.options for name in (each.name, each.alias) if name}
    found: dict[str, Any] = {each.key: each.default for each in command.options}
    given, rest, typed = list[str](), Pairs(), set[str]()
    words = list(argv)
    while words:
        word = words.pop(0)
        name, equals, text = word.partition("=")
        if word == "--":
            given, words = [*given, *words], []
        elif not word.startswith("-") or word == "-":
            given.append(word)
        elif name not in options and not (command.takes_config and word.startswith("--")):
            raise UsageError(str(unknown_name(f"option of {command.name}", name, [*options, "--help"])))
        elif name in options and options[name].name in typed:
            raise UsageError(f"{name} is typed twice; give it once.")
        elif name in options and options[name].kind is bool:
            if equals:
                raise UsageError(f"{name} is given {text!r}; allowed: {name} alone, without a value.")
            found[options[name].key] = True
            typed.add(options[name].name)
        else:
            value = text if equals else words.pop(0) if words and not words[0].startswith("--") else None
            if name in options:
                found[options[name].key] = options[name].read(require_value(name, value))
                typed.add(options[name].name)
            else:
                rest.append((name.removeprefix("--"), value))
    places = _places(command, given)
    for place in command.arguments:
        if not place.is_option and places[place.key] not in (place.default, list(place.default)):
            typed.add(place.name)
    _refuse_ignored(command, typed)
    return SimpleNamespace(**found, **places, typed=frozenset(typed)), rest


def _refuse_ignored(command: Command, typed: set[str]) -> None:
    """Refuse options of which one would be ignored; `UsageError` names it and what is in its way."""
    for argument in command.arguments:
        if argument.name not in typed:
            continue
        for other in argument.excludes:
            if other in typed:
                raise UsageError(f"{argument.name} and {other} exclude each other; give one of them.")
        if argument.needs and not typed & set(argument.needs):
            raise UsageError(f"{argument.name} does nothing by itself; give it with {' or '.join(argument.needs)}.")


def require_value(name: str, value: str | None) -> str:
    """Return the value of an option; `UsageError` where it is missing."""
    if value is None:
        raise UsageError(f"{name} lacks its value; allowed: {name} VALUE, or {name}=VALUE.")
    return value


def _places(command: Command, given: list[str]) -> dict[str, Any]:
    """Hand the words without a name to the places, in order."""
    found: dict[str, Any] = {}
    rest = list(given)
    for place in command.places:
        if place.count in ("*", "+"):
            taken, rest = [place.read(word) for word in rest], []
            found[place.key] = taken
        else:
            taken = [place.read(word) for word in rest[:1]]
            rest = rest[1:]
            found[place.key] = taken[0] if taken else place.default
        if not taken and place.count in ("", "+"):
            raise UsageError(f"{place.name} is missing ({place.help}); allowed: {command.usage}.")
    if rest:
        raise UsageError(f"{rest[0]!r} is one word too many; allowed: {command.usage}.")
    return found
