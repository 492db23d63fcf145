"""Reading the arguments of a command and the configuration that follows them."""

from collections.abc import Sequence
from types import SimpleNamespace

from probes.cli.arguments import Command, read_command
from probes.cli.config import read_config


def read_arguments(command: Command, argv: Sequence[str]) -> SimpleNamespace:
    """Read the arguments of a command and its configuration, which is `config` of the result; see `read_config`."""
    found, pairs = read_command(command, argv)
    options = [option.name.lstrip("-") for option in command.options]
    found.config = read_config(pairs, file=found.config, options=options)
    return found
