import subprocess
import sys
from pathlib import Path

import pytest

from extract.errors import TaskError, UnknownNameError
from probes.tasks import TASKS, load_task


def test_the_table_names_its_entries() -> None:
    assert list(TASKS) == ["sts-sample", "stsb", "stsb-local", "stsb-hub", "pair-files"]
    for name, entry in TASKS.items():
        assert (entry.name, entry.kind) == (name, "pairs")
        assert entry.description


def test_an_unknown_task_names_the_nearest() -> None:
    with pytest.raises(
        UnknownNameError, match=r"unknown task 'sts_sample': did you mean 'sts-sample'\? Allowed: sts-s"
    ):
        load_task("sts_sample")


def test_an_unknown_option_names_those_of_the_task() -> None:
    with pytest.raises(
        UnknownNameError, match=r"unknown task option 'revison': did you mean 'revision'\? Allowed: hub_id, "
    ):
        load_task("stsb-hub", revison="main")
    with pytest.raises(UnknownNameError, match=r"unknown task option 'folder': Allowed: \(none\)"):
        load_task("sts-sample", folder="x")


def test_a_missing_option_is_named() -> None:
    with pytest.raises(TaskError, match="task 'pair-files' needs the option `files`"):
        load_task("pair-files", name="mine")


@pytest.mark.parametrize(("option", "value"), [("header", "false"), ("quoting", 0), ("score", 3), ("bad_rows", True)])
def test_an_option_of_the_wrong_kind_is_refused(option: str, value: object) -> None:
    with pytest.raises(TaskError) as caught:
        load_task("pair-files", files={"train": "x.csv"}, **{option: value})
    assert f"task option `{option}` of 'pair-files' is {value!r}, but " in str(caught.value)


def test_pair_files_takes_plain_values(tmp_path: Path) -> None:
    path = tmp_path / "p.csv"
    path.write_text("\n".join(f"l{i},r{i},{i}" for i in range(8)), encoding="utf-8")
    options = {"header": False, "columns": ["sentence1", "sentence2", "score"], "score_range": [0, 7], "name": "mine"}
    task = load_task("pair-files", files={"train": str(path)}, **options)
    assert (task.name, task.score_range, task.source) == ("mine", (0.0, 7.0), str(path))


def test_importing_the_tasks_is_light() -> None:
    code = "import sys, probes.tasks; sys.exit(' '.join({'torch', 'datasets', 'pandas'} & set(sys.modules)) or None)"
    run = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr) == (0, "")
