"""Commands that extract, fit and predict: run, extract, fit, sweep, score, predict, embed."""

import io
import json
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, count
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from rich.console import Console

from extract.decoders.decoder import Decoder, load_decoder
from extract.errors import ConfigError, IcecoreError, InputError, UsageError, first_line, printable, unknown_name
from extract.files import write_file
from extract.inputs.batches import stream_texts
from extract.linear import bfloat16_gain
from extract.masks.mask_plan import (
    MaskPlan,
    parse_counts,
    parse_plan,
    plans_over_k,
    plans_over_k_and_k0,
    plans_over_windows,
)
from extract.run.embed import Estimate, estimate_extraction
from extract.run.extraction import describe_extraction, launched_size, unique_texts
from extract.store.cache import LatentCache, open_cache
from extract.store.exports import WRITERS
from extract.store.manifest import Manifest
from probes.cli.commands import EmbedArgs, ExtractArgs, FitArgs, PredictArgs, RunArgs, ScoreArgs, SweepArgs
from probes.cli.screen import show, watcher_of
from probes.data.table_files import DELIMITERS, JSON_SUFFIXES, PARQUET_SUFFIXES, inner_suffix, read_raw
from probes.data.task import Corpus, Task, load_corpus, read_texts
from probes.heads.head_table import AUTOENCODER
from probes.report.safe_csv import write_csv
from probes.report.write import screen_table
from probes.runs.folder import command_line
from probes.runs.plan_runs import run_search, run_sweep
from probes.runs.predict import LoadedRun, Scorer, load_run, load_scorer
from probes.runs.run import (
    RunResult,
    Watcher,
    check_heads,
    find_sides,
    load_run_task,
    obtain_cache,
    obtain_corpus,
    obtain_shards,
    pretrain,
    run,
)
from probes.runs.run_caches import find_cache_of
from probes.runs.run_config import RunConfig
from probes.runs.task_kinds import KINDS

# --- Runs ---


WORTH_SAYING = 1.3
"""How much faster products must be in bfloat16 for a dry run to say so."""


def run_command(args: RunArgs) -> int:
    """Extract what is missing, fit every head, report."""
    if args.dry_run:
        return _dry_run(args.config, watcher_of(args))
    _show(run(args.config, watcher=watcher_of(args), command=command_line()))
    return 0


def extract_command(args: ExtractArgs) -> int:
    """Extract the latents of a config's task, or of the texts of a file, into a cache, or find them there."""
    if args.ray is not None:
        _check_ray(args)
    if args.shards:
        return _extract_shards(args)
    if args.texts and args.dry_run:
        return _dry_run(args.config, watcher_of(args), [(args.config, read_corpus(args.texts, args.column))])
    if args.texts:
        return embed_file(args.config, args.texts, column=args.column, to=args.out, watcher=watcher_of(args))
    if args.dry_run:
        return _dry_run(args.config, watcher_of(args))
    for config, source in _sources(args.config, load_run_task(args.config)):
        cache = obtain_cache(config, source, watcher=watcher_of(args))
        show(str(cache.path))
    return 0


def _extract_shards(args: ExtractArgs) -> int:
    if args.texts == "-" and launched_size() > 1:
        raise UsageError(
            f"{launched_size()} processes were launched together, and only one can read the standard input; write the "
            "texts to a file that all see, and name it with --texts."
        )
    if args.texts:
        column = column_of(args.texts, args.column)
        lines = (line.rstrip("\n") for line in sys.stdin if line.strip())
        stream: Iterable[str] = lines if args.texts == "-" else stream_texts(args.texts, column=column)
        sources: list[tuple[RunConfig, str, Iterable[Any]]] = [(args.config, Path(args.texts).name, stream)]
    else:
        all_of_run = _sources(args.config, load_run_task(args.config))
        sources = [(config, source.name, source.texts()) for config, source in all_of_run]
    for config, name, texts in sources:
        folder = Path(args.shards, name if len(sources) > 1 else "")
        cache = obtain_shards(
            config, texts, name=name, folder=folder, window=args.window, n_on_ray=args.ray, watcher=watcher_of(args)
        )
        show(str(cache.path))
    return 0


def _check_ray(args: ExtractArgs) -> None:
    if args.ray is not None and args.ray < 1:
        raise UsageError(f"--ray is {args.ray}; allowed: a number of workers, at least 1.")
    if not args.shards:
        raise UsageError("--ray lets workers fill a folder of shards together; name the folder with --shards.")
    if args.texts == "-":
        raise UsageError(
            "--ray lets every worker read the texts, and none of them can read the standard input; write the texts to "
            "a file that all nodes see, and name it with --texts."
        )
    if launched_size() > 1:
        raise UsageError(
            f"{launched_size()} processes were launched together, and --ray starts workers itself; start one process."
        )


def fit_command(args: FitArgs) -> int:
    """Fit and report on a cache that is already there; no decoder is loaded."""
    config, name, head = args.config, args.cache, args.head
    watcher = watcher_of(args)
    if head == AUTOENCODER:
        cache = _open_named(name) if name else find_cache_of(config, _corpus(config))
        result = pretrain(config, cache, watcher=watcher, command=command_line())
        show(f"{result.folder}/summary.md holds the losses of every layer.")
        return 0
    if head:  # a head for another kind of task is refused by name
        config = replace(config, heads={head: config.heads.get(head)})
    cache = _open_named(name) if name else find_cache_of(config, load_run_task(config))
    corpus = obtain_corpus(config)
    corpus_cache = find_cache_of(config, corpus) if corpus else None
    _show(run(config, cache=cache, corpus_cache=corpus_cache, watcher=watcher, command=command_line()))
    return 0


def _corpus(config: RunConfig) -> Corpus:
    spec = config.pretraining
    if not spec.corpus:
        raise ConfigError(
            "there are no texts to fit autoencoders on; give --cache FILE, or name a corpus with pretraining.corpus "
            "(icecore list corpora)."
        )
    return load_corpus(spec.corpus, spec.texts, spec.options)


def _sources(config: RunConfig, task: Task) -> list[tuple[RunConfig, Task | Corpus]]:
    """Give everything whose texts a run extracts, and how: its task, and the corpus that its heads start from.

    Queries and documents are two where the template tells them apart.
    """
    sides, corpus = find_sides(config, task), obtain_corpus(config)
    sources: list[tuple[RunConfig, Task | Corpus]] = [(config, sides.queries if sides else task)]
    if sides:
        sources.append((sides.config, sides.documents))
    return sources if corpus is None else [*sources, (config, corpus)]


def _open_named(name: str) -> LatentCache:
    cache = open_cache(name)
    cache.verify()
    return cache


def _show(result: RunResult) -> None:
    scores = result.record
    Console(markup=False).print(screen_table(scores, KINDS[scores.header.kind].report))
    if scores.header.task["is_sample"]:
        show("The task is a sample shipped with icecore: these scores are no benchmark result.")
    show(f"{result.folder}/report.html is the report; summary.md holds the summary, scores.json the numbers.")


def _dry_run(config: RunConfig, watcher: Watcher, sources: Sequence[tuple[RunConfig, Task | Corpus]] = ()) -> int:
    """Estimate an extraction: of the sources, or where there are none of what a run extracts."""
    notes: list[str] = []
    if not sources:
        task = load_run_task(config)
        notes = [f"note      {note}" for note in task.notes]
        sources = _sources(config, task)
        check_heads(config, task)  # the splits that they need are there, with enough rows
    decoder = load_decoder(config.decoder, report=watcher.say)
    estimates: list[Estimate] = []
    lines: list[str] = []
    for own, source in sources:
        texts = unique_texts(source.texts())
        lines += [f"{source.name}:"] * (len(sources) > 1)
        for spec in own.extraction.members:
            manifest = describe_extraction(decoder, texts, spec)
            estimates.append(estimate_extraction(decoder, texts, spec=spec, manifest=manifest))
            lines += [_settings_text(manifest), _dry_run_text(estimates[-1], len(manifest.layers))]
    if len(estimates) > 1:
        lines += ["together:", _disk_line(estimates), _time_line(estimates)]
    show("\n".join([*lines, *_faster_line(decoder), *notes]))
    return 0


def _faster_line(decoder: Decoder) -> list[str]:
    """Say when bfloat16 would pay on this CPU: a line, or none."""
    weights = [own.weight for own in decoder.module.modules() if isinstance(own, torch.nn.Linear)]
    gain = bfloat16_gain(max(weights, key=torch.Tensor.numel)) if weights else None
    if gain is None or gain < WORTH_SAYING:
        return []
    return [
        f"faster    products take 1/{gain:.1f} of the time in bfloat16 on this processor (--decoder.dtype bfloat16); "
        "docs/speed.md says what that did to scores"
    ]


def _settings_text(manifest: Manifest) -> str:
    """Write out what is in force once defaults and protocol are filled in: plan, template and poolings."""
    template = {key: value for key, value in manifest.identity.template.items() if key != "window"}
    said = ", ".join(f"{key} {'none' if value in (None, '') else repr(value)}" for key, value in template.items())
    return f"plan      {manifest.identity.plan}\ntemplate  {said}\npoolings  {', '.join(manifest.poolings)}"


def _dry_run_text(estimate: Estimate, n_layers: int) -> str:
    """Write an estimate out: rows, tokens, words if any, bytes per pooling and layer, time."""
    what = "unique texts, or windows of them" if estimate.n_words else "unique texts"
    lines = [
        f"rows      {estimate.n_rows:,} {what}, the longest of {estimate.longest:,} tokens, "
        f"{estimate.n_truncated:,} truncated",
        f"example   {estimate.example}",
        f"tokens    {estimate.n_tokens:,}",
        *([f"words     {estimate.n_words:,}"] if estimate.n_words else []),
    ]
    for pooling, size in estimate.bytes_by_pooling().items():
        lines.append(f"{pooling:9} {size / 1e6:,.1f} MB, {size / n_layers / 1e6:,.2f} MB for each of {n_layers} layers")
    return "\n".join([*lines, _disk_line([estimate]), _time_line([estimate])])


def _disk_line(estimates: Sequence[Estimate]) -> str:
    return f"disk      {sum(estimate.n_bytes for estimate in estimates) / 1e6:,.1f} MB in all"


def _time_line(estimates: Sequence[Estimate]) -> str:
    seconds = sum(estimate.seconds for estimate in estimates)
    rate = sum(estimate.n_tokens for estimate in estimates) / seconds
    minutes, rest = divmod(round(seconds), 60)
    return f"time      about {minutes} min {rest} s at {rate:,.0f} tokens/s"


# --- Sweeps ---


def sweep_command(args: SweepArgs) -> int:
    """Extract a task under many plans, sharing what they have in common, and compare heads on each."""
    plans = choose_plans(args)
    if args.dry_run:
        sys.stdout.write("".join(f"{plan.text}\n" for plan in plans))
        return 0
    watcher = watcher_of(args)
    if args.search:
        if args.test != "chosen":
            raise ConfigError(
                f"--test is {args.test!r}, but a search reads test for what it chose and for causal; leave --test or "
                "--search out."
            )
        how: dict[str, Any] = {"strategy": args.search, "budget": args.budget}
        result = run_search(args.config, plans, **how, watcher=watcher, command=command_line())
    else:
        result = run_sweep(args.config, plans, test=args.test, watcher=watcher, command=command_line())
    _show_plans(result)
    return 0


def _show_plans(result: Any) -> None:
    scores = result.record
    for name, choice in scores.chosen.items():
        best = choice.result
        point = f" ({best.chosen['layer']})" if "layer" in best.chosen else ""
        line = f"{name}: best on validation {choice.plan.text}{point}"
        line += "".join(
            f", {split} {best.metric} {100 * best.mean(split):.1f}"
            for split in ("validation", "test")
            if split in best.summary
        )
        if choice.gain is not None:
            line += f" ({100 * choice.gain.gain:+.1f} over {choice.gain.over})"
        show(line)
    show(f"{result.folder}/report.html holds every plan and the figures, summary.md the same as Markdown.")


def choose_plans(args: SweepArgs) -> list[MaskPlan]:
    """Work out the plans, each once, that the flags of the command ask for; refuse flags that do not say which."""
    kinds = [kind.strip() for kind in args.kinds.split(",") if kind.strip()]
    if args.plans:
        return list(dict.fromkeys(parse_plan(text) for text in args.plans.split(";") if text.strip()))
    if args.windows and args.read and kinds:
        sizes, reads = parse_counts(args.windows), parse_counts(args.read)
        plans = [plan for kind in kinds for plan in plans_over_windows(kind, sizes, reads)]
    elif args.k0 and args.k:
        plans = plans_over_k_and_k0(parse_counts(args.k), parse_counts(args.k0))
    elif kinds and args.k:
        plans = plans_over_k(kinds, parse_counts(args.k))
    else:
        raise ConfigError(
            "the sweep does not say its plans; allowed: --kinds with --k, --k with --k0, --kinds with --windows and "
            "--read, or --plans 'PLAN;PLAN'."
        )
    if not plans:
        raise ConfigError("the sweep has no plan left: every k0 is above k, or every window larger than its block.")
    return plans


# --- Scores of new rows ---


CHUNK_ROWS = 4096
"""Rows scored at a time; bounds memory."""
COUNTS = {1: "one text", 2: "two texts"}


def score_command(args: ScoreArgs) -> int:
    """Score new rows with a finished run: a score per pair, a class or number per text, a tag per word."""
    lines = read_lines(args.file) if args.file else []  # before the decoder is loaded, which takes longer
    scorer = load_scorer(
        args.run, head=args.head or None, decoder=args.decoder or None, trust_remote_code=args.trust_remote_code
    )
    rows = read_rows(lines, args.file, scorer) if args.file else [_one_row(args.texts, scorer)]
    watcher_of(args).say(f"head {scorer.name}, mean of {len(scorer.seeds)} seeds")
    for start in range(0, len(rows), CHUNK_ROWS):
        chunk = rows[start : start + CHUNK_ROWS]
        for row, prediction in zip(chunk, scorer.score(chunk), strict=True):
            fields = scorer.fields(row, prediction)
            sys.stdout.write(_json(fields) if args.jsonl else printable(_lines(fields)))
    return 0


def _json(fields: dict[str, Any]) -> str:
    """Write a scored row as a line of JSON without control characters; JSON itself leaves some as they are."""
    text = json.dumps(fields, ensure_ascii=False)
    return "".join(f"\\u{ord(c):04x}" if "\x7f" <= c < "\xa0" else c for c in text) + "\n"


def _lines(fields: dict[str, Any]) -> str:
    """Write a scored row as one line, or where it holds lists as a line per word and a blank one."""
    is_list = any(isinstance(value, list) for value in fields.values())
    columns = [value if is_list else [value] for value in fields.values()]
    lines = ["\t".join(_cell(value) for value in cells) + "\n" for cells in zip(*columns, strict=True)]
    return "".join([*lines, "\n"] if is_list else lines)


def _cell(value: str | float | None) -> str:
    return "-" if value is None else f"{value:.3f}" if isinstance(value, float) else value


def _one_row(texts: Sequence[str], scorer: Scorer) -> Any:
    if len(texts) != scorer.n_texts:
        raise InputError(
            f"{len(texts)} texts were given; allowed: {COUNTS[scorer.n_texts]} for a run on {scorer.kind}, or a file "
            "of rows with --file FILE."
        )
    return texts[0] if scorer.n_texts == 1 else tuple(texts)


def read_lines(name: str) -> list[str]:
    """Read the lines of a text file, or of standard input for `-`."""
    try:
        text = sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"file {name!r} cannot be read ({error}); give a UTF-8 text file.") from error
    return text.split("\n")  # splitlines would also break inside a text


def read_rows(lines: Sequence[str], name: str, scorer: Scorer) -> list[Any]:
    """Read rows out of the lines of a file, of which `.conll` holds a word each."""
    if name.endswith(".conll") and scorer.reads_words:
        return list(_sentences(lines))
    return [_read_row(line, number, name, scorer.n_texts) for number, line in enumerate(lines, start=1) if line]


def _read_row(line: str, number: int, name: str, n_texts: int) -> Any:
    cells = line.split("\t") if n_texts > 1 else [line]
    if len(cells) != n_texts or not all(cell.strip() for cell in cells):
        tab = " with one tab between them" if n_texts > 1 else ""
        raise InputError(f"line {number} of {name!r} is {cells!r}; allowed: {COUNTS[n_texts]}{tab}.")
    return cells[0] if n_texts == 1 else tuple(cells)


def _sentences(lines: Sequence[str]) -> Iterator[list[str]]:
    """Read the first column of lines of words; a blank line ends a sentence, -DOCSTART- is no word."""
    words: list[str] = []
    for line in [*lines, ""]:
        cells = line.split("\t" if "\t" in line else None) if line.strip() else []
        if cells and cells[0].strip() != "-DOCSTART-":
            words.append(cells[0].strip())
        elif words and not cells:
            yield words
            words = []


# --- Predictions ---


TABLES = (*DELIMITERS, *JSON_SUFFIXES, *PARQUET_SUFFIXES)
OBJECT = 'give an object, as {"text": ...}'
GUESSES = {1: (("text",), ("sentence",), ("words",), ("tokens",)), 2: (("text1", "text2"), ("sentence1", "sentence2"))}
"""Columns that are read when none are named, by the texts of a row."""
MOST_BYTES = 65_536
"""Longest line that a service reads; a longer one is answered with an error, as its tokens could block the others."""


def predict_command(args: PredictArgs) -> int:
    """Predict the rows of a file with a finished run: its columns, and beside them what was predicted."""
    form = args.format or _format_of(args.out)
    if args.safe_for_spreadsheets and form != "csv":
        raise UsageError(f"--safe-for-spreadsheets does nothing for the format {form!r}; leave it out.")
    loaded = load_run(args.run, decoder=args.decoder or None, trust_remote_code=args.trust_remote_code)
    columns = tuple(filter(None, (name.strip() for name in args.columns.split(","))))
    if args.serve:
        loaded.scorer(args.head)
        _say(loaded, args, "ready: a JSON object per line")
        return _serve(loaded, args.head, columns, with_shares=args.probabilities)
    given, rows = _read(args.file, loaded, args.head, columns)
    _say(loaded, args, f"{len(rows):,} rows")
    predicted = _predict(loaded, args.head, given, rows, with_shares=args.probabilities)
    text = _write(predicted, form, is_safe=args.safe_for_spreadsheets)
    if args.out:
        write_file(Path(args.out), text)
    else:
        sys.stdout.write(printable(text))
    return 0


def _format_of(out: str) -> str:
    """Choose the format by the name of the file; `UsageError` for the suffix of another format."""
    suffix = Path(out).suffix.lower()
    if suffix in (".jsonl", ".ndjson"):
        return "jsonl"
    if suffix != ".csv" and suffix in (*TABLES, ".gz", ".xlsx", ".arrow", ".feather"):
        raise UsageError(f"--out is {out!r}; allowed: a name that ends in .csv, .jsonl or .ndjson, or add --format.")
    return "csv"


def _say(loaded: LoadedRun, args: PredictArgs, what: str) -> None:
    scorer = loaded.scorer(args.head)
    watcher_of(args).say(f"head {scorer.name}, mean of {len(scorer.seeds)} seeds; {what}")


def _read(
    name: str, loaded: LoadedRun, head: str, columns: tuple[str, ...]
) -> tuple[list[Mapping[str, Any]], list[Any]]:
    """Read the rows of a file: all columns of a table, or none, and what is predicted."""
    if inner_suffix(Path(name)) not in TABLES:
        if columns:
            raise InputError(f"--columns names columns of a table, but {name!r} is none; allowed: {', '.join(TABLES)}.")
        rows = read_rows(read_lines(name), name, loaded.scorer(head))
        return [{} for _ in rows], rows
    table = read_raw(Path(name))
    names = _find_columns(table.columns, columns, loaded.scorer(head).n_texts, where=name)
    for row in table.rows:
        if row.problem:
            raise InputError(f"{table.location(row)}: {row.problem}.")
    reads_words = loaded.scorer(head).reads_words
    rows = [_row(row.values, names, table.location(row), reads_words=reads_words) for row in table.rows]
    return [row.values for row in table.rows], rows


def _find_columns(columns: Sequence[str], named: tuple[str, ...], n_texts: int, *, where: str) -> tuple[str, ...]:
    for name in named:
        if name not in columns:
            raise unknown_name("column", name, columns, hint=f"They are those of {where}.")
    if named and len(named) != n_texts:
        raise InputError(f"--columns names {len(named)} columns; this run takes {n_texts} texts per row.")
    guess = next((names for names in GUESSES[n_texts] if set(names) <= set(columns)), ())
    if not (named or guess):
        tried = " or ".join(", ".join(names) for names in GUESSES[n_texts])
        own = ", ".join(columns)
        raise InputError(f"{where} has no columns {tried}; name {n_texts} of its own with --columns: {own}.")
    return named or guess


def _row(values: Mapping[str, Any], names: Sequence[str], place: str, *, reads_words: bool) -> Any:
    """Take the texts out of a row; a list of words stays one."""
    for name in names:
        text = values.get(name)
        is_words = reads_words and isinstance(text, list) and text and all(isinstance(word, str) for word in text)
        if not is_words and not (isinstance(text, str) and text.strip()):
            raise InputError(f"{place}, column {name!r}: {text!r} is no text; allowed: a text that is not empty.")
    return values[names[0]] if len(names) == 1 else tuple(values[name] for name in names)


def _predict(
    loaded: LoadedRun, head: str, given: Sequence[Mapping[str, Any]], rows: Sequence[Any], *, with_shares: bool
) -> Iterator[dict[str, Any]]:
    """Put what was predicted beside the user's own columns, which stay as they are; ours get names that are free."""
    scorer = loaded.scorer(head)
    shares = loaded.predict_proba(rows, head=head).to_dict("records") if with_shares else [{}] * len(rows)
    taken = {name for values in given for name in values}
    for values, row, prediction, share in zip(given, rows, loaded.predict(rows, head=head), shares, strict=True):
        fields = _fields(scorer, row, prediction, beside=values)
        fields |= {f"p_{name}": value for name, value in share.items()}
        yield {**values, **{_free_name(name, taken): value for name, value in fields.items()}}


def _free_name(name: str, taken: Collection[str]) -> str:
    """Name a column of ours: `score`, or where the table has one `predicted_score`, `predicted_score_2` and so on."""
    tries = chain([name, f"predicted_{name}"], (f"predicted_{name}_{number}" for number in count(2)))
    return next(free for free in tries if free not in taken)


def _fields(scorer: Scorer, row: Any, prediction: Any, *, beside: Mapping[str, Any]) -> dict[str, Any]:
    """Name what was predicted; the texts of a row are left out beside its own columns."""
    fields = scorer.fields(row, prediction)
    return {name: value for name, value in fields.items() if not (beside and name.startswith(("text", "word")))}


def _write(rows: Iterable[Mapping[str, Any]], form: str, *, is_safe: bool) -> str:
    """Write rows as CSV, lists joined by spaces, or as JSON Lines."""
    if form == "jsonl":
        return "".join(json.dumps(row, ensure_ascii=False, default=str) + "\n" for row in rows)
    listed = list(rows)
    columns = dict.fromkeys(name for row in listed for name in row)  # objects of JSON may each have their own
    cells = ([_csv_cell(row.get(name, "")) for name in columns] for row in listed)
    return write_csv([columns, *cells], newline="\n", is_safe=is_safe)


def _csv_cell(value: Any) -> Any:
    return " ".join("-" if part is None else str(part) for part in value) if isinstance(value, list) else value


def _serve(loaded: LoadedRun, head: str, columns: tuple[str, ...], *, with_shares: bool) -> int:
    """Answer every line of standard input with one line; a line that cannot be read is answered with its error."""
    for number, line in enumerate(_read_bounded(sys.stdin.buffer), start=1):
        place = f"line {number}"
        try:
            values, row = _read_request(line, place, loaded.scorer(head), columns)
            [answer] = _predict(loaded, head, [values], [row], with_shares=with_shares)
            text = json.dumps(answer, ensure_ascii=True)
        except IcecoreError as error:
            text = json.dumps({"error": f"{place}: " * (not str(error).startswith(place)) + str(error)})
        except Exception as error:  # whatever a stranger's line does, the next one is answered
            text = json.dumps({"error": f"{place} cannot be predicted ({first_line(error)})."})
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
    return 0


def _read_bounded(lines: BinaryIO) -> Iterator[bytes]:
    """Read lines, of those that are too long only the beginning, one byte longer than the longest."""
    while line := lines.readline(MOST_BYTES + 1):
        rest = line
        while rest and not rest.endswith(b"\n"):
            rest = lines.readline(MOST_BYTES)
        yield line


def _read_request(line: bytes, place: str, scorer: Scorer, columns: tuple[str, ...]) -> tuple[dict[str, Any], Any]:
    """Read a line of a service: all that the object holds, and the row to predict."""
    if len(line) > MOST_BYTES:
        raise InputError(f"{place} is longer than {MOST_BYTES:,} bytes; shorten its texts, or predict a file instead.")
    if not line.strip():
        raise InputError(f"{place} is blank; {OBJECT}.")
    try:
        text = line.decode("utf-8-sig")
        values = json.loads(text)
    except UnicodeDecodeError as error:
        raise InputError(
            f"{place} is not UTF-8 (byte 0x{line[error.start]:02x} at {error.start}); {OBJECT}."
        ) from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{place} is no JSON ({first_line(error)}); {OBJECT}.") from error
    if not isinstance(values, dict):
        raise InputError(f"{place} is {text.strip()[:40]!r}; {OBJECT}.")
    names = _find_columns(list(values), columns, scorer.n_texts, where=place)
    return values, _row(values, names, place, reads_words=scorer.reads_words)


# --- Latents of a file ---


SUFFIXES = (".npy", *WRITERS)


def embed_command(args: EmbedArgs) -> int:
    """Extract the latents of the texts of a file or of standard input."""
    return embed_file(args.config, args.file, column=args.column, to=args.out, watcher=watcher_of(args))


def column_of(file: str, column: str) -> str:
    """Return the column of the texts of a file; `UsageError` where one is named and the file is no table."""
    if column and (file in ("-", "task") or Path(file).suffix.lower() == ".txt"):
        raise UsageError(f"--column names a column of a table, but the texts come from {file!r}; leave --column out.")
    return column or "text"


def read_corpus(file: str, column: str) -> Corpus:
    """Read the texts of a file, or of standard input for `-`, with repeats; an InputError for none."""
    name = "standard input" if file == "-" else Path(file).name
    return Corpus(name, file, tuple(_texts(file, column_of(file, column))))


def embed_file(config: RunConfig, file: str, *, column: str, to: str, watcher: Watcher) -> int:
    """Extract the latents of the texts of a file; also write them to `to` where that is not empty."""
    out = Path(to)
    if to and out.suffix not in SUFFIXES:
        raise unknown_name("suffix of --out", out.suffix, SUFFIXES)
    corpus = read_corpus(file, column)
    cache = obtain_cache(config, corpus, watcher=watcher)
    show(str(cache.path))
    if to:
        if out.suffix == ".npy":
            write_file(out, _npy(cache, corpus.texts()))
        else:
            cache.export(out, texts=corpus.texts())
        show(str(out))
    return 0


def _texts(file: str, column: str) -> list[str]:
    texts = [
        text for text in (read_lines(file) if file == "-" else read_texts(Path(file), column=column)) if text.strip()
    ]
    if not texts:
        raise InputError(f"{file!r} holds no texts; give at least one, a line each.")
    return texts


def _npy(cache: LatentCache, texts: Sequence[str]) -> bytes:
    rows = cache.rows_of(texts)
    latents = np.stack([cache.gather(rows, pooling).transpose(0, 1).numpy() for pooling in cache.poolings], axis=2)
    out = io.BytesIO()
    np.save(out, latents)
    return out.getvalue()
