"""`icecore push`: a finished run on the hub."""

from types import SimpleNamespace

from extract.errors import UsageError
from probes.cli.screen import show, watcher_of
from probes.export.hub import push_run, stage_run


def push_command(found: SimpleNamespace) -> int:
    """Send a run with its cache and a card to a repository, or write what would be sent to a folder."""
    if bool(found.repo) == bool(found.to):
        raise UsageError(
            "give one of --repo OWNER/NAME, which uploads, and --to FOLDER, which writes there what would be uploaded."
        )
    has_cache = not found.no_cache
    if found.to:
        for file in stage_run(found.run, found.to, has_cache=has_cache):
            show(str(file))
        show(f"nothing was uploaded; {found.to} holds what --repo would send.")
        return 0
    report = watcher_of(found).say
    show(push_run(found.run, found.repo, is_public=found.public, has_cache=has_cache, report=report))
    return 0
