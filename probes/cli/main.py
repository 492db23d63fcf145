"""Entry point of the command `icecore`: finds the command, runs it, and turns errors into sentences."""

import sys
import warnings
from collections.abc import Callable, Sequence
from importlib import import_module
from itertools import takewhile
from types import SimpleNamespace
from typing import Any

from extract.errors import CacheWarning, CodeWarning, IcecoreError, TruncationWarning, UsageError, first_line, printable
from extract.own.gate import allow_code
from extract.own.names import PLACE
from probes.cli.arguments import Command, read_allowed, read_command
from probes.cli.help import command_help, program_help
from probes.cli.stopping import INTERRUPTED, MESSAGE, interrupt, leave_at_once, stop_signals
from probes.cli.table import find_command

USAGE_ERROR, FAILURE = 2, 1


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return 0, 1 for an error, told in one sentence, 2 for wrong usage, or 130 when interrupted."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        with allow_code(read_allowed(arguments)):  # also what is read before the command runs
            return _run(*(arguments or [""]))
    except KeyboardInterrupt:
        sys.stderr.write(MESSAGE)
        return INTERRUPTED
    except BrokenPipeError:
        return 0
    except IcecoreError as error:
        sys.stderr.write(printable(f"icecore: {error}\n"))
        return USAGE_ERROR if isinstance(error, UsageError) else FAILURE
    except OSError as error:  # a full disk, a folder that cannot be written, a limit of the process
        why = printable(first_line(error))
        sys.stderr.write(f"icecore: {why}; check the disk, its permissions and limits, and run again.\n")
        return FAILURE


def _run(name: str, *argv: str) -> int:
    if name in ("", "-h", "--help"):
        sys.stdout.write(program_help())
        return 0 if name else USAGE_ERROR
    if name == "--version":
        from importlib.metadata import version

        sys.stdout.write(f"icecore {version('icecore')}\n")
        return 0
    with stop_signals(leave_at_once):
        command = find_command(name)
        if {"-h", "--help"} & set(takewhile(lambda word: word != "--", argv)):
            sys.stdout.write(command_help(command))
            return 0
        if command.takes_config:
            from probes.cli.parsing import read_arguments  # which loads the tables of names

            found = read_arguments(command, argv)
        else:
            found, _ = read_command(command, argv)
        run_it = load_command(command)
    typed = PLACE.findall(getattr(found, "head", ""))
    with stop_signals(interrupt), warnings.catch_warnings(), allow_code(typed):
        warnings.showwarning = _show_warning
        return run_it(found)


def load_command(command: Command) -> Callable[[SimpleNamespace], int]:
    """Import the function of a command, and with it what it works with."""
    found: Callable[[SimpleNamespace], int] = getattr(
        import_module(f"probes.cli.commands.{command.module}"), f"{command.name}_command"
    )
    return found


IN_ONE_LINE = (FutureWarning, CacheWarning, CodeWarning, TruncationWarning)
_default_showwarning = warnings.showwarning


def _show_warning(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
    """Show in one line what concerns the user's own files, texts and options; other warnings as Python does."""
    if issubclass(category, IN_ONE_LINE) and not isinstance(message, str):
        sys.stderr.write(printable(f"icecore: {message}\n"))
    else:
        _default_showwarning(message, category, *where, **more)


if __name__ == "__main__":
    sys.exit(main())
