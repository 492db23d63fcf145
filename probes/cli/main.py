"""Entry point of the command `icecore`: finds the command, runs it, and turns errors into sentences."""

import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from itertools import takewhile
from typing import Any, NoReturn

from extract.errors import (
    CacheWarning,
    CodeWarning,
    ConfigWarning,
    IcecoreError,
    TruncationWarning,
    UsageError,
    first_line,
    printable,
)
from extract.registry import PLACE, allow_code
from extract.threads import set_threads
from probes.cli.arguments import Command, Computing, print_help, print_program_help, read_allowed, read_command
from probes.cli.commands import COMMANDS, HELP_GROUPS, find_command

USAGE_ERROR, FAILURE, INTERRUPTED = 2, 1, 130
FILES = 1 << 16
"""Open at once, where the system allows so many."""
MESSAGE = "icecore: interrupted; every row and head that is done is kept. Run the same command to go on.\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return 0, 1 for an error, told in one sentence, 2 for wrong usage, or 130 when interrupted."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    _allow_files()
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


def _allow_files() -> None:
    """Let the process open as many files as it may: every cache of a sweep and every shard is one."""
    with suppress(ImportError, OSError, ValueError):
        import resource  # which Windows lacks

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = FILES if hard == resource.RLIM_INFINITY else min(hard, FILES)
        if soft != resource.RLIM_INFINITY and soft < most:
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _run(name: str, *argv: str) -> int:
    if name in ("", "-h", "--help"):
        print_program_help(COMMANDS.values(), HELP_GROUPS)
        return 0 if name else USAGE_ERROR
    if name == "--version":
        from importlib.metadata import version

        sys.stdout.write(f"icecore {version('icecore')}\n")
        return 0
    with stop_signals(leave_at_once), warnings.catch_warnings():
        warnings.showwarning = _show_warning
        command = find_command(name)
        if {"-h", "--help"} & set(takewhile(lambda word: word != "--", argv)):
            print_help(command)
            return 0
        args = read_command(command, argv)
        _announce(command, args)
        function = load_command(command)
    typed = PLACE.findall(getattr(args, "head", ""))
    with stop_signals(interrupt), warnings.catch_warnings(), allow_code(typed):
        warnings.showwarning = _show_warning
        return function(args)


def _announce(command: Command, args: Any) -> None:
    """Set the threads of a command that computes, and say what it is about to do before anything large is imported."""
    if not isinstance(args, Computing):
        return
    if args.threads is not None and args.threads < 1:
        raise UsageError(f"--threads is {args.threads}; allowed: a whole number of at least 1.")
    n_threads = None if getattr(args, "ray", None) else set_threads(args.threads)
    if args.quiet or command.name == "demo":
        return
    about = args.announce() if sys.stderr.isatty() else ""  # in a log the sentence of an error stands alone
    parts = [f"{command.name} {about}"] * bool(about)
    if n_threads:
        noun = "thread" if n_threads == 1 else "threads"
        parts.append(f"computing with {n_threads} {noun}, as other cores are busy (--threads N sets the number)")
    if parts:
        sys.stderr.write(printable("\n".join([*parts, ""])))
        sys.stderr.flush()


def load_command(command: Command) -> Callable[[Any], int]:
    """Import the function of a command, and with it what it works with."""
    function: Callable[[Any], int] = getattr(import_module(f"probes.cli.{command.module}"), f"{command.name}_command")
    return function


IN_ONE_LINE = (FutureWarning, CacheWarning, CodeWarning, ConfigWarning, TruncationWarning)
_default_showwarning = warnings.showwarning


def _show_warning(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
    """Show in one line what concerns the user's own files, texts and options; other warnings as Python does."""
    if issubclass(category, IN_ONE_LINE) and not isinstance(message, str):
        sys.stderr.write(printable(f"icecore: {message}\n"))
    else:
        _default_showwarning(message, category, *where, **more)


# --- Ctrl-C and SIGTERM: one message and one exit code, whatever the command is doing ---


@contextmanager
def stop_signals(handler: Callable[..., object]) -> Iterator[None]:
    """Let `handler` answer Ctrl-C and SIGTERM inside the block; in the main thread, unless they are ignored."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    replaced = {number: before for number, before in handlers.items() if before not in (signal.SIG_IGN, None)}
    for number in replaced:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number, before in replaced.items():
            signal.signal(number, before)


def interrupt(*_: object) -> NoReturn:
    """Raise KeyboardInterrupt, so that what is being written is finished."""
    raise KeyboardInterrupt


def leave_at_once(*_: object) -> NoReturn:
    """End the process; while modules are imported an exception may be swallowed or shown by the module."""
    sys.stderr.write(MESSAGE)
    sys.stderr.flush()
    os._exit(INTERRUPTED)


if __name__ == "__main__":
    sys.exit(main())
