"""`icecore run`: says what it is about to do, finds a finished run without torch, and computes what is missing."""

from extract.files import write_file
from probes.cli.commands import RunArgs
from probes.cli.main import leave_at_once, stop_signals
from probes.cli.screen import show_run, watcher_of
from probes.runs.config_file import dump_config
from probes.runs.folder import command_line
from probes.runs.run_stamp import find_finished


def run_command(args: RunArgs) -> int:
    """Extract what is missing, fit every head, report."""
    watcher = watcher_of(args)
    if args.dry_run:
        with stop_signals(leave_at_once):
            from probes.cli.run_commands import estimate

        return estimate(args.config.check_heads(), watcher)
    finished = find_finished(args.config)
    if finished is not None:
        folder, scores = finished.path, finished.scores
        watcher.say(f"{folder} is finished, and nothing that decides it has changed: nothing is computed")
    else:
        with stop_signals(leave_at_once):
            from probes.runs.run import run

        result = run(args.config.check_heads(), watcher=watcher, command=command_line())
        folder, scores = result.folder, result.record
    if args.data is not None:
        path = folder.with_name(f"{args.config.name}.yaml")
        write_file(path, dump_config(args.data, path))
    show_run(folder, scores)
    return 0
