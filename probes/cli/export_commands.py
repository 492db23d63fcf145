"""Commands that write for other programs: export, push, mteb."""

from collections.abc import Mapping
from pathlib import Path

import pandas as pd
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from extract.decoders.decoder import load_decoder
from extract.decoders.decoder_spec import DecoderSpec
from extract.errors import ConfigError, UsageError, printable
from extract.files import write_file, write_frame
from extract.inputs.joined_text import JoinedText
from extract.masks.mask_plan import parse_plan
from extract.poolings.pooling_table import JOIN
from extract.registry import require_extra
from extract.run.extraction_spec import ExtractionSpec
from probes.cli.commands import ExportArgs, MtebArgs, PushArgs
from probes.cli.run_commands import column_of
from probes.cli.screen import read_lines, show, show_written, watcher_of
from probes.data.task import read_texts
from probes.export.mteb import fill_task, find_tasks, mean_scores, read_instructions, run_mteb, split_tasks
from probes.export.sentence_transformers import export_sentence_transformer, push_run, stage_run, why_not_stock
from probes.report.comparison_figures import draw_scores
from probes.report.style import Album
from probes.runs.config_file import read_config
from probes.runs.folder import RunFolder
from probes.runs.predict import ChosenEncoder, moved_decoder, read_run_folder, relative_cost
from probes.runs.run_caches import open_named
from probes.runs.run_config import load_run_task
from probes.runs.task_kinds import KINDS

# --- Files and folders ---


FOLDER = "sentence-transformers"
OF_FOLDERS, OF_FILES = ("--normalise", "--head", "--decoder"), ("--texts", "--column", "--caches")
"""Options that only an encoder takes, and those that only files of latents take."""


def export_command(args: ExportArgs) -> int:
    for option in OF_FILES if args.format == FOLDER else OF_FOLDERS:
        if option in args.typed:
            raise UsageError(f"{option} does nothing for the format {args.format!r}; leave it out.")
    if args.format == FOLDER:
        return _export_folder(args)
    out = Path(args.out)
    if out.suffix != f".{args.format}":
        raise ConfigError(f"the file is {out.name!r}; allowed for {args.format}: a name that ends in .{args.format}.")
    source = Path(args.source)
    cache = open_named(args.source, args.caches)
    show(str(cache.export(out, layers=args.layer or "all", poolings=args.poolings, texts=_texts(args, source))))
    return 0


def _texts(args: ExportArgs, source: Path) -> list[str] | list[JoinedText] | None:
    """Return the texts to write beside the latents: those of a file, or with `task` those of the run's task."""
    if not args.texts:
        return None
    column = column_of(args.texts, args.column)
    if args.texts == "task":
        if not source.is_dir():
            raise ConfigError(f"--texts task is for a run folder, and {str(source)!r} is none; name a file of texts.")
        return list(load_run_task(RunFolder(source).config).texts())  # type: ignore[return-value]
    lines = read_lines("-") if args.texts == "-" else read_texts(Path(args.texts), column=column)
    return [text for text in lines if text.strip()]


def _export_folder(args: ExportArgs) -> int:
    source, pooling = Path(args.source), JOIN.join(args.poolings)
    if args.head and not source.is_dir():
        raise UsageError(f"--head is for a run folder, and {args.source!r} is none; leave --head out.")
    layer: str | Mapping[str, str]
    chosen = None
    if source.is_dir() and not args.layer:
        chosen = ChosenEncoder.of(source, head=args.head, pooling=pooling)
        decoder_spec, spec, layer, read_out = chosen.decoder, chosen.spec, chosen.layer, chosen.read_out
        pooling = "" if isinstance(layer, Mapping) else spec.poolings[0]
    else:
        decoder_spec, spec, layer, own = _of_run(source, args.head) if source.is_dir() else _of_config(args.source)
        layer, read_out = _read_layer(args.layer) or layer, None
        pooling = pooling if isinstance(layer, Mapping) else pooling or own
    if not layer:
        raise ConfigError("no single layer is chosen there; name one with --layer, as block_12, 12 or -1.")
    if args.decoder:
        decoder_spec = moved_decoder(decoder_spec, args.decoder)
    decoder = load_decoder(decoder_spec)
    if chosen is not None:
        chosen.require(decoder)
    recipe = export_sentence_transformer(
        decoder, spec, args.out, layer=layer, pooling=pooling, normalise=args.normalise, read_out=read_out
    )
    for line in recipe.describe():
        show(f"{args.out}: {line}")
    cost = relative_cost(decoder, recipe.readings)
    show(f"a text costs {cost:{'.1f' if cost >= 1 else '.2g'}} times what it costs as the plain mean.")
    if recipe.is_stock:
        show(f"modules of sentence-transformers alone: SentenceTransformer({args.out!r}) loads it.")
        if recipe.pooling != "last":
            show(f"A prompt is left out of {recipe.pooling}; end it with ':' or a line break, not with a blank.")
    else:
        reason = why_not_stock(recipe, decoder) or "stock modules would encode otherwise"
        show(f"a module of icecore reads it ({reason}): probes.export.load_sentence_transformer({args.out!r}).")
    return 0


def _read_layer(text: str) -> str | dict[str, str]:
    """Read `12` for all views, or a layer of each, as `plain/12,echo/20`."""
    if "/" not in text:
        return text
    named = [part.strip().rpartition("/") for part in text.split(",")]
    views = [view for view, _, _ in named]
    if not all(views) or len({*views}) < len(views):
        raise ConfigError(f"--layer is {text!r}; allowed: one for all views, or one of each, as plain/12,echo/20.")
    return {view: layer for view, _, layer in named}


def _of_run(folder: Path, head: str) -> tuple[DecoderSpec, ExtractionSpec, str, str]:
    """Return what a head of a finished run reads, the best one's where none is named."""
    run = RunFolder(folder)
    if run.values["what"] != "run":
        raise UsageError(
            f"--layer is for a run or a config, and {str(folder)!r} is a {run.values['what']} over many points; leave "
            "it out to take the point, layer and transform that were chosen."
        )
    run = read_run_folder(run)
    if KINDS[run.scores.header.kind].reads_words:
        raise ConfigError(
            f"the run {str(folder)!r} is on words, and a folder encodes whole texts; give a run on those."
        )
    name = head or run.best
    if name not in run.scores.heads:
        raise ConfigError(f"the run has no head {name!r}; allowed: {', '.join(run.scores.heads)}.")
    result = run.scores.heads[name]
    pooling, _, layer = str(result.chosen.get("layer", "")).rpartition("/")
    return run.decoder, run.spec, layer, pooling or ("" if "+" in result.pooling else result.pooling)


def _of_config(name: str) -> tuple[DecoderSpec, ExtractionSpec, str, str]:
    config = read_config([], file=name)
    layers, poolings = config.extraction.layers, config.extraction.poolings_read(of_words=False)
    layer = layers[0] if len(layers) == 1 and layers[0] not in ("all", "blocks", "upper-half") else ""
    return config.decoder, config.extraction, layer, poolings[0] if len(poolings) == 1 else ""


# --- The hub ---


def push_command(args: PushArgs) -> int:
    if bool(args.repo) == bool(args.to):
        raise UsageError(
            "give one of --repo OWNER/NAME, which uploads, and --to FOLDER, which writes there what would be uploaded."
        )
    has_cache = not args.no_cache
    if args.to:
        for file in stage_run(args.run, args.to, has_cache=has_cache, caches=args.caches):
            show(str(file))
        show(f"nothing was uploaded; {args.to} holds what --repo would send.")
        return 0
    report = watcher_of(args).say
    show(push_run(args.run, args.repo, is_public=args.public, has_cache=has_cache, caches=args.caches, report=report))
    return 0


# --- mteb ---


def mteb_command(args: MtebArgs) -> int:
    if not args.tasks:
        raise UsageError("--tasks is missing; give names of mteb's tasks with ',' between them, as STSBenchmark.")
    require_extra("mteb")
    config, watcher = args.config, watcher_of(args)
    tasks = find_tasks(split_tasks(args.tasks))
    instructions = read_instructions(args.instructions) if args.instructions else None
    if args.local:
        rows = load_run_task(config)
        tasks = [fill_task(task, rows) for task in tasks]
    decoder = load_decoder(config.decoder, report=watcher.say)
    folder = Path(args.out)
    plans = [parse_plan(text.strip()) for text in args.plans.split(";") if text.strip()]
    frame = run_mteb(
        decoder,
        config.extraction,
        tasks,
        plans=plans,
        instructions=instructions,
        out=folder,
        caches=config.caches,
        report=watcher.say,
        progress=watcher.extraction("texts of mteb"),
    )
    names = list(dict.fromkeys(frame["plan"]))
    subject = f"{decoder.description.name}, {names[0] if len(names) == 1 else f'{len(names)} plans'}"
    _show_scores(frame, ["task", "split", "metric"], f"mteb, {subject}")
    means = mean_scores(frame)
    tables, curves, note = {"mteb.csv": frame}, frame, "mteb's main score per split"
    if frame["task"].nunique() > 1:
        _show_scores(means, ["mean", "n_tasks"], "means over tasks")
        tables["mteb_means.csv"] = means
        curves = means.assign(task=means["mean"], split="", metric="mteb's main score")
        note = "mean over the tasks of a type, over all tasks, and over the types"
    show("The best layer was chosen on the scores themselves, so its score is optimistic.")
    if args.local:
        show(f"The rows are those of {config.task.name}, not those that mteb downloads: no benchmark result.")
    for name, table in tables.items():
        write_file(folder / name, write_frame(table))
    album = Album(folder, args.figures)
    album.add("mteb", draw_scores, curves, title=f"Scores of mteb by layer, {subject}", note=note)
    show_written(folder, tuple(tables), album.drawn)
    return 0


def _show_scores(frame: pd.DataFrame, columns: list[str], title: str) -> None:
    """Print the best layer of every group of scores, and the last one."""
    keys = [*columns, *(["plan"] if frame["plan"].nunique() > 1 else []), "pooling"]
    table = Table(title=printable(title), box=SIMPLE)
    for column in (*keys, "best layer", "score x 100", "last layer x 100"):
        table.add_column(column.replace("n_tasks", "tasks"))
    for key, rows in frame.groupby(keys, sort=False):
        best, last = rows.loc[rows["score"].idxmax()], rows["score"].iloc[-1]
        table.add_row(*map(str, key), best["layer"], f"{100 * best['score']:.1f}", f"{100 * last:.1f}")
    Console(markup=False).print(table)
