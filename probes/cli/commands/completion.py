"""`icecore completion`: a script that completes commands, options and names in a shell."""

import sys
from types import SimpleNamespace

from probes.cli.completion import write_script


def completion_command(found: SimpleNamespace) -> int:
    """Print the script of a shell."""
    sys.stdout.write(write_script(found.shell))
    return 0
