"""The service on a real socket: the answers of `predict`, what is refused, and that it outlives its clients."""

import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from extract.errors import ConfigError, HeadError, UsageError
from probes.cli.main import main
from probes.runs.predict import RowScorer, load_run
from probes.runs.run import run
from probes.runs.run_config import TaskSpec
from probes.service.app import Limits, bind, open_runs
from tests.probes.finished_run import Finished
from tests.probes.scored_runs import _run, run_class_pairs, run_classes, run_words
from tests.probes.service.running import Client, running

pytestmark = pytest.mark.long

LIMITS = Limits(rows=32, timeout=60.0)
TEXTS = ["Ice melts.", "Snow falls on the river.", "Oslo is cold in the winter .", "A cat sleeps on the sofa."]
N_REQUESTS = 3000


@pytest.fixture(scope="module", autouse=True)
def fast(unchecked_shapes: None, sketched_figures: None) -> None:
    """Save the time of checking shapes and of rendering."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory, decoder_folder: Path, finished: Finished) -> dict[str, Path]:
    """A run of each kind that predicts single rows, by name."""
    base = tmp_path_factory.mktemp("served")
    made = {
        "tiny": finished.folder,
        "classes": run_classes(base, decoder_folder),
        "class-pairs": run_class_pairs(base / "cp", decoder_folder),
        "words": run_words(base / "w", decoder_folder, seeds=(0,)),
        "numbers": _run(base / "n", decoder_folder, task=TaskSpec("number-sample"), heads={"ridge-probe": {}}),
        "alike": _run(base / "a", decoder_folder, task=TaskSpec("pair-class-sample"), heads={"layer-alike": {}}),
    }
    return {name: folder if name == "tiny" else folder.rename(folder.parent / name) for name, folder in made.items()}


@pytest.fixture(scope="module")
def port(folders: dict[str, Path]) -> Iterator[int]:
    """A service of all of them."""
    runs = open_runs([str(folder) for folder in folders.values()])
    assert len({id(run.scorer.decoder) for run in runs}) == 1  # shared
    with running(runs, LIMITS) as port:
        yield port


def rows_of(name: str) -> list[dict[str, Any]]:
    if name in ("tiny", "class-pairs", "alike"):
        return [{"text1": left, "text2": right} for left, right in zip(TEXTS, TEXTS[1:] + TEXTS[:1], strict=True)]
    return [{"words": text.split()} if name == "words" else {"text": text} for text in TEXTS]


@pytest.mark.parametrize("name", ["tiny", "classes", "class-pairs", "words", "numbers", "alike"])
def test_every_kind_is_answered_as_predict_answers(
    name: str, folders: dict[str, Path], port: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = rows_of(name)
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    capsys.readouterr()
    assert main(["predict", str(folders[name]), str(tmp_path / "rows.jsonl"), "--format", "jsonl", "--quiet"]) == 0
    expected = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    with Client(port) as client:
        status, answer = client.post(f"/runs/{name}/predict", {"rows": rows})
    assert status == 200, answer
    assert answer["head"] == load_run(folders[name]).best
    for predicted, own, row in zip(answer["predictions"], expected, rows, strict=True):
        for key, value in predicted.items():
            if key != "word":
                assert own[key] == (pytest.approx(value, abs=1e-4) if isinstance(value, float) else value)
            else:
                assert value == row["words"]
        assert len(predicted) == 1 + (name == "words")


def test_probabilities_and_clipping_are_options_of_the_runs_that_have_them(port: int) -> None:
    with Client(port) as client:
        status, answer = client.post("/runs/classes/predict", {"rows": [{"text": "Ice."}], "probabilities": True})
        [row] = answer["predictions"]
        assert (status, sum(row["probabilities"].values())) == (200, pytest.approx(1.0))
        assert max(row["probabilities"], key=row["probabilities"].__getitem__) == row["class"]
        status, answer = client.post("/runs/numbers/predict", {"rows": [{"text": "Ice."}], "clip": True})
        assert 1 <= answer["predictions"][0]["number"] <= 5
        status, answer = client.post("/runs/numbers/predict", {"rows": [{"text": "Ice."}], "probabilities": True})
        assert status == 422
        assert "probabilities: Extra inputs are not permitted" in answer["error"]


def test_a_body_that_is_not_called_json_is_refused_for_that(port: int) -> None:
    """As curl sends it with -d alone."""
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    with Client(port) as client:
        status, answer = client.post("/runs/classes/predict", {"rows": [{"text": "Ice."}]}, **form)
    assert status == 422
    assert answer["error"].startswith(
        "the header Content-Type is 'application/x-www-form-urlencoded'; send application/j"
    )


def test_the_schema_names_the_texts_of_each_kind(port: int) -> None:
    with Client(port) as client:
        status, schema = client.get("/openapi.json")
    assert status == 200
    schemas = schema["components"]["schemas"]
    assert set(schemas["Row-tiny"]["properties"]) == {"text1", "text2"}
    assert schemas["Row-tiny"]["required"] == ["text1", "text2"]
    assert schemas["Prediction-classes"]["properties"].keys() == {"class", "probabilities", "error"}
    assert schemas["Request-numbers"]["properties"].keys() == {"rows", "clip"}
    assert schemas["Request-numbers"]["properties"]["rows"]["maxItems"] == LIMITS.rows


def test_health_names_the_runs(port: int) -> None:
    with Client(port) as client:
        status, answer = client.get("/healthz")
    assert (status, answer["status"], answer["waiting_rows"]) == (200, "ok", 0)
    assert answer["runs"] == ["tiny", "classes", "class-pairs", "words", "numbers", "alike"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"{", "body.1: JSON decode error"),
        (b"\xff", "parsing the body"),
        ([1], "body: Input should be a valid dictionary"),
        ({}, "body.rows: Field required"),
        ({"rows": []}, "body.rows: List should have at least 1 item"),
        ({"rows": [{"text": "a"}] * 33}, "body.rows: List should have at most 32 items"),
        ({"rows": [{"text": 5}]}, "body.rows.0.text: Input should be a valid string"),
        ({"rows": [{"txt": "a"}]}, "body.rows.0.text: Field required"),
        ({"rows": [{"text": "a", "x": 1}]}, "body.rows.0.x: Extra inputs are not permitted"),
    ],
)
def test_what_is_not_as_the_schema_says_gets_422(port: int, body: object, message: str) -> None:
    with Client(port) as client:
        status, answer = client.post("/runs/classes/predict", body)
    assert status == (400 if body == b"\xff" else 422)
    assert message in answer["error"]
    assert "Traceback" not in str(answer)


def test_a_blank_text_is_an_error_of_its_row_alone(port: int) -> None:
    rows = [{"text": "Ice."}, {"text": " "}, {"text": "\ud800"}, {"text": "Ice."}]
    with Client(port) as client:
        status, answer = client.post("/runs/classes/predict", {"rows": rows[:2] + rows[3:]})
    assert status == 200
    first, blank, last = answer["predictions"]
    assert first == last
    assert blank == {"error": "row 1, column 'text': ' ' is no text; allowed: a text that is not empty."}


def test_what_is_too_long_gets_413_within_a_second(port: int) -> None:
    for body in ({"rows": [{"text": "a " * 50_000}]}, b"x" * (LIMITS.body + 1)):
        with Client(port) as client:
            began = time.monotonic()
            status, answer = client.post("/runs/classes/predict", body)
            assert (status, time.monotonic() - began < 1.0) == (413, True)
            assert "characters; allowed: 20,000" in answer["error"] or "longer than 1,048,576 bytes" in answer["error"]
    with socket.create_connection(("127.0.0.1", port), timeout=30) as raw:  # of a length that nobody says
        raw.sendall(b"POST /runs/classes/predict HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
        chunk = b"10000\r\n" + b"x" * 65_536 + b"\r\n"
        for _ in range(LIMITS.body // 65_536 + 1):
            raw.sendall(chunk)
        assert raw.recv(100).startswith(b"HTTP/1.1 413 ")


def test_addresses_and_names_that_are_not_its_own_are_refused(port: int) -> None:
    with Client(port) as client:
        assert client.post("/runs/none/predict", {"rows": []}) == (404, {"error": "Not Found"})
        assert client.get("/docs")[0] == 404
        assert client.get("/healthz", Host="evil.example")[0] == 400  # a name that a stranger's page points here


def test_a_full_queue_and_a_slow_answer_get_503(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    answer = RowScorer.answer

    def slowly(self: RowScorer, rows: Any, **options: Any) -> Any:
        time.sleep(1.5)
        return answer(self, rows, **options)

    runs = open_runs([str(folders["classes"])])
    monkeypatch.setattr(RowScorer, "answer", slowly)
    body = {"rows": [{"text": "Ice."}] * 4}

    def ask(port: int) -> tuple[int, Any]:
        with Client(port) as client:
            return client.post("/predict", body)

    with running(runs, Limits(batch=4, queue=8, timeout=0.5)) as port, ThreadPoolExecutor(4) as pool:
        statuses = sorted(pool.map(ask, [port] * 4), key=str)
        assert [status for status, _ in statuses] == [503] * 4
        assert sum("rows wait already" in answer["error"] for _, answer in statuses) == 2
        assert sum("no answer within 0.5 s" in answer["error"] for _, answer in statuses) == 2
        until = time.monotonic() + 30
        with Client(port) as client:
            while client.get("/healthz")[1]["waiting_rows"] and time.monotonic() < until:
                time.sleep(0.1)
            assert client.get("/healthz")[1]["waiting_rows"] == 0


@pytest.mark.parametrize("sent", [b"", b"GET /healthz HTT", b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\nGET /h"])
def test_a_head_that_does_not_come_ends_its_connection(folders: dict[str, Path], sent: bytes) -> None:
    runs, received = open_runs([str(folders["classes"])]), b""
    with running(runs, Limits(timeout=1.0)) as port, socket.create_connection(("127.0.0.1", port), timeout=30) as raw:
        raw.sendall(sent)
        while part := raw.recv(1000):
            received += part
    assert received.startswith(b"HTTP/1.1 200 ") == (b"\r\n\r\n" in sent)


def test_a_body_that_does_not_come_gets_408(folders: dict[str, Path]) -> None:
    runs = open_runs([str(folders["classes"])])
    with running(runs, Limits(timeout=1.0)) as port, socket.create_connection(("127.0.0.1", port), timeout=30) as raw:
        raw.sendall(b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
        assert raw.recv(100).startswith(b"HTTP/1.1 408 ")


def test_thousands_of_good_and_bad_requests_are_all_answered(port: int, folders: dict[str, Path]) -> None:
    expected = dict(zip(TEXTS, load_run(folders["classes"]).predict(TEXTS), strict=True))
    good: list[tuple[object, int]] = [({"rows": [{"text": text}]}, 200) for text in TEXTS]
    bad: list[tuple[object, int]] = [
        (b"{", 422),
        ({"rows": [{"text": 5}]}, 422),
        ({"rows": [{"text": " "}]}, 200),
        ({"rows": [{"text": "a" * 100_000}]}, 413),
    ]
    requests = [(good + bad)[k % 8] for k in range(N_REQUESTS)]

    def ask(worker: int) -> list[tuple[int, int, Any]]:
        with Client(port) as client:
            return [(k, *client.post("/runs/classes/predict", requests[k][0])) for k in range(worker, N_REQUESTS, 32)]

    with ThreadPoolExecutor(32) as pool:
        answers = {k: rest for part in pool.map(ask, range(32)) for k, *rest in part}
    assert len(answers) == N_REQUESTS
    for k, (status, answer) in answers.items():
        body, wanted = requests[k]
        assert status == wanted, answer
        if k % 8 < 4:
            assert answer["predictions"] == [{"class": expected[body["rows"][0]["text"]]}]  # type: ignore[index]
        else:
            assert "error" in (answer if status != 200 else answer["predictions"][0])
    with Client(port) as client:
        assert client.get("/healthz")[1]["status"] == "ok"


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_command_after_what_was_asked(folders: dict[str, Path], number: signal.Signals) -> None:
    command = [sys.executable, "-c", "import sys, icecore; sys.exit(icecore.main())"]
    words = ["serve", str(folders["classes"]), str(folders["numbers"]), "--port", "0", "--wait-ms", "1500"]
    with subprocess.Popen([*command, *words], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        lines: list[str] = []
        while not (lines and lines[-1].startswith("ready: ")):
            lines.append(process.stderr.readline())
            assert lines[-1], "".join(lines)
        port = int(lines[-1].rpartition(":")[2].partition("/")[0])

        def ask() -> tuple[int, Any]:
            with Client(port) as client:
                return client.post("/runs/classes/predict", {"rows": [{"text": "Ice."}]})

        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(ask)
            time.sleep(0.7)
            process.send_signal(number)
            assert answer.result()[0] == 200
        assert process.wait(30) == 0
        assert "stopped; every request that was taken has been answered" in process.stderr.read()


def test_what_cannot_be_served(
    folders: dict[str, Path],
    tmp_path: Path,
    decoder_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(UsageError, match="two runs are called 'numbers'"):
        open_runs([str(folders["numbers"])] * 2)
    with pytest.raises(UsageError, match="no run was named"):
        open_runs([])
    decoder = {"name": str(decoder_folder), "device": "cpu", "dtype": "bfloat16"}
    places = {key: str(tmp_path / key) for key in ("caches", "runs")}
    how = {"name": "half", "task": "number-sample", "heads": {"ridge-probe": {}}, "bootstrap": 100}
    half = run({**how, **places, "decoder": decoder}).folder
    both = open_runs([str(folders["numbers"]), str(half)], decoder=str(decoder_folder))  # each as it was fitted
    assert [run.scorer.decoder.description.dtype for run in both] == ["float32", "bfloat16"]
    whole = _run(tmp_path, decoder_folder, task=TaskSpec("retrieval-sample"), heads={"layer-search": {}})
    with pytest.raises(HeadError, match="predicts nothing of single rows"):
        open_runs([str(whole)])
    with bind("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"127\.0\.0\.1, port {port} cannot be used .*name another with --port"):
            bind("127.0.0.1", port)
    assert main(["serve", str(folders["numbers"]), "--batch", "0"]) == 2
    assert "--batch is 0; allowed: a number of at least 1" in capsys.readouterr().err
    monkeypatch.setattr("probes.cli.predict_commands.find_spec", lambda name: None if name == "uvicorn" else name)
    assert main(["serve", str(folders["numbers"])]) == 1
    assert capsys.readouterr().err == "icecore: icecore serve needs uvicorn; run: pip install fastapi uvicorn.\n"
