"""The report of a run on words: tables and summary."""

from collections.abc import Iterator
from typing import Any

from rich.table import Table

from probes.report.summary import reported_split
from probes.report.table import interval, markdown_table, spread, terminal_table

SCREEN_COLUMNS = ("head", "layer", "metric", "validation", "test", "95 % interval")  # 80 columns
COLUMNS = (*SCREEN_COLUMNS, "majority tag of each word, test", "seeds", "epochs")
TYPE_COLUMNS = ("type", "precision", "recall", "F1", "gold")
MOST_TYPES = 60


def word_rows(scores: dict[str, Any]) -> list[tuple[str, ...]]:
    """Lay the scores of a run out as rows of text, one per head, times 100.

    Args:
        scores: The content of scores.json.

    Returns:
        Rows in the columns of `COLUMNS`; mean ± standard deviation over seeds.
    """
    rows: list[tuple[str, ...]] = []
    for name, result in scores["heads"].items():
        metric = result["metric"]
        summary = {split: found[metric] for split, found in result["summary"].items()}
        validation, test = summary.get("validation"), summary.get("test")
        rows.append(
            (
                name + (" (optimistic)" if result["is_optimistic"] else ""),
                result["chosen"]["layer"],
                metric + (" (strict)" if result["options"]["is_strict"] and metric == "span-f1" else ""),
                spread(validation) if validation else "-",
                spread(test) if test else "-",
                interval(test) if test else "-",
                f"{100 * result['majority']['test']:.1f}" if test else "-",
                str(len(result["seeds"])),
                ", ".join(str(entry["best_epoch"]) for entry in result["seeds"]),
            )
        )
    return rows


def word_table(scores: dict[str, Any]) -> Table:
    """Make the table for a terminal."""
    rows = [tuple(row[COLUMNS.index(column)] for column in SCREEN_COLUMNS) for row in word_rows(scores)]
    return terminal_table(scores, rows, SCREEN_COLUMNS)


def word_summary(scores: dict[str, Any], figures: dict[str, str]) -> str:
    """Write the summary of a run on words.

    Args:
        scores: The content of scores.json.
        figures: Title to file name, relative to the run folder.

    Returns:
        Markdown.
    """
    task = scores["task"]
    sample = "\n> The task is a **sample** shipped with the project: its scores are no benchmark result.\n"
    unit = task["resampled"].get("test", "sentences")
    lines = [
        f"# {scores['name']}",
        sample if task["is_sample"] else "",
        f"Command: `{scores['command']}`\n",
        markdown_table(word_rows(scores), COLUMNS),
        f"\nScores times 100, mean ± standard deviation over seeds; the interval is a {scores['n_resamples']}-fold "
        f"bootstrap over test {unit}. Spans are counted by the rules of conlleval, unless marked strict. "
        f"{without_latent(scores)} Chosen on: "
        + "; ".join(f"`{name}` {result['selection']}" for name, result in scores["heads"].items())
        + f" (protocol `{scores['protocol']}`, docs/protocol.md).",
        *_departure_lines(scores),
        *_decoding_lines(scores),
        *_type_lines(scores),
        *_error_lines(scores),
        *_layer_lines(scores),
        *_mix_lines(scores),
        *_used_lines(scores),
    ]
    if task["notes"]:
        lines += ["\n## Mind in the data\n", *(f"- {note}" for note in task["notes"])]
    lines += ["\n## Figures\n", *(f"![{title}]({file})" for title, file in figures.items())]
    return "\n".join(line for line in lines if line) + "\n"


def without_latent(scores: dict[str, Any]) -> str:
    """Say what becomes of words without a latent, head by head where heads differ.

    Args:
        scores: The content of scores.json.
    """
    left_out = [name for name, result in scores["heads"].items() if result["options"]["leaves_out_cut"]]
    if not left_out:
        return "A word without a latent is an error."
    if len(left_out) == len(scores["heads"]):
        return "Words without a latent are left out of the scores."
    names = ", ".join(f"`{name}`" for name in left_out)
    return f"A word without a latent is an error; {names} leaves such words out of its scores."


def _departure_lines(scores: dict[str, Any]) -> Iterator[str]:
    found = {f"- `{name}`: {line}" for name, result in scores["heads"].items() for line in result["departures"]}
    for name, result in scores["heads"].items():
        if result["is_optimistic"]:
            found.add(f"- `{name}`: **optimistic**: words without a latent are left out of the scores")
    if found:
        yield f"\n## Where this differs from the protocol `{scores['protocol']}`, or is optimistic\n"
        yield from sorted(found)


def _decoding_lines(scores: dict[str, Any]) -> Iterator[str]:
    rows = [
        (name, split, *(f"{100 * found[way]:.1f}" for way in found))
        for name, result in scores["heads"].items()
        for split, found in result["decoding"].items()
        if found and split != "train"
    ]
    if rows:
        ways = next(found for result in scores["heads"].values() for found in result["decoding"].values() if found)
        yield "\n## Tags decoded in other ways\n"
        yield (
            "Nothing here is trained. *repaired*: an I that begins a span becomes a B, which only the strict count "
            "sees. *legal*: the best of the sequences that obey IOB2. Without *strict*: by the rules of conlleval.\n"
        )
        yield markdown_table(rows, ("head", "split", *ways))


def _type_lines(scores: dict[str, Any]) -> Iterator[str]:
    for name, result in scores["heads"].items():
        split = reported_split(result["by_type"])
        rows = [
            (row["type"], *(f"{100 * row[key]:.1f}" for key in ("precision", "recall", "f1")), f"{row['n_gold']:,}")
            for row in result["by_type"][split][:MOST_TYPES]
        ]
        yield f"\n## `{name}` by {'tag' if result['metric'] == 'accuracy' else 'type'}, {split}\n"
        yield markdown_table(rows, TYPE_COLUMNS)


def _error_lines(scores: dict[str, Any]) -> Iterator[str]:
    for name, result in scores["heads"].items():
        split = reported_split(result["errors"])
        rows = [
            (row["gold"], row["predicted"], f"{row['n']:,}", ", ".join(_cell(word) for word in row["words"]))
            for row in result["errors"][split]
        ]
        if rows:
            yield f"\n## Most frequent errors of `{name}`, {split}, first seed\n"
            yield markdown_table(rows, ("gold", "predicted", "words", "such as"))


def _layer_lines(scores: dict[str, Any]) -> Iterator[str]:
    for name, result in scores["heads"].items():
        curve = result["curve"]
        if curve and len(result["layers"]) > 1:
            many = len(curve["values"]) > 1
            rows = [
                (layer, f"{100 * mean:.1f}" + (f" ± {100 * std:.1f}" if many else ""))
                for layer, mean, std in zip(result["layers"], curve["mean"], curve["std"], strict=True)
            ]
            yield f"\n## `{name}`: every layer, {curve['split']}\n"
            yield markdown_table(rows, ("layer", result["metric"]))


def _mix_lines(scores: dict[str, Any]) -> Iterator[str]:
    for name, result in scores["heads"].items():
        mix = result.get("mix", {})
        if mix:
            columns = {key: mix[key] for key in ("alone", "without") if key in mix}
            yield f"\n## What each layer gives `{name}`\n"
            yield (
                "The weight is of layer-normed layers; layers that say the same share it. *alone*: the score with this "
                "layer in place of the mix. *without*: what is lost when the others share its weight (validation).\n"
            )
            rows = [
                (layer, f"{weight:.3f}", *(f"{100 * column[k]:.1f}" for column in columns.values()))
                for k, (layer, weight) in enumerate(zip(mix["layers"], mix["weights"], strict=True))
            ]
            yield markdown_table(rows, ("layer", "weight", *columns))


def _used_lines(scores: dict[str, Any]) -> Iterator[str]:
    task, cache, decoder = scores["task"], scores["cache"], scores["decoder"]
    counts = task["words_in_cache"]
    yield "\n## What was used\n"
    yield (
        f"- Decoder: `{decoder['name']}` ({decoder['family']}, {decoder['n_layers']} blocks, width {decoder['width']}, "
        f"{decoder['dtype']}, weights `{decoder['weight_digest'][:12]}`)"
    )
    yield (
        f"- Plan `{cache['plan']}`, word poolings {', '.join(cache['poolings'])}, BOS policy "
        f"`{cache['template']['bos']}`"
    )
    yield (
        f"- Cache: `{cache['file']}`, {counts['n_words']:,} words; {counts['n_cut']:,} cut off, {counts['n_lost']:,} "
        f"covered by no token, {counts['n_shared']:,} begin inside a token; {counts['n_windows']:,} sentences read in "
        "windows"
    )
    yield (
        f"- Task: `{task['name']}`, {task['source']}; {len(task['tags'])} tags; "
        + ", ".join(
            f"{split} {n:,} sentences ({task['n_words'][split]:,} words)" for split, n in task["n_sentences"].items()
        )
    )
    for name, result in scores["heads"].items():
        missing = [
            f"{split} {found['n_cut'] + found['n_lost']:,} of {found['n_words']:,}"
            for split, found in result["coverage"].items()
        ]
        yield f"- `{name}`: pooling {result['pooling']}; words without a latent: " + ", ".join(missing)


def _cell(word: str) -> str:
    """Keep a word from breaking its table."""
    return word.replace("|", "\\|").replace("`", "'")
