"""`icecore serve` on a real socket: the requests of many clients at once against the same ones, one after the other."""

import json
import tempfile
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from typing import Any

from benchmarks.timing import Comparison, compare
from extract.decoders.decoder import Decoder
from extract.decoders.decoder_spec import DecoderSpec
from probes.data.class_task import load_class_sample
from probes.runs.predict import load_run
from probes.runs.run import run
from probes.runs.run_config import RunConfig, TaskSpec
from probes.service.app import Limits, ServedRun, bind, build_server

N_CLIENTS, N_REQUESTS = 64, 256
HOST = "127.0.0.1"


def compare_service(decoder: Decoder, *, repeats: int) -> tuple[Comparison, dict[str, Any]]:
    """Fit a head on the shipped sample of topics, serve it, and time requests of one text each; returns facts too."""
    task = load_class_sample()
    texts = list(task.rows("train")["text"])
    requests = [texts[k % len(texts)] for k in range(N_REQUESTS)]
    with tempfile.TemporaryDirectory() as name:
        config = RunConfig(
            name="service",
            decoder=DecoderSpec(decoder.description.name),
            task=TaskSpec("class-sample"),
            heads={"logistic-probe": {}},
            caches=f"{name}/caches",
            runs=f"{name}/runs",
        )
        finished = load_run(run(config).folder, decoder=decoder)
        served = ServedRun("service", finished.scorer(), finished.reader())
        limits = Limits()
        expected = finished.predict(requests)
        server = build_server([served], limits, host=HOST)
        with bind(HOST, 0) as listener:
            port = listener.getsockname()[1]
            thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
            thread.start()
            try:
                comparison = compare(
                    f"{N_REQUESTS} requests to icecore serve: one by one vs {N_CLIENTS} clients",
                    (
                        ("one by one", lambda: require_equal(ask_all(port, requests, 1), expected)),
                        (f"{N_CLIENTS} clients", lambda: require_equal(ask_all(port, requests, N_CLIENTS), expected)),
                    ),
                    bar=">= 3",
                    repeats=repeats,
                )
            finally:
                server.should_exit = True
                thread.join()
    rates = {side: N_REQUESTS / seconds for side, seconds in comparison.seconds.items()}
    layer = served.scorer.spec.layers
    facts = {"requests": N_REQUESTS, "clients": N_CLIENTS, "layers": list(layer), "requests_per_second": rates}
    return comparison, {**facts, "batch": limits.batch, "wait_ms": limits.wait_ms}


def ask_all(port: int, texts: Sequence[str], n_clients: int) -> list[str]:
    """Ask for the class of each text, by clients that each wait for an answer before they ask again."""

    def ask(client: int) -> dict[int, str]:
        connection = HTTPConnection(HOST, port, timeout=120)
        answers = {}
        for k in range(client, len(texts), n_clients):
            body = json.dumps({"rows": [{"text": texts[k]}]})
            connection.request("POST", "/predict", body, {"Content-Type": "application/json"})
            answer = json.loads(connection.getresponse().read())
            answers[k] = answer["predictions"][0]["class"]
        connection.close()
        return answers

    with ThreadPoolExecutor(n_clients) as pool:
        answers = {k: name for part in pool.map(ask, range(n_clients)) for k, name in part.items()}
    return [answers[k] for k in range(len(texts))]


def require_equal(answers: Sequence[str], expected: Sequence[str]) -> None:
    """Refuse answers other than those of `predict`."""
    if list(answers) != list(expected):
        raise RuntimeError("the service answers otherwise than predict")
