"""What requests and answers hold: a schema per kind of task, as pydantic models."""

from collections.abc import Iterator
from typing import Annotated, Any, cast

from pydantic import BaseModel, ConfigDict, Field, create_model

from probes.runs.new_rows import NewRow
from probes.runs.predict import Answer
from probes.service.served_run import ServedRun


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
    if run.can_clip:
        options["clip"] = (Annotated[bool, Field(description="Keep predictions in the range of gold.")], False)
    return create_model(f"Request-{run.name}", __base__=_Strict, rows=rows, **options)


def answer_model(run: ServedRun) -> type[BaseModel]:
    """Build the model of answers of a run: a prediction per row, in the order of the rows."""
    name = run.predicts
    value: Any = float | None
    fields: dict[str, Any] = {}
    if run.scorer.reads_words:
        fields = {"word": (list[str] | None, None), name: (list[str | None] | None, None)}
    elif run.kind == "classes":
        fields = {name: (str | None, None), "probabilities": (dict[str, float] | None, None)}
    else:
        fields = {name: (value, None)}
    error: Any = (Annotated[str | None, Field(description="Why a row has no prediction.")], None)
    row = create_model(f"Prediction-{run.name}", error=error, **fields)
    return create_model(f"Answer-{run.name}", head=(str, ...), predictions=(list[row], ...))  # type: ignore[valid-type]


def read_rows(run: ServedRun, body: Any) -> list[NewRow]:
    """Read the rows of a request; a blank text is a row with an error."""
    return [
        run.reader.read_values(row.model_dump(), run.columns, where=f"row {number}")
        for number, row in enumerate(body.rows)
    ]


def texts_of(run: ServedRun, body: Any) -> Iterator[str]:
    """Yield every text of a request; the words of a sentence as one."""
    for row in body.rows:
        for name in run.columns:
            text = getattr(row, name)
            yield text if isinstance(text, str) else " ".join(text)


def write_answer(run: ServedRun, row: NewRow, answer: Answer) -> dict[str, Any]:
    """Write what became of a row."""
    if row.row is None or answer.prediction is None:
        return {"error": answer.error}
    fields = run.scorer.fields(row.row, answer.prediction)
    values = {name: value for name, value in fields.items() if not name.startswith("text")}
    return {**values, **({"probabilities": dict(answer.probabilities)} if answer.probabilities else {})}
