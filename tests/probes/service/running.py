"""A service on a real socket, in this process, and requests to it."""

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.client import HTTPConnection
from typing import Any

from probes.service.app import Limits, ServedRun, bind, build_server

HOST = "127.0.0.1"


@contextmanager
def running(runs: Sequence[ServedRun], limits: Limits) -> Iterator[int]:
    """Serve runs on a free port of this machine; gives the port."""
    server = build_server(runs, limits, host=HOST)
    with bind(HOST, 0) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join(60)
            assert not thread.is_alive()


class Client:
    """One connection, kept open between requests."""

    def __init__(self, port: int, timeout: float = 120) -> None:
        self._connection = HTTPConnection(HOST, port, timeout=timeout)

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def get(self, path: str, **headers: str) -> tuple[int, Any]:
        """Ask for a page; gives status and JSON, or text where it is none."""
        self._connection.request("GET", path, headers=headers)
        return self._answer()

    def post(self, path: str, body: object, **headers: str) -> tuple[int, Any]:
        """Send JSON, or bytes as they are."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self._connection.request("POST", path, data, {"Content-Type": "application/json", **headers})
        return self._answer()

    def _answer(self) -> tuple[int, Any]:
        response = self._connection.getresponse()
        text = response.read().decode()
        try:
            return response.status, json.loads(text)
        except ValueError:
            return response.status, text
