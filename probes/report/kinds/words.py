"""The report of a run on words with tags."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from probes.report import table
from probes.report.blocks import Block, Heading, Item, Table
from probes.report.document import Context, KindReport
from probes.report.predictions import write_conll
from probes.tasks.words.task import WordTask

MOST_TYPES = 60
SHARES = ("precision", "recall", "f1")


def _metric(row: table.Row) -> str:
    return row.metric + (" (strict)" if row.result.options.get("is_strict") and row.metric == "span-f1" else "")


def without_latent(context: Context) -> Iterator[Block]:
    """Say how spans are counted, and what becomes of words without a latent, head by head where heads differ."""
    names = [f"`{name}`" for name, result in context.results if result.options.get("leaves_out_cut")]
    if not names:
        missing = "A word without a latent is an error."
    elif len(names) == len(context.scores.heads):
        missing = "Words without a latent are left out of the scores."
    else:
        missing = f"A word without a latent is an error; {', '.join(names)} leaves such words out of its scores."
    yield f"Spans are counted by the rules of conlleval, unless marked strict. {missing}"


def _decoding(context: Context) -> Iterator[Block]:
    rows = [
        (name, split, result.chosen.get("decoding", "plain"), *map(table.percent, found.values()))
        for name, result, decoding in context.with_extra("decoding")
        for split, found in decoding.items()
        if found and split != "train"
    ]
    if rows:
        ways = next(scores for *_, decoding in context.with_extra("decoding") for scores in decoding.values() if scores)
        yield Heading("How tags are decoded")
        yield (
            "The scores above are those of the way chosen on validation, with the layer, unless an option or the "
            "protocol sets it. *plain*: the best tag of each word. *repaired*: an I that begins a span becomes a B, "
            "which only the strict count sees. *legal*: the best of the sequences that obey IOB2. Without *strict*: by "
            "the rules of conlleval."
        )
        yield Table(("head", "split", "chosen", *ways), rows)


def _types(context: Context) -> Iterator[Block]:
    for name, result, by_type in context.with_extra("by_type"):
        split = result.reported_split
        rows = [
            (table.cell(row["type"]), *(table.percent(row[key]) for key in SHARES), f"{row['n_gold']:,}")
            for row in by_type[split][:MOST_TYPES]
        ]
        yield Heading(f"`{name}` by {'tag' if result.metric == 'accuracy' else 'type'}, {split}")
        yield Table(("type", "precision", "recall", "F1", "gold"), rows)


def _errors(context: Context) -> Iterator[Block]:
    for name, result, errors in context.with_extra("errors"):
        split = result.reported_split
        rows = [
            (
                table.cell(row["gold"]),
                table.cell(row["predicted"]),
                f"{row['n']:,}",
                ", ".join(map(table.cell, row["words"])),
            )
            for row in errors[split]
        ]
        if rows:
            yield Heading(f"Most frequent errors of `{name}`, {split}, first seed")
            yield Table(("gold", "predicted", "words", "such as"), rows)


def _layers(context: Context) -> Iterator[Block]:
    for name, result in context.results:
        for curve in result.curves if len(result.layers) > 1 else ():
            spread = [f" ± {table.percent(value)}" if len(curve.by_seed) > 1 else "" for value in curve.spread]
            rows = [
                (layer, table.percent(value) + more)
                for layer, value, more in zip(result.layers, curve.values, spread, strict=True)
            ]
            yield Heading(f"`{name}`: every layer, {curve.split}")
            yield Table(("layer", curve.metric), rows)


def _mix(context: Context) -> Iterator[Block]:
    for name, result in context.results:
        if mix := result.extras.get("mix"):
            columns = [key for key in ("alone", "without") if key in mix]
            yield Heading(f"What each layer gives `{name}`")
            yield (
                "The weight is of layer-normed layers; layers that say the same share it. *alone*: the score with this "
                "layer in place of the mix. *without*: what is lost when the others share its weight. Both on "
                "validation, with plain tags."
            )
            rows = [
                (layer, f"{mix['weights'][k]:.3f}", *(table.percent(mix[column][k]) for column in columns))
                for k, layer in enumerate(mix["layers"])
            ]
            yield Table(("layer", "weight", *columns), rows)


def _words(context: Context) -> Iterator[Block]:
    task, counts = context.scores.header.task, context.scores.header.task["words_in_cache"]
    counted = ", ".join(f"{split} {n:,}" for split, n in task["n_words"].items())
    yield Item(f"Words: {counted}; {len(task['tags'])} tags")
    yield Item(
        f"Words in the cache: {counts['n_words']:,}; {counts['n_cut']:,} cut off, {counts['n_lost']:,} covered by no "
        f"token, {counts['n_shared']:,} begin inside a token; {counts['n_windows']:,} sentences read in windows"
    )
    for name, result, coverage in context.with_extra("coverage"):
        missing = [
            f"{split} {found['n_cut'] + found['n_lost']:,} of {found['n_words']:,}" for split, found in coverage.items()
        ]
        yield Item(f"`{name}`: pooling {result.pooling}; words without a latent: {', '.join(missing)}")


def _inputs(task: WordTask, split: str) -> dict[str, list[Any]]:
    sentences = task.rows(split)["words"]
    places = [(row, position) for row, words in enumerate(sentences) for position in range(len(words))]
    rows, positions = (list(each) for each in zip(*places, strict=True))
    return {"row": rows, "position": positions, "word": [word for words in sentences for word in words]}


def _units(task: WordTask, split: str) -> list[str] | None:
    units = task.units(split)
    if units is None:
        return None
    return [name for name, words in zip(units, task.rows(split)["words"], strict=True) for _ in words]


WORDS_REPORT = KindReport(
    columns=(
        table.HEAD, table.POINT, table.Column("metric", _metric), *table.SCORES,
        table.majority_column("majority tag of each word, test"), replace(table.SEEDS, on_screen=False), table.EPOCHS,
    ),
    metrics=lambda result: tuple(result.summary[result.reported_split]),
    inputs=_inputs,
    gold=lambda task, split: [tag for tags in task.splits[split]["tags"] for tag in tags],
    units=_units,
    resampled=lambda task: str(task["resampled"].get("test", "sentences")),
    remarks=(without_latent,),
    sections=(_decoding, _types, _errors, _layers, _mix),
    used=(_words,),
    bare=table.beside_majority("the majority tag of each word"),
    writers=(write_conll,),
)  # fmt: skip
