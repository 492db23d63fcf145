"""A whole run in a process of its own, for tests that kill it: `python -m tests.probes.child_run ARGUMENTS...`.

With `--save FOLDER` first it saves heads instead, for ever, each of one value that its record says too.
"""

import itertools
import sys
from pathlib import Path

import torch

from probes.cli.main import main
from probes.fitting.saved import save_fitted
from probes.heads.classes.logistic_probe import LinearProbe


def save_for_ever(folder: Path) -> None:
    """Save one head after the other into the same folder; prints a letter once it has begun."""
    head = LinearProbe(64, ["a", "b", "c"])
    for value in itertools.count():
        head.load_state_dict({key: torch.full_like(part, value) for key, part in head.state_dict().items()})
        save_fitted(folder, head, {"name": "logistic-probe", "value": value})
        if value == 0:
            sys.stdout.write("x")
            sys.stdout.flush()


if __name__ == "__main__":
    if sys.argv[1] == "--save":
        save_for_ever(Path(sys.argv[2]))
    sys.exit(main(sys.argv[1:]))
