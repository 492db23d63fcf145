"""The HTTP application: addresses, limits, and what is answered where something is refused."""

import asyncio
import inspect
import signal
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.middleware.trustedhost import TrustedHostMiddleware

from extract.errors import ConfigError, HeadError, first_line
from probes.service.batcher import Batcher, Job, QueueFullError
from probes.service.messages import (
    Health,
    Problem,
    answer_model,
    read_rows,
    request_model,
    texts_of,
    write_answer,
)
from probes.service.served_run import ServedRun

LOOPBACK = ("127.0.0.1", "localhost", "::1")
DISCARD_SECONDS = 0.5
RETRY_AFTER = {"Retry-After": "1"}
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


@dataclass(frozen=True)
class Limits:
    """What a request may ask for; beyond it, it is refused."""

    batch: int = 64
    """Most rows predicted together."""
    wait_ms: float = 5.0
    """Milliseconds that the first row of a batch waits for others."""
    rows: int = 256
    """Most rows of a request (422)."""
    text: int = 20_000
    """Most characters of a text (413)."""
    body: int = 1 << 20
    """Most bytes of a request (413)."""
    queue: int = 1024
    """Most rows that wait (503)."""
    timeout: float = 30.0
    """Most seconds until a request has arrived (408), and until it is answered (503)."""


def build_app(runs: Sequence[ServedRun], limits: Limits, *, hosts: Sequence[str] = ()) -> FastAPI:
    """Build the application.

    Args:
        runs: The runs, each at `/runs/NAME/predict`; a single one at `/predict` too.
        limits: What requests may ask for.
        hosts: Names that a request may call this server by; any where empty.
    """
    batcher = Batcher(batch=limits.batch, wait=limits.wait_ms / 1000, queue=limits.queue)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        batcher.start()
        yield
        await asyncio.to_thread(batcher.stop)

    app = FastAPI(title="icecore", docs_url=None, redoc_url=None, lifespan=lifespan)  # those pages load from elsewhere
    app.state.batcher = batcher
    app.add_exception_handler(RequestValidationError, _explain_invalid)
    app.add_exception_handler(HTTPException, _explain_http)
    app.add_exception_handler(Exception, _explain_failure)
    app.add_middleware(BodyLimit, limits=limits)
    if hosts:
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=list(hosts))

    async def healthz() -> JSONResponse:
        """Say whether predictions are made."""
        health = Health(
            status="ok" if batcher.is_alive else "down", runs=[run.name for run in runs], waiting_rows=batcher.n_rows
        )
        return JSONResponse(health.model_dump(), 200 if batcher.is_alive else 503)

    app.get("/healthz", response_model=Health)(healthz)
    for run in runs:
        _add_run(app, run, batcher, limits, [f"/runs/{run.name}/predict"] + ["/predict"] * (len(runs) == 1))
    return app


def _add_run(app: FastAPI, run: ServedRun, batcher: Batcher, limits: Limits, paths: Sequence[str]) -> None:
    """Add the addresses of a run, with its schema."""
    body_type, answer_type = request_model(run, most_rows=limits.rows), answer_model(run)

    async def predict(body: Any) -> Any:
        longest = max(map(len, texts_of(run, body)))
        if longest > limits.text:
            return _problem(413, f"a text has {longest:,} characters; allowed: {limits.text:,}. Shorten it.")
        rows = read_rows(run, body)
        job = Job(
            run.scorer,
            rows,
            with_probabilities=getattr(body, "probabilities", False),
            is_clipped=getattr(body, "clip", False),
        )
        try:
            answers = await asyncio.wait_for(asyncio.wrap_future(batcher.submit(job)), limits.timeout)
        except QueueFullError:
            return _problem(503, f"{batcher.n_rows:,} rows wait already; try again in a second.", RETRY_AFTER)
        except TimeoutError:
            return _problem(503, f"there was no answer within {limits.timeout:g} s; try again.", RETRY_AFTER)
        except HeadError as error:
            return _problem(422, str(error))
        predictions = [write_answer(run, row, answer) for row, answer in zip(rows, answers, strict=True)]
        return {"head": run.scorer.name, "predictions": predictions}

    parameter = inspect.Parameter("body", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=body_type)
    predict.__dict__["__signature__"] = inspect.Signature([parameter])  # a type that is built above
    about = f"Predict rows with {run.scorer.name} of {run.name}, a run on {run.kind}."
    refusals: dict[int | str, dict[str, Any]] = {code: {"model": Problem} for code in (413, 422, 503)}
    for path in paths:
        app.post(
            path,
            response_model=answer_type,
            response_model_exclude_none=True,
            responses=refusals,
            summary=about,
        )(predict)


def _problem(code: int, text: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"error": text}, code, headers)


async def _explain_invalid(_: Request, error: Exception) -> JSONResponse:
    """Name the first place that is not as the schema says; what was sent is not repeated."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where = ".".join(map(str, first["loc"]))
    return _problem(422, f"{where[:200]}: {first['msg']}; the schema is at /openapi.json.")


async def _explain_http(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    return _problem(error.status_code, str(error.detail), error.headers)


async def _explain_failure(_: Request, error: Exception) -> JSONResponse:
    return _problem(500, f"the request failed ({first_line(error)}).")


class BodyLimit:
    """Reads a request's body before anything else does, as far as it may be long, and as long as it may take."""

    def __init__(self, app: Any, limits: Limits) -> None:
        self._app, self._limits = app, limits

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Refuse a body that is too long or too slow, or hand it on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            body = await asyncio.wait_for(self._read(scope, receive), self._limits.timeout)
        except _TooLongError:
            problem = f"the body is longer than {self._limits.body:,} bytes; send fewer or shorter rows."
            await _discard(receive)
            await _close(scope, receive, send, 413, problem)
            return
        except TimeoutError:
            problem = f"the body did not arrive within {self._limits.timeout:g} s; send it faster."
            await _close(scope, receive, send, 408, problem)
            return
        messages = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def replay() -> Message:
            message = next(messages, None)
            return message if message is not None else await receive()

        await self._app(scope, replay, send)

    async def _read(self, scope: Message, receive: Receive) -> bytes:
        declared = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
        if declared.isdigit() and int(declared) > self._limits.body:
            raise _TooLongError
        parts, n_bytes, has_more = [], 0, True
        while has_more:
            message = await receive()
            if message["type"] == "http.disconnect":
                break
            parts.append(message.get("body", b""))
            n_bytes += len(parts[-1])
            has_more = message.get("more_body", False)
            if n_bytes > self._limits.body:
                raise _TooLongError
        return b"".join(parts)


async def _discard(receive: Receive) -> None:
    """Pass over the rest of a body for a moment: most clients read no answer before they have sent all."""
    with suppress(TimeoutError):
        async with asyncio.timeout(DISCARD_SECONDS):
            while (message := await receive())["type"] == "http.request" and message.get("more_body", False):
                pass


class _TooLongError(Exception):
    pass


async def _close(scope: Message, receive: Receive, send: Send, code: int, text: str) -> None:
    """Answer without having read the body, and end the connection, as the rest of the body is still to come."""
    await JSONResponse({"error": text}, code, {"Connection": "close"})(scope, receive, send)


class PatientServer(uvicorn.Server):
    """A server that ends in peace: what was asked is answered, and the exit code is 0."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop at SIGINT and SIGTERM, without raising them again afterwards."""
        is_main = threading.current_thread() is threading.main_thread()  # no other may handle signals
        numbers = (signal.SIGINT, signal.SIGTERM) if is_main else ()
        previous = {number: signal.signal(number, self.handle_exit) for number in numbers}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)


def bind(host: str, port: int) -> socket.socket:
    """Take a port, any that is free for 0; `ConfigError` where that is not possible."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(1024)
    except (OSError, OverflowError) as error:
        listener.close()
        raise ConfigError(
            f"{host}, port {port} cannot be used ({first_line(error)}); name another with --port, or 0 for any."
        ) from error
    return listener


def build_server(runs: Sequence[ServedRun], limits: Limits, *, host: str) -> PatientServer:
    """Build a server, to be run with `sockets=[bind(host, port)]` until SIGINT or SIGTERM.

    Args:
        runs: The runs.
        limits: What requests may ask for.
        host: The address that it listens on.
    """
    hosts = (*LOOPBACK, "[::1]") if host in LOOPBACK else ()  # no page of a stranger's web site gets here by its name
    config = uvicorn.Config(
        build_app(runs, limits, hosts=hosts),
        log_level="warning",
        access_log=False,
        server_header=False,
        limit_concurrency=limits.queue,
        timeout_keep_alive=5,
        timeout_graceful_shutdown=int(limits.timeout) + 1,
        h11_max_incomplete_event_size=1 << 16,
    )
    return PatientServer(config)
