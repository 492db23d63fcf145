"""A finished run on the hub: heads, scores, report, cache and a card."""

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import yaml

from extract.decoders.decoder_spec import KNOWN_DECODERS
from extract.errors import ConfigError, first_line
from probes.report.scores import seal_scores
from probes.runs.folder import RunFolder
from probes.runs.predict import read_run_folder

TEXTS = {".json", ".yaml", ".md", ".html", ".csv", ".svg", ".txt"}
"""Suffixes of files that are searched for what nobody else should read."""
REST = r"/[^\s\"'<>;,)]*[^\s\"'<>;,).]"
PATH = re.compile(r"(?<![\w.~:/-])/(?:root|home|Users|work|workspace|mnt|opt|tmp|var|data)" + REST)
CLIMBING = re.compile(r"(?<![\w.~:/-])(?:\.\./)+(?:root|home|Users|tmp|var)" + REST)
"""Relative paths that pass the root of the disk."""
TOKEN = re.compile(r"\bhf_[A-Za-z0-9]{16,}\b")
SEALED = ("heads", "manifests", "config.yaml")
"""Files of a run, or folders of them, that cannot be changed without breaking their digests."""
REASONS = {
    401: "the hub does not know you; log in with: hf auth login",
    403: "your token may not write there; make one with write access",
    404: "there is no such owner, or your token may not see it",
}
"""Answers of the hub, and what to do."""


def stage_run(
    run: str | Path,
    folder: str | Path,
    *,
    repo: str = "OWNER/NAME",
    has_cache: bool = True,
    caches: str | Path = "",
) -> list[Path]:
    """Write to a folder what `push_run` uploads: the run folder, its cache under `caches/`, and a card, README.md.

    Files are linked where the disk allows it, and copied otherwise. Absolute paths are shortened to their last part.

    Args:
        run: A finished run.
        folder: A new or empty folder.
        repo: The name of the repository, for the card.
        has_cache: Send the cache too, which may be large.
        caches: Folder of the caches; the one that the run names when empty.

    Returns:
        The files, relative to the folder.

    Raises:
        HeadError: No finished run there.
        CacheError: Its cache is gone; `has_cache=False` sends the rest.
        ConfigError: The folder holds something, or a file has a token of the hub in it; names the file.
    """
    source, target = read_run_folder(run), Path(folder)
    if target.exists() and any(target.iterdir()):
        raise ConfigError(f"folder {str(folder)!r} holds something already; name a new one, or empty it.")
    files = {path.relative_to(source.path): path for path in _plain_files(source.path)}
    if has_cache:
        cache = source.cache(caches)
        files |= {Path("caches", path.relative_to(cache.path.parent)): path for path in cache.files}
    changed = _without_private(files)
    for name, path in files.items():
        copy = target / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        if name in changed:
            copy.write_text(changed[name], "utf-8")
            continue
        try:
            os.link(path, copy)
        except OSError:
            shutil.copyfile(path, copy)
    card = target / "README.md"
    card.unlink(missing_ok=True)  # it may be a link to a file of the run
    card.write_text(_shortened(write_card(source, repo, has_cache=has_cache)), "utf-8")
    return sorted({*files, Path("README.md")})


def _plain_files(folder: Path) -> Iterator[Path]:
    """Yield the files of a run; drafts, links and hidden files are left out."""
    for path in sorted(folder.rglob("*")):
        is_hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if path.is_file() and not path.is_symlink() and not is_hidden:
            yield path


def _without_private(files: Mapping[Path, Path]) -> dict[Path, str]:
    """Return the texts of files that name absolute paths, shortened to their last parts; scores are sealed again."""
    texts = {name: path.read_text("utf-8", errors="replace") for name, path in files.items() if path.suffix in TEXTS}
    changed = {}
    for name, text in texts.items():
        if TOKEN.search(text):
            raise ConfigError(
                f"{str(name)!r} has a token of the hub in it; take it out before the run is sent to others."
            )
        is_sealed = name.parts[0] in SEALED
        if is_sealed and (match := PATH.search(text)):
            raise ConfigError(
                f"{str(name)!r} has the absolute path {match[0][:60]!r} in it, and a digest that forbids to change "
                "it; run again with a path relative to the working folder."
            )
        shortened = _shortened(text)
        if shortened != text and not is_sealed:  # a config keeps its relative paths
            changed[name] = shortened
    scores = Path("scores.json")
    if scores in changed:
        values = json.loads(changed[scores])
        seal = seal_scores(values)
        changed = {
            name: changed.get(name, text).replace(values["sha256"], seal)
            for name, text in texts.items()
            if name in changed or values["sha256"] in text
        }
    return changed


def _shortened(text: str) -> str:
    """Return a text with the last parts of its absolute paths, and of those that pass the root of the disk."""
    for pattern in (PATH, CLIMBING):
        text = pattern.sub(lambda match: Path(match[0]).name, text)
    return text


def write_card(run: RunFolder, repo: str, *, has_cache: bool) -> str:
    """Write the card of a run: metadata, how to load it, and the summary of its report."""
    scores, decoder = run.scores, run.scores.header.decoder
    known = KNOWN_DECODERS.get(str(decoder["name"]).lower())
    base = known.hub_id if known else decoder["name"] if "/" in str(decoder["name"]) else None
    metadata: dict[str, object] = {
        "library_name": "icecore",
        **({"base_model": base} if base else {}),
        "tags": ["icecore", "probing", "frozen-features", scores.header.kind],
    }
    summary = run.path / "summary.md"
    cache = "\nThe latents of every layer are in `caches/`: `icecore.LatentCache(path)`.\n" if has_cache else ""
    return f"""---
{yaml.safe_dump(metadata, sort_keys=False).strip()}
---

Heads on the frozen latents of {decoder["name"]}, on the task {scores.header.task["name"]} ({scores.header.kind}), under
the mask plan `{scores.cache["plan"]}`. Made with icecore. To use the best head, `{run.best}`:

```python
import icecore
from huggingface_hub import snapshot_download

run = icecore.load_run(snapshot_download("{repo}"))
```
{cache}
{summary.read_text("utf-8") if summary.is_file() else ""}"""


def push_run(
    run: str | Path,
    repo: str,
    *,
    is_public: bool = False,
    has_cache: bool = True,
    caches: str | Path = "",
    report: Callable[[str], None] = lambda _: None,
) -> str:
    """Upload a finished run to a repository of the hub, which is made where it is missing; see `stage_run`.

    Args:
        run: A finished run.
        repo: `OWNER/NAME`.
        is_public: Make a new repository public; one that is there stays as it is.
        has_cache: Send the cache too.
        caches: Folder of the caches; the one that the run names when empty.
        report: Receives one-line remarks.

    Returns:
        The address of the upload.

    Raises:
        ConfigError: A repository without an owner, or the hub refuses or cannot be reached; and as `stage_run`.
    """
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", repo):
        raise ConfigError(f"the repository is {repo!r}; allowed: OWNER/NAME.")
    from huggingface_hub import HfApi

    path = Path(run).resolve()
    with TemporaryDirectory(prefix=".push-", dir=path.parent) as draft:
        files = stage_run(run, draft, repo=repo, has_cache=has_cache, caches=caches)
        size = sum((Path(draft) / file).stat().st_size for file in files)
        report(f"uploading {len(files)} files, {size / 1e6:,.1f} MB, to {repo}")
        api = HfApi()
        try:
            api.create_repo(repo, private=not is_public, exist_ok=True)
            message = f"Upload the run {path.name} of icecore"
            commit = api.upload_folder(repo_id=repo, folder_path=draft, commit_message=message)
        except Exception as error:  # the client, its HTTP layer and the system raise unrelated types
            raise _refusal(repo, error) from error
    return str(commit.commit_url)


def _refusal(repo: str, error: Exception) -> ConfigError:
    status = getattr(getattr(error, "response", None), "status_code", None)
    reason = REASONS.get(status or 0, first_line(error).rstrip("."))
    answer = f" (HTTP {status})" if status else ""
    return ConfigError(f"the run was not uploaded to {repo!r}: {reason}{answer}. Nothing here has changed; try again.")
