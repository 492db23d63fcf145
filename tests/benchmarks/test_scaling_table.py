"""The table of sizes in docs/scaling.md follows from the committed rate and the stated assumptions."""

from benchmarks.scaling import PAGE, SIZES, rows, written_bytes, written_time
from benchmarks.training_free_page import filled


def test_the_page_has_the_table() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert "<!-- table: sizes -->" in page
    assert filled(page, {"sizes": "\n".join(rows())}) == page


def test_by_hand() -> None:
    llama = SIZES[1]
    assert llama.seconds(1e6, 1e15) == 12.96  # two operations per parameter and token
    assert llama.n_bytes(16, 34) == 34 * 4096 * 2  # one text of 16 tokens
    assert [written_time(seconds) for seconds in (0.2, 5, 600, 1e5, 1e8)] == [
        "under 1 s",
        "5 s",
        "10 min",
        "28 h",
        "3 years",
    ]
    assert [written_bytes(n) for n in (3e6, 2.3e9, 4e12, 1.5e15)] == ["3 MB", "2.3 GB", "4.0 TB", "1.5 PB"]
