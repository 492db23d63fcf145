"""The tables of docs/scaling.md follow from the committed measurements and the stated assumptions."""

from benchmarks.scaling import PAGE, SIZES, tables, written_bytes, written_time
from benchmarks.training_free_page import filled


def test_the_page_has_the_tables() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for name, table in tables().items():
        assert f"<!-- table: {name} -->" in page
        assert filled(page, {name: table}) == page


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
