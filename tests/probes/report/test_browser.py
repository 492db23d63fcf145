"""The page in a real browser: what a reader selects, clicks, types and prints, with no message in its console."""

import json
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from probes.layers.findings import LayerPredictions, save_predictions
from probes.report.document import SplitRows
from probes.report.exploring import Source, list_rows, pack_predictions
from probes.report.page import Page, Part, ShownPage, page_text
from probes.report.write import write_plans
from probes.runs.compare import write_report
from probes.runs.task_kinds import KINDS
from tests.probes.report.made_findings import BEST, LAYERS, make_findings, write_findings
from tests.probes.report.made_grid import make_grid

BROWSER, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
FLAGS = (
    "--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --hide-scrollbars"
)
HOSTILE = "</script><script>document.title='owned'</script><svg onload=\"document.title='owned'\"> {{ 7 * 7 }} <b>"

SCORES = LayerPredictions.of("h", "test", ("a",), np.array([[[0.25, 0.5, 1.0]]]), ())
"""Scores of three rows, whose gold is 1."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (BROWSER and DRIVER), reason="needs chromium and chromedriver"),
]


class Reader:
    """A reader of a page in a browser."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, path: Path) -> None:
        """Open a page, and wait until everything is drawn.

        On a busy machine `get` was seen to return while the page before was still shown, so the page itself is asked.
        """
        from selenium.common.exceptions import WebDriverException
        from selenium.webdriver.support.ui import WebDriverWait

        self.run("document.documentElement.dataset.left = 'yes'")
        self.driver.get(path.resolve().as_uri())
        drawn = "return document.readyState === 'complete' && !document.documentElement.dataset.left"
        WebDriverWait(self.driver, 60, ignored_exceptions=[WebDriverException]).until(lambda _: self.run(drawn))

    def run(self, script: str, *arguments: Any) -> Any:
        """Run a script in the page, as the browser's own tools do."""
        return self.driver.execute_script(script, *arguments)

    def text(self, selector: str) -> str:
        """Return the text that a reader sees of an element."""
        return str(self.driver.find_element("css selector", selector).text)

    def rows(self) -> list[list[str]]:
        """Return the cells of the rows that are listed."""
        rows = "[...document.querySelectorAll('#rows-table tbody tr')]"
        listed: list[list[str]] = self.run(f"return {rows}.map((row) => [...row.cells].map((c) => c.textContent))")
        return listed

    def choose(self, name: str, option: str) -> None:
        """Choose an option of a list by its text."""
        from selenium.webdriver.support.ui import Select

        Select(self.driver.find_element("id", name)).select_by_visible_text(option)

    def press(self, selector: str, *keys: str) -> None:
        """Press keys on an element."""
        element = self.driver.find_element("css selector", selector)
        self.run("arguments[0].focus()", element)
        self.driver.switch_to.active_element.send_keys(*keys)

    def point_at(self, selector: str, x: float, y: float, *, is_click: bool = False) -> None:
        """Move the mouse to a place of an element, in shares of its width and height; perhaps click."""
        from selenium.webdriver.common.action_chains import ActionChains

        element = self.driver.find_element("css selector", selector)
        self.run("arguments[0].scrollIntoView({block: 'center'})", element)
        size = element.size
        actions = ActionChains(self.driver)
        actions.move_to_element_with_offset(element, (x - 0.5) * size["width"], (y - 0.5) * size["height"])
        (actions.click() if is_click else actions).perform()
        time.sleep(0.2)  # a chart follows the pointer at the next frame

    def complaints(self) -> list[str]:
        """Return what the console says."""
        return [f"{entry['level']}: {entry['message']}" for entry in self.driver.get_log("browser")]


@pytest.fixture(scope="module")
def driver() -> Iterator[Any]:
    """A browser without a window."""
    webdriver = pytest.importorskip("selenium.webdriver")
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    for flag in FLAGS.split():
        options.add_argument(flag)
    options.binary_location = BROWSER
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture
def reader(driver: Any) -> Iterator[Reader]:
    """A reader, at whose end the console is silent."""
    driver.set_window_size(1280, 1600)
    reader = Reader(driver)
    yield reader
    assert reader.complaints() == []
    assert reader.driver.title != "owned"


def with_layers(folder: Path, copy: Path, head: str, *, names: tuple[str, ...] = (), seed: int = 0) -> Path:
    """Copy a run folder, and add findings and predictions of every layer."""
    shutil.copytree(folder, copy)
    scores = json.loads((copy / "scores.json").read_text(encoding="utf-8"))
    n = scores["task"].get("n_words", scores["task"]["n_rows"])["test"]
    rng = np.random.default_rng(seed)
    alone = rng.integers(0, len(names), (1, 14, n)) if names else rng.normal(size=(1, 14, n))
    shares = np.sort(rng.dirichlet(np.ones(2), (14, n)))[..., ::-1]
    likely = (np.stack([alone[0], 1 - alone[0]], -1), shares) if len(names) == 2 else None
    save_predictions(copy, LayerPredictions.of(head, "test", LAYERS, alone, names, likely))
    write_findings(copy, make_findings(head=head))
    write_report(copy)
    return copy


@pytest.fixture
def pairs_page(write_once: Callable[[str], Path], tmp_path: Path) -> Path:
    """The page of a run on pairs, with what its layers predict."""
    return with_layers(write_once("pairs"), tmp_path / "pairs", "cosine-mlp") / "report.html"


def test_the_first_screen_is_the_answer_and_a_chart(reader: Reader, pairs_page: Path) -> None:
    reader.open(pairs_page)
    assert "predicts how similar two texts are with a Pearson correlation of" in reader.text("header")
    reader.choose("source", "cosine-mlp")
    assert "As a single layer use block_07" in reader.text("#advice")
    assert "tied with the best" in reader.text("#advice")
    chart = reader.run("return document.getElementById('chart').getBoundingClientRect().bottom")
    assert chart < 1000
    shaded = "return document.querySelectorAll('#chart [aria-description=\"layers tied with the best\"] rect').length"
    assert reader.run(shaded) == len(BEST)
    assert "owned" not in reader.driver.title


def test_measures_are_selected_and_layers_clicked(reader: Reader, pairs_page: Path) -> None:
    reader.open(pairs_page)
    reader.choose("source", "cosine-mlp")
    assert "how far does the layer get by itself?" in reader.text("#asks")
    reader.choose("measure", "Shapley value")
    assert "fair share" in reader.text("#asks")
    assert "200 permutations" in reader.text("#aside")
    assert reader.run("return document.querySelectorAll('#chart g[aria-label=rect] rect').length") == len(LAYERS)
    reader.choose("measure", "alone")
    reader.point_at("#chart svg", 0.5, 0.5)
    tip = reader.run("return document.querySelector('#chart g[aria-label=tip]').textContent")
    assert "block_" in tip
    assert " to " in tip
    reader.point_at("#chart svg", 0.06, 0.5, is_click=True)
    assert reader.text("#reading").startswith("embedding: ")
    assert "1,379 rows of test" in reader.text("#reading")
    assert "embedding" in reader.text("#rows-title")


def test_everything_works_by_keyboard(reader: Reader, pairs_page: Path) -> None:
    from selenium.webdriver.common.keys import Keys

    reader.open(pairs_page)
    reader.choose("source", "cosine-mlp")
    reader.press("#chart", Keys.HOME)
    assert reader.text("#reading").startswith("embedding: ")
    reader.press("#chart", Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    assert reader.text("#reading").startswith("block_02: ")
    chart = reader.driver.find_element("id", "chart")
    assert chart.get_attribute("aria-valuetext").startswith("block_02: ")
    assert chart.get_attribute("aria-valuenow") == "2"
    reader.press("#chart", Keys.END)
    assert reader.text("#reading").startswith("final_norm: ")
    reached = reader.run(
        "return [...document.querySelectorAll('#source, #measure, #beside, #chart, #search, #other, th button')]"
        ".every((node) => node.tabIndex >= 0)"
    )
    assert reached


def test_rows_are_searched_sorted_and_compared_at_two_layers(reader: Reader, pairs_page: Path) -> None:
    reader.open(pairs_page)
    reader.choose("source", "cosine-mlp")
    reader.choose("other", "block_03")
    titles = reader.run("return [...document.querySelectorAll('#rows-table th')].map((node) => node.textContent)")
    assert titles[-3:] == ["predicted, the head, all layers", "predicted, block_03", "predicted - gold"]
    errors = (
        "return [...document.querySelectorAll('#rows-table tbody tr')].map((row) => Number(row.lastChild.textContent))"
    )
    sizes = [abs(error) for error in reader.run(errors)]
    assert sizes == sorted(sizes, reverse=True)
    reader.driver.find_element("css selector", "#rows-table th:first-child button").click()
    rows = reader.run(
        "return [...document.querySelectorAll('#rows-table tbody tr')].map((row) => Number(row.cells[0].textContent))"
    )
    assert rows == sorted(rows, reverse=True)
    everything = reader.text("#rows-count")
    reader.choose("filter", "nearer to gold here than at the other layer")
    assert reader.text("#rows-count") != everything
    reader.choose("filter", "all rows")
    first = reader.run("return document.querySelector('#rows-table tbody td:nth-child(2)').textContent")
    reader.press("#search", first)
    assert reader.text("#rows-count").startswith("1 of ")
    assert first in reader.text("#rows-table")


def test_classes_show_confusion_calibration_and_what_a_layer_wins(
    reader: Reader, write_once: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = write_once("classes")
    scores = json.loads((folder / "scores.json").read_text(encoding="utf-8"))
    names = tuple(scores["task"]["class_names"])
    reader.open(with_layers(folder, tmp_path / "classes", "logistic-probe", names=names) / "report.html")
    reader.choose("source", "logistic-probe")
    assert " %)" in reader.text("#rows-table")
    assert reader.run("return document.querySelectorAll('#confusion rect').length") > 1
    assert reader.run("return document.querySelectorAll('#calibration circle').length") > 1
    reader.choose("other", "block_03")
    reader.choose("filter", "right here, wrong at the other layer")
    won = reader.rows()
    assert won
    for row in won:
        *_, gold, here, there, wrong = row
        assert here.startswith(gold)
        assert not there.startswith(gold)
        assert wrong == "0"


def test_words_are_shown_in_their_sentences(reader: Reader, write_once: Callable[[str], Path], tmp_path: Path) -> None:
    folder = write_once("words")
    names = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
    reader.open(with_layers(folder, tmp_path / "words", "token-classifier", names=names) / "report.html")
    reader.choose("source", "token-classifier")
    assert "→" in reader.text("#rows-table")
    assert reader.text("#rows-table thead").endswith("wrong words")


def test_two_runs_are_laid_over_each_other_with_their_difference(
    reader: Reader, write_once: Callable[[str], Path], tmp_path: Path
) -> None:
    folders = [with_layers(write_once("pairs"), tmp_path / name, "cosine-mlp", seed=k) for k, name in enumerate("ab")]
    reader.open(write_report(folders, tmp_path / "both.html"))
    reader.choose("source", "a, cosine-mlp")
    reader.choose("beside", "b, cosine-mlp")
    assert reader.text("#legend").split("\n") == ["a, cosine-mlp", "b, cosine-mlp"]
    assert "a, cosine-mlp minus b, cosine-mlp" in reader.text("#gap")
    assert reader.run("return document.querySelectorAll('#gap circle').length") == len(LAYERS)


def planted_page(n: int, texts: list[str]) -> Page:
    """Make a page of `n` rows, 32 layers and 6 measures."""
    layers = [f"block_{k:02d}" for k in range(1, 33)]
    rng = np.random.default_rng(0)
    rows = SplitRows({"row": range(n), "text": [texts[k % len(texts)] for k in range(n)]}, rng.normal(size=n).tolist())
    table = list_rows(rows)
    kept = LayerPredictions.of("h", "test", layers, rng.normal(size=(1, 32, n)), ())
    line = {"name": "", "values": list(range(32)), "low": list(range(-1, 31)), "high": list(range(1, 33))}
    measures = [
        {"key": f"m{k}", "title": f"measure {k}", "asks": HOSTILE, "unit": "x 100", "is_gain": False, "layers": layers}
        | {"series": [line], "levels": [[HOSTILE, 3.0]], "note": HOSTILE, "aside": "", "on": ""}
        for k in range(6)
    ]
    source = Source(HOSTILE, "h", "test", layers, layers[3], layers[3], layers[:5], HOSTILE, (), "t", ())
    values = {name: getattr(source, name) for name in Source.__dataclass_fields__}
    by_layer = pack_predictions(kept, table.picked)
    sources = [{**values, "measures": measures, "by_layer": by_layer}]
    exploration = {"sources": sources, "tables": {"t": table.to_plain()}}
    return Page(HOSTILE, HOSTILE, (HOSTILE,), (HOSTILE,), (Part(HOSTILE),), exploration)


def test_hostile_texts_stay_texts_and_of_many_rows_few_are_drawn(reader: Reader, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text(page_text(planted_page(1379, [HOSTILE, "a text"]), {}), encoding="utf-8")
    reader.open(path)
    assert len(reader.rows()) == 25  # the others are drawn on demand, so that a page of any size opens at once
    assert HOSTILE in reader.text("#rows-table")
    assert HOSTILE in reader.text("#advice")
    assert "49" not in reader.text("#advice")
    reader.press("#search", "onload")
    assert reader.text("#rows-count").startswith("690 of 1,379")


@pytest.mark.parametrize("width", [400, 1280])
def test_nothing_is_wider_than_the_screen(width: int, reader: Reader, pairs_page: Path) -> None:
    reader.driver.set_window_size(width, 900)
    reader.driver.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    )
    reader.open(pairs_page)
    assert reader.run("return document.documentElement.scrollWidth") <= width
    letters = (
        "return Math.min(...[...document.querySelectorAll('#chart text')].map((t) => t.getBoundingClientRect().height))"
    )
    assert reader.run(letters) >= 9
    reader.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_a_printed_page_has_whole_tables_and_no_controls(reader: Reader, pairs_page: Path) -> None:
    reader.open(pairs_page)
    reader.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    reader.run("dispatchEvent(new Event('beforeprint'))")
    hidden = "return [...document.querySelectorAll('.bar, #theme')].every((n) => !n.offsetParent)"
    assert reader.run(hidden)
    cut = "return [...document.querySelectorAll('.scroll')].filter((n) => n.scrollHeight > n.clientHeight + 2).length"
    assert reader.run(cut) == 0
    reader.run("dispatchEvent(new Event('afterprint'))")
    reader.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


def test_dark_and_light_differ_and_the_choice_is_kept(reader: Reader, pairs_page: Path) -> None:
    reader.open(pairs_page)
    colour = "return getComputedStyle(document.body).backgroundColor"
    before = reader.run(colour)
    reader.driver.find_element("id", "theme").click()
    assert reader.run(colour) != before
    reader.open(pairs_page)
    assert reader.run(colour) != before
    reader.driver.find_element("id", "theme").click()


def test_a_script_that_is_not_the_page_s_own_is_refused(driver: Any, pairs_page: Path) -> None:
    text = pairs_page.read_text(encoding="utf-8")
    pairs_page.write_text(text.replace("</main>", "<script>document.title='owned'</script></main>"), encoding="utf-8")
    reader = Reader(driver)
    reader.open(pairs_page)
    assert driver.title != "owned"
    assert any("Content Security Policy" in line for line in reader.complaints())


def test_a_notebook_s_frame_can_be_explored_too(reader: Reader, pairs_page: Path, tmp_path: Path) -> None:
    shown = ShownPage(pairs_page.read_text(encoding="utf-8"), 900)
    outer = tmp_path / "outer.html"
    outer.write_text(f"<!DOCTYPE html><meta charset=utf-8><body>{shown._repr_html_()}", encoding="utf-8")
    reader.open(outer)
    reader.driver.switch_to.frame(0)
    reader.choose("source", "cosine-mlp")
    assert reader.run("return document.querySelectorAll('#chart circle').length") >= len(LAYERS)
    reader.driver.switch_to.default_content()


def test_cells_of_a_sweep_are_picked_by_mouse_and_keyboard(reader: Reader, tmp_path: Path) -> None:
    from selenium.webdriver.common.keys import Keys

    write_plans(tmp_path, make_grid(), KINDS["classes"].report)
    reader.open(tmp_path / "report.html")
    assert reader.text("#cell").startswith("backward:1, last, block_01: 55.0")
    reader.press("#grid", Keys.ARROW_UP, Keys.ARROW_LEFT)
    assert reader.text("#cell").startswith("backward:1, echo, embedding: 54.0")
    reader.press("#grid", Keys.ARROW_LEFT)
    assert reader.text("#cell").startswith("backward:1, echo, embedding: 54.0")
    reader.point_at("#grid svg", 0.85, 0.15, is_click=True)
    assert reader.text("#cell").startswith("causal, plain, final_norm: 30.0")


def test_clusters_have_no_error_and_scores_of_rows_keep_their_scale(reader: Reader, tmp_path: Path) -> None:
    table = list_rows(SplitRows({"row": range(4), "text": list("abcd")}, ["x", "x", "y", "y"]))
    source = Source("h", "h", "test", (), "", "", (), "advice", (), "t", ("c 1", "c 1", "c 1", "c 2"))
    path = tmp_path / "page.html"
    for shown, part, titles in (
        (replace(table, kind="groups"), source, ["row", "text", "gold", "predicted"]),
        (
            list_rows(SplitRows({"row": range(3), "query": list("abc")}, [1.0, 1.0, 1.0])),
            replace(source, predicted=(), layers=("a",), reads="a", by_layer=pack_predictions(SCORES, np.arange(3))),
            ["row", "query", "gold", "predicted", "predicted - gold"],
        ),
    ):
        exploration = {"sources": [asdict(part)], "tables": {"t": shown.to_plain()}}
        path.write_text(page_text(Page("t", "q", (), (), (), exploration), {}), encoding="utf-8")
        reader.open(path)
        heads = reader.run("return [...document.querySelectorAll('#rows-table th')].map((node) => node.textContent)")
        assert [head.partition(",")[0] for head in heads] == titles
    assert [row[3] for row in reader.rows()] == ["0.25", "0.50", "1.00"]
