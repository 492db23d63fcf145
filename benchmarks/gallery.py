"""Redraws the pictures of docs/gallery.md, with what the summaries say, so that no number there is written by hand.

    python -m benchmarks.gallery [FOLDER]

Runs every command of the page, on the shipped samples with the demo's decoder, copies the pictures that the page shows
from `runs`, and puts the two sentences of each summary below its command. FOLDER, the working folder when left out,
holds or gets `caches` and `runs`: without them this takes about twenty minutes on two cores, with both about three.
"""

import re
import sys
from io import BytesIO
from pathlib import Path

from PIL import Image

from extract.files import write_file
from probes.cli.main import main

PAGE = Path(__file__).resolve().parent.parent / "docs" / "gallery.md"
COMMAND = re.compile(r"(```console\nicecore (?P<words>[^\n]+)\n```\n\n)(?:> [^\n]+\n\n)?")
PICTURE = re.compile(r"\((figures/gallery/(?P<run>[\w-]+)/(?P<name>\w+\.png))\)")
COLOURS = 128
"""Of a picture on the page, which keeps it small."""


def draw_gallery(base: Path) -> None:
    """Run every command of the page in a folder; refresh what the page says and shows of it."""
    page = PAGE.read_text(encoding="utf-8")
    sections = re.split(r"(?m)^(?=## )", page)
    write_file(PAGE, "".join(_draw_section(section, base / "runs") for section in sections))


def _draw_section(section: str, runs: Path) -> str:
    command, pictures = COMMAND.search(section), list(PICTURE.finditer(section))
    if not command or not pictures:
        return section
    folder, words = runs / pictures[0]["run"], command["words"].split()
    has_folders = words[0] in ("run", "sweep", "fit")
    where = ["--caches", str(runs.parent / "caches"), "--runs", str(runs)] if has_folders else []
    here = [str(runs / word.removeprefix("runs/")) if word.startswith("runs/") else word for word in words]
    if main([*here, *where]):
        raise SystemExit(f"icecore {command['words']} failed")
    for picture in pictures:
        [drawn] = folder.rglob(picture["name"])
        (PAGE.parent / picture[1]).parent.mkdir(parents=True, exist_ok=True)
        write_file(PAGE.parent / picture[1], _in_few_colours(drawn))
    summary = folder / "summary.md"
    lead = summary.read_text(encoding="utf-8").split("\n\n")[1] if summary.is_file() else ""
    lead = "" if lead.startswith("Command: ") else lead  # autoencoders alone are no result that sentences could sum up
    return COMMAND.sub(lambda found: found[1] + f"> {lead}\n\n" * bool(lead), section)


def _in_few_colours(picture: Path) -> bytes:
    drawn = BytesIO()
    with Image.open(picture) as image:
        image.convert("RGB").quantize(COLOURS).save(drawn, format="png", optimize=True)
    return drawn.getvalue()


if __name__ == "__main__":
    draw_gallery(Path(*sys.argv[1:]))
