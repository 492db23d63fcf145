"""`icecore report`: the page of a finished run, or of several side by side."""

from types import SimpleNamespace

from probes.cli.screen import show
from probes.runs.reports import write_report


def report_command(found: SimpleNamespace) -> int:
    """Write the page of a finished run from its folder, or one page of several runs side by side."""
    show(f"written: {write_report(found.runs, found.out)}")
    return 0
