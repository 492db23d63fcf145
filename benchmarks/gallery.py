"""Redraws the figures of docs/report.md: `python -m benchmarks.gallery [FOLDER]`.

Runs every command that the page shows above a figure, on the shipped samples with the demo's decoder, and copies the
figures from `runs`. FOLDER, by default the working folder, holds or gets `caches` and `runs`: without them this takes
about twenty minutes on two cores, with both about three.
"""

import re
import sys
from io import BytesIO
from pathlib import Path

from PIL import Image

from extract.files import write_file
from probes.cli.main import main

PAGE = Path(__file__).resolve().parent.parent / "docs" / "report.md"
COMMAND = re.compile(r"```console\nicecore (?P<words>[^\n]+)\n```\n\n")
PICTURE = re.compile(r"\((figures/gallery/(?P<run>[\w-]+)/(?P<name>\w+\.png))\)")
COLOURS = 128
"""Of a picture on the page, which keeps it small."""


def draw_gallery(base: Path) -> None:
    """Run every command of the page above a figure in a folder, and copy the figures."""
    for section in re.split(r"(?m)^(?=## )", PAGE.read_text(encoding="utf-8")):
        _draw_section(section, base / "runs")


def _draw_section(section: str, runs: Path) -> None:
    command, pictures = COMMAND.search(section), list(PICTURE.finditer(section))
    if not command or not pictures:
        return
    folder, words = runs / pictures[0]["run"], command["words"].split()
    has_folders = words[0] in ("run", "sweep", "fit")
    where = ["--caches", str(runs.parent / "caches"), "--runs", str(runs)] if has_folders else []
    args = [str(runs / word.removeprefix("runs/")) if word.startswith("runs/") else word for word in words]
    if main([*args, *where]):
        raise SystemExit(f"icecore {command['words']} failed")
    for picture in pictures:
        [drawn] = folder.rglob(picture["name"])
        (PAGE.parent / picture[1]).parent.mkdir(parents=True, exist_ok=True)
        write_file(PAGE.parent / picture[1], _in_few_colours(drawn))


def _in_few_colours(picture: Path) -> bytes:
    drawn = BytesIO()
    with Image.open(picture) as image:
        image.convert("RGB").quantize(COLOURS).save(drawn, format="png", optimize=True)
    return drawn.getvalue()


if __name__ == "__main__":
    draw_gallery(Path(*sys.argv[1:]))
