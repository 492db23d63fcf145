"""Finished runs over HTTP: the runs, their messages, rows predicted together, addresses and limits."""

import asyncio
import inspect
import re
import signal
import socket
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, MutableMapping, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Annotated, Any, ClassVar, cast

import h11
import uvicorn
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field, create_model
from starlette.exceptions import HTTPException
from starlette.middleware.trustedhost import TrustedHostMiddleware
from uvicorn.protocols.http.h11_impl import H11Protocol

from extract.decoders.decoder import Decoder
from extract.errors import ConfigError, HeadError, UsageError, first_line
from probes.heads.head_table import HEADS
from probes.runs.new_rows import NewRow, RowReader
from probes.runs.predict import Answer, LoadedRun, RowScorer, moved_decoder, read_run_folder
from probes.runs.task_kinds import KINDS


@dataclass(frozen=True, eq=False)
class ServedRun:
    """One run of a service."""

    name: str
    """Its part of the address."""
    scorer: RowScorer
    reader: RowReader

    @property
    def kind(self) -> str:
        """Kind of its task."""
        return self.scorer.kind

    @property
    def predicts(self) -> str:
        """What a prediction is called."""
        return "tag" if self.scorer.reads_words else KINDS[self.kind].predicts

    @property
    def columns(self) -> tuple[str, ...]:
        """Keys of the texts of a row."""
        n_texts = self.scorer.n_texts
        if n_texts > 1:
            return tuple(f"text{k}" for k in range(1, n_texts + 1))
        return ("words" if self.scorer.reads_words else "text",)

    @property
    def gives_probabilities(self) -> bool:
        """Whether its head gives the probability of every class."""
        return HEADS[self.scorer.name].gives_probabilities


def open_runs(
    folders: Sequence[str], *, head: str = "", decoder: str = "", trust_remote_code: bool = False
) -> list[ServedRun]:
    """Open runs, each decoder once, and predict a row with each, so that the first request is no slower than others."""
    if not folders:
        raise UsageError("no run was named; give one or several, as runs/demo.")
    runs: dict[str, ServedRun] = {}
    decoders: dict[str, Decoder] = {}
    for path in folders:
        folder = read_run_folder(path)
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", folder.path.resolve().name)
        if name in runs:
            raise UsageError(f"two runs are called {name!r}, which is part of their address; rename a folder.")
        spec = moved_decoder(folder.decoder, decoder or None)
        if Path(spec.name).exists():
            spec = replace(spec, name=str(Path(spec.name).resolve()))
        key = repr(spec)
        run = LoadedRun(folder, decoder=decoders.get(key) or decoder or None, trust_remote_code=trust_remote_code)
        scorer = run.scorer(head)
        decoders.setdefault(key, scorer.decoder)
        row = "ice" if scorer.n_texts == 1 else ("ice",) * scorer.n_texts
        scorer.score([row])  # a kind whose rows mean nothing alone says so
        runs[name] = ServedRun(name, scorer, run.reader(head))
    return list(runs.values())


# --- What requests and answers hold: a schema per kind of task ---


class _Strict(BaseModel):
    """No unknown key, and no text where a number is needed."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Health(BaseModel):
    """The answer of `/healthz`."""

    status: str
    """`ok`, or `down` with status 503 when predictions have stopped."""
    runs: list[str]
    waiting_rows: int
    """Rows that wait or are predicted."""


class Problem(BaseModel):
    """The answer to a request that was refused."""

    error: str


def request_model(run: ServedRun, *, most_rows: int) -> type[BaseModel]:
    """Build the model of requests to a run: rows of its texts, and options that its head has."""
    text: Any = (Annotated[str, Field(description="A text.")], ...)
    if run.scorer.reads_words:
        text = (Annotated[list[str] | str, Field(description="The words of a sentence, or a text to split.")], ...)
    row = create_model(f"Row-{run.name}", __base__=_Strict, **cast(Any, dict.fromkeys(run.columns, text)))
    rows: Any = (Annotated[list[row], Field(min_length=1, max_length=most_rows)], ...)  # type: ignore[valid-type]
    options: dict[str, Any] = {}
    if run.gives_probabilities:
        options["probabilities"] = (Annotated[bool, Field(description="Add the probability of every class.")], False)
    if run.kind in ("pairs", "numbers") and run.scorer.gold_range is not None:
        options["clip"] = (Annotated[bool, Field(description="Keep predictions in the range of gold.")], False)
    return create_model(f"Request-{run.name}", __base__=_Strict, rows=rows, **options)


def answer_model(run: ServedRun) -> type[BaseModel]:
    """Build the model of answers of a run: a prediction per row, in the order of the rows."""
    fields: dict[str, Any] = {run.predicts: (float | None, None)}
    if run.scorer.reads_words:
        fields = {"word": (list[str] | None, None), run.predicts: (list[str | None] | None, None)}
    elif run.kind == "classes":
        fields = {run.predicts: (str | None, None), "probabilities": (dict[str, float] | None, None)}
    error: Any = (Annotated[str | None, Field(description="Why a row has no prediction.")], None)
    row = create_model(f"Prediction-{run.name}", error=error, **fields)
    return create_model(f"Answer-{run.name}", head=(str, ...), predictions=(list[row], ...))  # type: ignore[valid-type]


def read_rows(run: ServedRun, body: Any) -> list[NewRow]:
    """Read the rows of a request; a blank text is a row with an error."""
    return [
        run.reader.read_values(row.model_dump(), run.columns, where=f"row {number}")
        for number, row in enumerate(body.rows)
    ]


def write_answer(run: ServedRun, row: NewRow, answer: Answer) -> dict[str, Any]:
    """Write what became of a row."""
    if row.row is None or answer.prediction is None:
        return {"error": answer.error}
    fields = run.scorer.fields(row.row, answer.prediction)
    values = {name: value for name, value in fields.items() if not name.startswith("text")}
    return {**values, **({"probabilities": dict(answer.probabilities)} if answer.probabilities else {})}


# --- Rows of many requests predicted together ---


class QueueFullError(Exception):
    """More rows wait than the queue may hold."""


@dataclass(frozen=True, eq=False)
class Job:
    """The rows of one request, and what they are answered with."""

    scorer: RowScorer
    rows: Sequence[NewRow]
    with_probabilities: bool = False
    is_clipped: bool = False
    answers: "Future[list[Answer]]" = field(default_factory=Future)


class Batcher:
    """Predicts the rows of waiting requests together, in one thread, so that decoders are never used by two.

    A request of more than `batch` rows is predicted alone; the first of a batch waits `wait` seconds for others.
    """

    def __init__(self, *, batch: int, wait: float, queue: int) -> None:
        self._batch, self._wait, self._most = batch, wait, queue
        self._jobs = SimpleQueue[Job | None]()  # None ends the thread
        self._lock = threading.Lock()
        self.n_rows = 0
        """Rows that wait or are predicted."""
        self._thread = threading.Thread(target=self._work, name="predictions", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self, seconds: float = 10.0) -> None:
        """Predict what waits, and end the thread; what is not done after some seconds is left."""
        self._jobs.put(None)
        self._thread.join(seconds)

    @property
    def is_alive(self) -> bool:
        """Whether the thread works."""
        return self._thread.is_alive()

    def submit(self, job: Job) -> "Future[list[Answer]]":
        """Put a request in the queue; `QueueFullError` where it has no room."""
        with self._lock:
            if self.n_rows + len(job.rows) > self._most:
                raise QueueFullError
            self.n_rows += len(job.rows)

        def leave(_: object) -> None:
            with self._lock:
                self.n_rows -= len(job.rows)

        job.answers.add_done_callback(leave)
        self._jobs.put(job)
        return job.answers

    def _work(self) -> None:
        pending = [self._jobs.get()]
        while (first := pending.pop()) is not None:
            jobs, pending = self._collect(first)
            groups: dict[tuple[int, bool, bool], list[Job]] = {}
            for job in jobs:
                if job.answers.set_running_or_notify_cancel():  # nobody waits for one that ran out of time
                    key = (id(job.scorer), job.with_probabilities, job.is_clipped)
                    groups.setdefault(key, []).append(job)
            for group in groups.values():
                _answer(group)
            pending = pending or [self._jobs.get()]

    def _collect(self, first: Job) -> tuple[list[Job], list[Job | None]]:
        """Take the jobs of a batch, and the one that begins the next if it has come."""
        jobs, n_rows, until = [first], len(first.rows), time.monotonic() + self._wait
        while n_rows < self._batch:
            try:
                job = self._jobs.get(timeout=max(0.0, until - time.monotonic()))
            except Empty:
                break
            if job is None or n_rows + len(job.rows) > self._batch:
                return jobs, [job]
            jobs.append(job)
            n_rows += len(job.rows)
        return jobs, []


def _answer(jobs: Sequence[Job]) -> None:
    """Predict the rows of jobs of one head, and give each its answers, or the error of all."""
    first = jobs[0]
    try:
        answers = first.scorer.answer(
            [row for job in jobs for row in job.rows],
            with_probabilities=first.with_probabilities,
            is_clipped=first.is_clipped,
        )
    except BaseException as error:  # the thread outlives whatever happens
        for job in jobs:
            job.answers.set_exception(error)
        return
    start = 0
    for job in jobs:
        job.answers.set_result(answers[start : start + len(job.rows)])
        start += len(job.rows)


# --- The application and its server ---


LOOPBACK = ("127.0.0.1", "localhost", "::1")
DISCARD_SECONDS = 0.5
RETRY_AFTER = {"Retry-After": "1"}
CLOSE = {"Connection": "close"}
"""Of an answer without the body having been read, as the rest of it is still to come."""
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
    """Build the application, which a request may call by the names in `hosts`, or any where there are none.

    A run is at `/runs/NAME/predict`; a single one at `/predict` too.
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
        texts = (getattr(row, name) for row in body.rows for name in run.columns)  # the words of a sentence are one
        longest = max(len(text if isinstance(text, str) else " ".join(text)) for text in texts)
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
        options: dict[str, Any] = {"response_model_exclude_none": True, "responses": refusals, "summary": about}
        app.post(path, response_model=answer_type, **options)(predict)


def _problem(code: int, text: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"error": text}, code, headers)


async def _explain_invalid(request: Request, error: Exception) -> JSONResponse:
    """Name the first place that is not as the schema says; what was sent is not repeated."""
    assert isinstance(error, RequestValidationError)
    kind = request.headers.get("content-type", "")
    if "json" not in kind:
        return _problem(422, f"the header Content-Type is {kind[:60]!r}; send application/json, as curl --json does.")
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
            with suppress(TimeoutError):  # pass over the rest for a moment: most clients read no answer before
                async with asyncio.timeout(DISCARD_SECONDS):  # they have sent all
                    while (message := await receive())["type"] == "http.request" and message.get("more_body", False):
                        pass
            await _problem(413, problem, CLOSE)(scope, receive, send)
            return
        except TimeoutError:
            problem = f"the body did not arrive within {self._limits.timeout:g} s; send it faster."
            await _problem(408, problem, CLOSE)(scope, receive, send)
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


class _TooLongError(Exception):
    pass


class HeadTimeout(H11Protocol):
    """Closes a connection on which the head of a request does not come in time, which uvicorn would keep for ever."""

    seconds: ClassVar[float] = 30.0
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first head."""
        super().connection_made(transport)
        self._timer = self.loop.call_later(self.seconds, transport.close)

    def data_received(self, data: bytes) -> None:
        """Stop the clock when a head is there; start it where another has begun."""
        super().data_received(data)
        is_waiting = self.conn.their_state is h11.IDLE
        if self._timer is not None and not is_waiting:
            self._timer.cancel()
            self._timer = None
        elif self._timer is None and is_waiting:
            self._timer = self.loop.call_later(self.seconds, self.transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the clock."""
        super().connection_lost(exc)
        if self._timer is not None:
            self._timer.cancel()


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
    """Build a server, to be run with `sockets=[bind(host, port)]` until SIGINT or SIGTERM."""
    hosts = (*LOOPBACK, "[::1]") if host in LOOPBACK else ()  # no page of a stranger's web site gets here by its name
    config = uvicorn.Config(
        build_app(runs, limits, hosts=hosts),
        http=type("Protocol", (HeadTimeout,), {"seconds": limits.timeout}),
        log_level="warning",
        access_log=False,
        server_header=False,
        limit_concurrency=limits.queue,
        timeout_keep_alive=5,
        timeout_graceful_shutdown=int(limits.timeout) + 1,
        h11_max_incomplete_event_size=1 << 16,
    )
    return PatientServer(config)
