"""Entry point of the command `icecore`: finds the command, runs it, and turns errors into sentences."""

import sys
import warnings
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from extract.errors import CacheWarning, IcecoreError, first_line, printable, unknown_name
from probes.cli.stopping import INTERRUPTED, MESSAGE, interrupt, leave_at_once, stop_signals

COMMANDS = {
    "run": ("configured", "extract what is missing, fit the heads, report"),
    "extract": ("configured", "extract the latents of a config's task (--dry-run)"),
    "sweep": ("sweep", "one config under many mask plans, shared blocks computed once"),
    "verify": ("verify", "prove a mask plan on a decoder: the mask of every block"),
    "attention": ("verify", "attention maps and sink mass under a plan"),
    "fit": ("configured", "fit and report on a cache that is already there"),
    "score": ("score", "score new pairs, texts or words with a finished run"),
    "predict": ("predict", "predict a file with a finished run, or serve it (--serve)"),
    "table": ("table", "results of runs and sweeps as one table (CSV, LaTeX, Markdown)"),
    "embed": ("embed", "latents of the texts of a file, to a cache or a table"),
    "inspect": ("inspect", "say what a cache is and how complete"),
    "list": ("listing", "list decoders, plans, tasks, heads and all else that can be named"),
    "fetch": ("fetch", "obtain a known decoder"),
}
"""Command to its module in `probes.cli.commands`, whose function is called like it, and what it does."""
USAGE_ERROR, FAILURE = 2, 1


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return 0, 1 for an error, told in one sentence, 2 for wrong usage, or 130 when interrupted."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help"):
        sys.stdout.write(usage())
        return 0 if arguments else USAGE_ERROR
    if arguments[0] == "--version":
        from importlib.metadata import version

        sys.stdout.write(f"icecore {version('icecore')}\n")
        return 0
    try:
        return _run(arguments[0], arguments[1:])
    except KeyboardInterrupt:
        sys.stderr.write(MESSAGE)
        return INTERRUPTED
    except BrokenPipeError:
        return 0
    except IcecoreError as error:
        sys.stderr.write(printable(f"icecore: {error}\n"))
    except OSError as error:  # a full disk, a folder that cannot be written, a limit of the process
        why = printable(first_line(error))
        sys.stderr.write(f"icecore: {why}; check the disk, its permissions and limits, and run again.\n")
    return FAILURE if arguments[0] in COMMANDS else USAGE_ERROR


def _run(name: str, arguments: Sequence[str]) -> int:
    with stop_signals(leave_at_once):
        command = _find_command(name)
    with stop_signals(interrupt), warnings.catch_warnings():
        warnings.showwarning = _show_warning
        return command(arguments)


def _find_command(name: str) -> Callable[[Sequence[str]], int]:
    if name not in COMMANDS:
        raise unknown_name("command", name, COMMANDS)
    module = import_module(f"probes.cli.commands.{COMMANDS[name][0]}")
    command: Callable[[Sequence[str]], int] = getattr(module, f"{name}_command")
    return command


_default_showwarning = warnings.showwarning


def _show_warning(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
    """Show a renamed option or a file passed over in one line; other warnings as Python does."""
    if category in (FutureWarning, CacheWarning) and not isinstance(message, str):
        sys.stderr.write(printable(f"icecore: {message}\n"))
    else:
        _default_showwarning(message, category, *where, **more)


def usage() -> str:
    """Return the text of `icecore --help`."""
    lines = [f"  {name:9} {text}" for name, (_, text) in COMMANDS.items()]
    return (
        "usage: icecore COMMAND [options]\n\n"
        "Drill a core through a frozen decoder: cache every layer once, then probe it with light heads.\n\n"
        "commands:\n" + "\n".join(lines) + "\n\nicecore COMMAND --help tells the options of a command.\n"
    )


if __name__ == "__main__":
    sys.exit(main())
