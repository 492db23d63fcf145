"""Entry point of the command `icecore`: finds the command, runs it, and turns errors into sentences."""

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from extract.errors import IcecoreError, unknown_name

COMMANDS = {
    "run": ("probes.cli.configured", "run_command", "extract what is missing, fit the heads, report"),
    "extract": ("probes.cli.configured", "extract_command", "extract the latents of a config's task (--dry-run)"),
    "sweep": ("probes.cli.sweep", "sweep_command", "one config under many mask plans, shared blocks computed once"),
    "verify": (
        "probes.cli.verify",
        "verify_command",
        "prove a mask plan on a decoder: the mask of every block",
    ),
    "attention": ("probes.cli.verify", "attention_command", "attention maps and sink mass under a plan"),
    "fit": ("probes.cli.configured", "fit_command", "fit and report on a cache that is already there"),
    "score": ("probes.cli.score", "score_command", "score new pairs, texts or words with a finished run"),
    "inspect": ("probes.cli.inspect", "inspect_command", "say what a cache is and how complete"),
    "list": ("probes.cli.listing", "list_command", "list decoders, plans, tasks, heads and all else that can be named"),
    "fetch": ("probes.cli.fetch", "fetch_command", "obtain a known decoder"),
}
USAGE_ERROR, FAILURE, INTERRUPTED = 2, 1, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return 0, 1 for an error, told in one sentence, 2 for wrong usage, or 130 for Ctrl-C."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help"):
        sys.stdout.write(usage())
        return 0 if arguments else USAGE_ERROR
    if arguments[0] == "--version":
        from importlib.metadata import version

        sys.stdout.write(f"icecore {version('icecore')}\n")
        return 0
    try:
        if arguments[0] not in COMMANDS:
            raise unknown_name("command", arguments[0], COMMANDS)
        module, function, _ = COMMANDS[arguments[0]]
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            code: int = getattr(import_module(module), function)(arguments[1:])
    except IcecoreError as error:
        sys.stderr.write(f"icecore: {error}\n")
        return USAGE_ERROR if arguments[0] not in COMMANDS else FAILURE
    except KeyboardInterrupt:
        sys.stderr.write(
            "icecore: interrupted; every row and head that is done is kept. Run the same command to go on.\n"
        )
        return INTERRUPTED
    except BrokenPipeError:
        return 0
    return code


_default_showwarning = warnings.showwarning


def _show_warning(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
    """Show a renamed option in one line; other warnings as Python does."""
    if category is FutureWarning and not isinstance(message, str):
        sys.stderr.write(f"icecore: {message}\n")
    else:
        _default_showwarning(message, category, *where, **more)


def usage() -> str:
    """Return the text of `icecore --help`."""
    lines = [f"  {name:9} {text}" for name, (_, _, text) in COMMANDS.items()]
    return (
        "usage: icecore COMMAND [options]\n\n"
        "Drill a core through a frozen decoder: cache every layer once, then probe it with light heads.\n\n"
        "commands:\n" + "\n".join(lines) + "\n\nicecore COMMAND --help tells the options of a command.\n"
    )


if __name__ == "__main__":
    sys.exit(main())
