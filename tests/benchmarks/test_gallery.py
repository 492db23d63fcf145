"""The page of reports shows every figure, small, and each comes from the run above it."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from benchmarks import gallery
from probes.report.run_figures import FIGURES

PICTURES = gallery.PAGE.parent / "figures" / "gallery"
MOST_BYTES = 1_500_000


def shown() -> set[str]:
    return {found[1] for found in gallery.PICTURE.finditer(gallery.PAGE.read_text(encoding="utf-8"))}


def test_every_picture_is_there_and_shown() -> None:
    files = {path.relative_to(gallery.PAGE.parent).as_posix(): path.stat().st_size for path in PICTURES.rglob("*.png")}
    assert shown() == set(files)
    assert sum(files.values()) < MOST_BYTES


def test_every_figure_of_the_reports_is_shown() -> None:
    stems = {*(f"_{row.stem}" for row in FIGURES), "sweep", "search", "layers_logistic_probe", "attention", "sink_mass"}
    assert {stem for stem in stems if not any(Path(name).stem.endswith(stem) for name in shown())} == set()


def test_figures_come_from_the_run_above_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "docs" / "report.md"
    page.parent.mkdir()
    command = "```console\nicecore run configs/a.yaml --seeds 1\n```\n\n"
    text = "# Figures\n\n## One\n\n" + command + "![A](figures/gallery/a/score_layers.png)\n\nWords.\n"
    page.write_text(text, encoding="utf-8")
    calls = []

    def run(words: list[str]) -> int:
        calls.append(words)
        (tmp_path / "runs" / "a" / "figures").mkdir(parents=True)
        noise = np.random.default_rng(0).integers(0, 255, (40, 40, 3), dtype=np.uint8)
        Image.fromarray(noise).save(tmp_path / "runs" / "a" / "figures" / "score_layers.png")
        return 0

    monkeypatch.setattr(gallery, "PAGE", page)
    monkeypatch.setattr(gallery, "main", run)
    gallery.draw_gallery(tmp_path)
    where = ["--caches", str(tmp_path / "caches"), "--runs", str(tmp_path / "runs")]
    assert calls == [["run", "configs/a.yaml", "--seeds", "1", *where]]
    assert page.read_text(encoding="utf-8") == text
    with Image.open(page.parent / "figures" / "gallery" / "a" / "score_layers.png") as image:
        assert len(image.getcolors() or []) <= gallery.COLOURS
    monkeypatch.setattr(gallery, "main", lambda _: 1)
    with pytest.raises(SystemExit, match=r"icecore run configs/a\.yaml --seeds 1 failed"):
        gallery.draw_gallery(tmp_path)
