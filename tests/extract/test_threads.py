"""The number of threads: as asked for, else as many as there are free cores, and kept by what is resumed."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from extract import threads
from extract.threads import VARIABLES, busy_cores, free_cores, keep_threads, set_threads, usable_cores


@pytest.fixture(autouse=True)
def restored(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Begin without a number that the user set, on a machine of 4 cores, and put everything back."""
    n_threads = torch.get_num_threads()
    monkeypatch.setattr(threads, "_adapted", [])
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    monkeypatch.setattr(threads, "usable_cores", lambda: 4)
    for name in VARIABLES:
        monkeypatch.setenv(name, "")
    yield
    torch.set_num_threads(n_threads)


def proc(folder: Path, loadavg: str) -> Path:
    (folder / "proc").mkdir()
    (folder / "proc/loadavg").write_text(loadavg, encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    ("loadavg", "n_busy"),
    [
        ("13.19 12.98 11.38 14/174 2272\n", 13),
        ("2.00 1.00 0.50 1/174 2272\n", 0),  # what has just ended is in the mean, but does not run
        ("0.00 0.00 0.00 9/174 2272\n", 0),  # a moment
        ("no numbers\n", 0),
    ],
)
def test_busy_cores_are_busy_now_and_for_a_while(tmp_path: Path, loadavg: str, n_busy: float) -> None:
    assert busy_cores(proc(tmp_path, loadavg)) == n_busy


def test_a_system_without_loads_has_no_busy_cores(tmp_path: Path) -> None:
    assert busy_cores(tmp_path) == 0


@pytest.mark.parametrize(
    ("name", "text", "most"),
    [("cpu.max", "50000 100000\n", 1), ("cpu.max", "max 100000\n", 10**6), ("other", "", 10**6)],
)
def test_the_quota_of_a_container_counts(tmp_path: Path, name: str, text: str, most: int) -> None:
    group = tmp_path / "sys/fs/cgroup"
    group.mkdir(parents=True)
    (group / name).write_text(text, encoding="utf-8")
    assert usable_cores(tmp_path) == min(most, len(os.sched_getaffinity(0)))


def test_there_is_always_a_thread() -> None:
    assert free_cores(2, 2, 1000.0) == 1


def test_a_busy_machine_gets_fewer_threads_and_an_idle_one_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "busy_cores", lambda: 2.6)
    assert set_threads() == 1
    assert torch.get_num_threads() == 1
    assert os.environ["OMP_NUM_THREADS"] == "1"
    monkeypatch.setattr(threads, "busy_cores", lambda: 0.0)
    assert set_threads() is None, "an earlier command's choice is no wish of the user"
    assert torch.get_num_threads() == 4
    assert "OMP_NUM_THREADS" not in os.environ


def test_what_the_user_asks_for_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "busy_cores", lambda: 3.0)
    assert set_threads(2) is None
    assert torch.get_num_threads() == 2
    keep_threads(3)
    assert torch.get_num_threads() == 2
    assert set_threads() is None, "the environment says so now"
    assert torch.get_num_threads() == 2


def test_what_is_resumed_keeps_its_threads_where_the_number_was_adapted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "busy_cores", lambda: 3.0)
    set_threads()
    keep_threads(3)
    assert torch.get_num_threads() == 3
    keep_threads(None)
    assert torch.get_num_threads() == 3
