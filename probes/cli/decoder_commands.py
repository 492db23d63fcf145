"""Commands that look inside (plans on a decoder, its weights, layers of runs, geometry, caches) and that adapt one."""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pandas as pd
import torch
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from extract.decoders.decoder import compare_weights, load_decoder
from extract.decoders.decoder_spec import DecoderSpec
from extract.errors import CacheError, IcecoreError, UsageError, first_line, printable, unknown_name
from extract.files import write_file, write_frame
from extract.inputs.template import InputTemplate
from extract.masks.mask_rules import draw
from extract.store.cache import LatentCache, ShardedCache, open_cache
from extract.store.manifest import STORAGE_DTYPES, flatten
from extract.wiring.certificate import check_batch_invariance, check_influence, influence, look_at_blocks
from extract.wiring.plan_wiring import plan_in_force
from extract.wiring.states import attention_maps
from probes.adaptation.abilities import ROWS, SCORES, compare_scores, score_screen, verdicts, write_measured
from probes.adaptation.infilling import DrawnSpans
from probes.adaptation.measuring import WIKITEXT, AbilityOptions, measure_abilities
from probes.cli.commands import (
    AdaptArgs,
    AttentionArgs,
    GeometryArgs,
    InfillArgs,
    InspectArgs,
    LayersArgs,
    VerifyArgs,
    WeightsArgs,
)
from probes.cli.screen import fit_line, open_output, read_lines, show, show_written, watcher_of
from probes.data.pair_task import PairTask
from probes.layers.findings import VIEWS, HeadFindings, ViewCurve, load_findings
from probes.layers.geometry import (
    MEASURES,
    MOST_SHARED,
    WHERE,
    cosine_with_gold,
    measure_geometry,
    require_pairs,
    similarity_of_layers,
)
from probes.layers.study import PARTS, StudyOptions
from probes.report.blocks import NOTHING
from probes.report.comparison_figures import (
    GEOMETRY_NOTE,
    PARTS_OF_BLOCK,
    draw_geometry,
    draw_maps,
    draw_similarity,
    draw_sink_mass,
    draw_weights,
    split_series,
)
from probes.report.layer_figures import curve_caption, write_curve
from probes.report.page import PAGE
from probes.report.style import WIDE, Album, on_panel
from probes.runs.compare import write_report
from probes.runs.config_file import read_config
from probes.runs.folder import RunFolder
from probes.runs.layer_studies import ALL, compare_layers
from probes.runs.results import open_runs
from probes.runs.run_caches import is_run, open_named
from probes.runs.run_config import figure_formats, load_run_task
from probes.runs.watcher import short_time

if TYPE_CHECKING:
    from probes.adaptation.adapt import StepReport


# --- Plans on a decoder ---


TEXTS = (
    "The river froze early that year, and the ferry stayed on the far bank until spring.",
    "She opened the old ledger and found her grandfather's name on the very first page.",
)


def verify_command(args: VerifyArgs) -> int:
    plan, picture = args.plan, Path(args.picture)
    formats = figure_formats(picture.suffix.removeprefix(".")) if args.picture else ()
    decoder = load_decoder(DecoderSpec(args.decoder, device=args.device))
    with plan_in_force(decoder, plan) as wiring:
        check_influence(decoder, plan)
        drift = check_batch_invariance(decoder)
        if wiring is None:  # transformers' own path, which shows what reaches a layer and no mask of a block
            names, masks = list(decoder.layers), list(influence(decoder, n_tokens=args.tokens))
        else:
            calls = look_at_blocks(decoder, wiring, n_tokens=args.tokens)
            names = [decoder.layers[call.block + 1] + " again" * call.is_again for call in calls]
            masks = [call.measured(decoder.description.dtype) for call in calls]
    for matrix, group in groupby(zip(map(draw, masks), names, strict=True), key=itemgetter(0)):
        alike = [name for _, name in group]
        show(f"{' to '.join(dict.fromkeys((alike[0], alike[-1])))}\n{matrix}")
    proved = "" if wiring is None else f" in {len(masks)} blocks, by themselves and in every head,"
    show(
        f"plan {plan.text} took effect on {decoder.description.name}{proved} at {len(decoder.layers)} layers; "
        f"drift with padding right {drift.right:.1e}, left {drift.left:.1e} (allowed {drift.allowed:g})"
    )
    if args.picture:
        album = Album(open_output(picture.parent), formats)
        title = f"Measured masks, {plan.text} on {decoder.description.name}"
        album.add(picture.stem, partial(draw_maps, label=""), torch.stack(masks), names, title=title)
    return 0


def attention_command(args: AttentionArgs) -> int:
    plan = args.plan
    texts = [line for line in read_lines(args.texts) if line.strip()] if args.texts else list(TEXTS)
    decoder = load_decoder(DecoderSpec(args.decoder, device=args.device))
    maps = attention_maps(decoder, texts, plan, template=InputTemplate(bos=args.bos))
    album = Album(open_output(Path(args.out)), args.figures)
    title, note = f"{plan.text} on {decoder.description.name}", f"mean over heads and {len(texts):,} texts"
    album.add(
        "attention",
        draw_maps,
        maps.maps,
        maps.blocks,
        title=f"Mean attention, {title}",
        note=f"{note}; one scale for all blocks",
    )
    album.add("sink_mass", draw_sink_mass, maps.sink_mass, note=note, title=f"Attention on the first tokens, {title}")
    for block, masses in zip(maps.blocks, maps.sink_mass.tolist(), strict=True):
        show(f"{block}  {'  '.join(f'{mass:.3f}' for mass in masses)}  {'#' * round(40 * masses[0])}")
    show(f"{album.folder}: {', '.join(file for files in album.drawn.values() for file in files)}")
    return 0


# --- Decoders ---


def weights_command(args: WeightsArgs) -> int:
    checkpoints = [(args.decoder, args.adapter), (args.other or args.decoder, args.other_adapter)]
    if not args.other and args.adapter == args.other_adapter:
        raise UsageError(
            "OTHER is missing; give a second checkpoint, or --other-adapter for the first with an adapter."
        )
    one, other = (load_decoder(DecoderSpec(name, adapter=adapter, device="cpu")) for name, adapter in checkpoints)
    frame = compare_weights(one, other)
    described = (decoder.description for decoder in (one, other))
    names = " and ".join(f"{about.name}{'+' * bool(about.adapter)}{about.adapter}" for about in described)
    table = Table(title=printable(f"cosine of the weights of {names}"), box=SIMPLE)
    for column in ("layer", *PARTS_OF_BLOCK.values(), "distance"):
        table.add_column(column, justify="left" if column == "layer" else "right")
    for layer, rows in frame.groupby("layer", sort=False):
        by_part = rows.set_index("part")
        cosines = (f"{by_part['cosine'][part]:.4f}" if part in by_part.index else "-" for part in PARTS_OF_BLOCK)
        table.add_row(str(layer), *cosines, f"{by_part['distance']['block']:.4f}")
    Console(markup=False).print(table)
    show("distance: length of the difference of all weights over that of the first")
    if args.out:
        folder = open_output(args.out)
        write_file(folder / "weights.csv", write_frame(frame))
        album = Album(folder, args.figures)
        n = int(frame.loc[frame["part"] == "block", "n_parameters"].sum())
        album.add(
            "weights",
            on_panel(draw_weights),
            frame,
            title=f"Weights of {names}",
            note=f"{n:,} parameters; a block's matrices as one vector, norms left out",
        )
        show_written(folder, ("weights.csv",), album.drawn)
    return 0


# --- Geometry ---


GOLD, SIMILARITY = "gold", "similarity"
ALL_MEASURES = (*MEASURES, GOLD, SIMILARITY)
ON_SCREEN = {
    "mean-cosine": ("mean\ncosine", 3),
    "norm": ("mean\nnorm", 1),
    "massive-dimensions": ("massive\ndims", 0),
    "massive-share": ("their\nshare", 3),
    "effective-rank": ("effective\nrank", 1),
    "intrinsic-dimension": ("TwoNN\ndim", 1),
    "gold-pearson": ("gold\nPearson", 3),
}
"""Columns of the table on the screen: their titles and decimals."""
MOST_LAYERS = 12
"""Layers in the table on the screen."""


def geometry_command(args: GeometryArgs) -> int:
    names = [name.strip() for name in args.measures.split(",") if name.strip()] or list(ALL_MEASURES)
    for name in names:
        if name not in ALL_MEASURES:
            raise unknown_name("measure", name, ALL_MEASURES)
    asks_gold = bool(args.measures) and GOLD in names
    sources = [Path(name) for name in args.sources]
    if asks_gold:
        _require_gold(args, names, sources)
    caches = [open_named(source, args.caches) for source in args.sources]
    options: dict[str, Any] = {"pooling": args.pooling, "seed": args.seed, "standardise": args.standardise}
    measures = [name for name in names if name in MEASURES]
    parts = []
    for source, cache in zip(sources, caches, strict=True):
        pairs = _pairs_of(source, is_asked=asks_gold) if is_run(source) else None
        if measures:
            # The first of every pair: a paraphrase beside it would be its nearest neighbour.
            first = [] if pairs is None else [pairs.rows(split)["sentence1"] for split in pairs.splits]
            texts = list(dict.fromkeys(text for column in first for text in column))
            parts.append(measure_geometry(cache, measures=measures, texts=texts, most_rows=args.rows, **options))
        if GOLD in names and pairs is not None:
            split = "validation" if "validation" in pairs.splits else next(iter(pairs.splits))
            parts.append(cosine_with_gold(cache, pairs, split=split, pooling=args.pooling))
    frame = pd.concat(parts) if parts else pd.DataFrame()
    for label, part in split_series(frame).items() if parts else ():
        _show_geometry(label, part)
    alike = []
    if SIMILARITY in names:
        rows = min(args.rows, MOST_SHARED)
        alike = [similarity_of_layers(cache, most_rows=rows, **options) for cache in caches]
        alike += [similarity_of_layers(caches[0], other, most_rows=rows, **options) for other in caches[1:]]
    if args.out:
        _write_geometry(open_output(args.out), frame, alike, args.figures)
    return 0


def _require_gold(args: GeometryArgs, names: Sequence[str], sources: Sequence[Path]) -> None:
    """Refuse sources without pairs, and options that gold does not read."""
    for source in sources:
        if not is_run(source):
            raise UsageError(f"the measure {GOLD!r} needs the pairs of a run, and {str(source)!r} is no run folder.")
    for option in ("--rows", "--seed", "--standardise"):
        if option in args.typed and list(names) == [GOLD]:
            raise UsageError(f"{option} does nothing for the measure {GOLD!r}, which reads every pair as it is.")


def _pairs_of(folder: Path, *, is_asked: bool) -> PairTask | None:
    """Load the pairs of a run; None where it has none or they are gone, which is an error if gold was asked for."""
    try:
        task = load_run_task(RunFolder(folder).config)
    except IcecoreError as error:
        if is_asked:
            raise
        show(f"the task of {str(folder)!r} cannot be loaded, so no gold: {first_line(error)}")
        return None
    if is_asked:
        require_pairs(task)
    return cast("PairTask", task) if task.kind == "pairs" else None


def _show_geometry(label: str, frame: pd.DataFrame) -> None:
    """Print one series: a row per layer, as many as a screen holds."""
    layers, measures = (list(dict.fromkeys(frame[name])) for name in ("layer", "measure"))
    columns = {name: ON_SCREEN[name] for name in measures if name in ON_SCREEN}
    indices = np.unique(np.linspace(0, len(layers) - 1, MOST_LAYERS).round().astype(int)).tolist()
    title = ", ".join(frame.iloc[0][["decoder", "plan", "pooling"]])
    table = Table(title=printable(title if title != label else label), box=SIMPLE, padding=(0, 1))
    table.add_column("layer", no_wrap=True, min_width=len("final_norm"))
    for name, _ in columns.values():
        table.add_column(name, justify="right")
    values = frame.pivot(index="layer", columns="measure", values="value")
    for index in indices:
        numbers = [(values.loc[layers[index], name], digits) for name, (_, digits) in columns.items()]
        table.add_row(layers[index], *(NOTHING if np.isnan(x) else f"{x:,.{digits}f}" for x, digits in numbers))
    Console(markup=False).print(table)
    show(f"{_counts(frame)}, drawn with a seed; {len(indices)} of {len(layers)} layers, all with --out")


def _write_geometry(folder: Path, frame: pd.DataFrame, alike: Sequence[pd.DataFrame], formats: Sequence[str]) -> None:
    """Write the frames as CSV, and the figures."""
    album, written = Album(folder, formats), []
    if len(frame):
        write_file(folder / "geometry.csv", write_frame(frame))
        written.append("geometry.csv")
        shared = [str(frame[name].iloc[0]) for name in ("decoder", "plan", "pooling") if frame[name].nunique() == 1]
        album.add(
            "geometry",
            draw_geometry,
            frame,
            title=f"Geometry of layers, {', '.join(shared)}",
            size=WIDE,
            note=f"{_counts(frame)}; {GEOMETRY_NOTE}",
        )
    if alike:
        write_file(folder / "similarity.csv", write_frame(pd.concat(alike)))
        written.append("similarity.csv")
    for n, similarity in enumerate(alike, 1):
        first = similarity.iloc[0]
        one, other = (", ".join(str(first[prefix + name]) for name in WHERE[1:4]) for prefix in ("", "other_"))
        is_one = first["cache"] == first["other_cache"] and one == other
        album.add(
            "similarity" + f"_{n}" * (len(alike) > 1),
            on_panel(draw_similarity),
            similarity,
            size=(5.2, 4.4),
            title=f"Similarity of layers, {one if is_one else f'{one} against {other}'}",
            note=f"{int(similarity['n_rows'].iloc[0]):,} rows",
        )
    show_written(folder, written, album.drawn)


def _counts(frame: pd.DataFrame) -> str:
    """Say how many rows and pairs the values are of."""
    is_gold = ~frame["measure"].isin(list(MEASURES))
    counts = ((noun, frame.loc[part, "n_rows"].unique()) for noun, part in (("rows", ~is_gold), ("pairs", is_gold)))
    return ", ".join(f"{' and '.join(f'{n:,}' for n in numbers)} {noun}" for noun, numbers in counts if len(numbers))


# --- Layers ---


SHOWN = {
    "selectivity": "selec-\ntivity",
    "shapley": "Shapley",
    "without": "with-\nout",
    "with": "with\nit",
    "new-information": "new\nbits",
    "mix": "mix",
}
"""Views on screen beside `alone`, which an 80-column terminal has room for."""
READS = {
    "--orders": ("shapley",),
    "--components": ("shapley", "sets"),
    "--rows": ("baselines", "shapley", "sets", "information", "mix"),
}
"""Options that count for some views alone."""


def layers_command(args: LayersArgs) -> int:
    for option, views in READS.items():
        if option in args.typed and args.views and not set(views) & set(args.views):
            raise UsageError(f"{option} counts for the views {', '.join(views)}, none of which --views names.")
    options = StudyOptions(
        views=args.views or PARTS,
        controls=args.controls,
        split=args.split,
        n_resamples=args.resamples,
        confidence=args.confidence,
        orders=args.orders,
        components=args.components,
        most_rows=args.rows,
    )
    watcher = watcher_of(args)
    runs = open_runs(args.runs)
    frame = compare_layers(runs, head=args.head, options=options, caches=args.caches, watcher=watcher)
    for run in runs:
        names = run.heads if args.head == ALL else [args.head or run.best]
        for findings in load_findings(run.path):
            if findings.head in names:
                Console(markup=False).print(layers_table(findings, title=run.path.name))
                show(
                    "\n".join(
                        [layers_legend(findings), findings.answer, *(f"Note: {line}" for line in findings.warnings)]
                    )
                )
                if args.figures:
                    show_written(Path(), map(str, write_curve(findings, run.path / "figures", args.figures)))
                    show(f"Its caption: {curve_caption(findings)}")
        show(f"written: {write_report([run])}")
    if args.out:
        write_file(Path(args.out), write_frame(frame))
        show(f"written: {args.out}")
    return 0


def layers_table(findings: HeadFindings, *, title: str) -> Table:
    """Make the table of layers for a terminal: scores times 100, a mark at layers of the set that holds the best."""
    table = Table(
        title=printable(f"{title}: {findings.head}, {findings.metric} x 100 on {findings.split}"),
        box=SIMPLE,
        padding=(0, 1, 0, 0),
    )
    curves = _shown_curves(findings)
    for name in ("layer", "", "alone", "interval", *(SHOWN[view] for view in curves)):
        table.add_column(name, justify="left" if name in ("layer", "") else "right", no_wrap=True)
    alone = findings.curve("alone")
    if alone is None:
        return table
    for k, layer in enumerate(findings.layers):
        ends = f"{_shown(alone.low[k])} to {_shown(alone.high[k])}" if alone.low and np.isfinite(alone.low[k]) else ""
        mark = "use " * (layer == findings.recommended) + "*" * (layer in findings.best_set)
        cells = (_shown(curve.values[k], is_bits=curve.metric == "bits") for curve in curves.values())
        table.add_row(printable(layer), mark, _shown(alone.values[k]), ends, *cells)
    return table


def layers_legend(findings: HeadFindings) -> str:
    """Explain the marks and columns of the table of layers, a line each."""
    columns = {SHOWN[view].replace("-\n", "").replace("\n", " "): VIEWS[view].asks for view in _shown_curves(findings)}
    lines = {"use": "the layer to use", "*": "statistically tied with the best layer", **columns}
    return "\n".join(f"  {name:12}{meaning}" for name, meaning in lines.items())


def _shown_curves(findings: HeadFindings) -> dict[str, ViewCurve]:
    return {view: curve for view in SHOWN if (curve := findings.curve(view))}


def _shown(value: float, *, is_bits: bool = False) -> str:
    if not np.isfinite(value):
        return ""
    return f"{value:.2f}" if is_bits else f"{100 * value:.1f}"


# --- Caches ---


NO_CHECKSUMS = "none: written by an earlier version, so damage on the disk goes unnoticed"


def inspect_command(args: InspectArgs) -> int:
    cache = open_cache(args.file, allow_partial=True)
    if args.verify:
        if not cache.has_checksums:
            raise CacheError(
                f"cache {str(cache.path)!r} cannot be verified: it was written by an earlier version and carries no "
                "checksums; extract it again to have them."
            )
        cache.verify()
    if args.json:
        value = {**json.loads(cache.manifest.to_json()), "certificate": cache.certificate, "n_done": cache.n_done}
        Console().print_json(json.dumps(value), ensure_ascii=True)  # no control character reaches the screen
        return 0
    try:
        lines = _describe(cache)
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise CacheError(
            f"cache {str(cache.path)!r} has a record that this version does not write ({type(error).__name__}: "
            f"{first_line(error)}); copy it again, or extract again."
        ) from error
    show("\n".join([*lines, *["verified     every finished row is as it was written"] * args.verify]))
    return 0


def _describe(cache: LatentCache) -> list[str]:
    """Describe a cache: what it is, how complete, sizes, certificate, then every field of its identity."""
    state = "complete" if cache.is_complete else "half done: run the same extraction again to go on"
    decoder = cache.manifest.provenance["decoder"]
    itemsize, n_places = np.dtype(STORAGE_DTYPES[cache.storage_dtype]).itemsize, cache.n_words or len(cache)
    checksums = "CRC-32 per array and block of rows (--verify)" if cache.has_checksums else NO_CHECKSUMS
    if isinstance(cache, ShardedCache):
        checksums = f"SHA-256 of each of {cache.n_shards:,} shards (--verify)"
    layer_bytes = {layer: n_places * cache.width_of([layer]) * itemsize for layer in cache.layers}
    lines = [
        f"cache        {cache.path}",
        f"state        {cache.n_done:,} of {len(cache):,} rows, {state}",
        f"decoder      {decoder['name']} ({decoder['family']}, {decoder['n_layers']} blocks, width {decoder['width']})",
        f"latents      {', '.join(cache.poolings)} x {len(cache.layers)} layers "
        f"({cache.layers[0]} ... {cache.layers[-1]}), {cache.storage_dtype}",
        f"size         {cache.n_bytes / 1e6:,.1f} MB on disk, "
        f"{len(cache.poolings) * sum(layer_bytes.values()) / 1e6:,.1f} MB of latents, "
        f"{layer_bytes[cache.layers[0]] / 1e6:,.2f} MB per layer and pooling",
        f"checksums    {checksums}",
        f"certificate  {_certificate_text(cache)}",
    ]
    if cache.is_complete:
        tokens = cache.n_tokens
        lines.append(
            f"tokens       {int(tokens.sum()):,} in all, {int(tokens.min())} to {int(tokens.max())} per text, "
            f"{int(cache.is_truncated.sum()):,} texts truncated"
        )
    if cache.is_complete and cache.is_words:
        counts = cache.word_report()
        lines.append(
            f"words        {counts['n_words']:,} in all: {counts['n_shared']:,} begin inside a token of the word "
            f"before, {counts['n_cut']:,} truncated, {counts['n_lost']:,} without a token; "
            f"{counts['n_windows']:,} texts read in windows"
        )
    lines.append(f"identity     {cache.manifest.id}")
    lines += [f"  {key:28} {value}" for key, value in flatten(cache.identity.to_plain()).items() if key != "layers"]
    return lines


def _certificate_text(cache: LatentCache) -> str:
    certificate = cache.certificate
    if not certificate:
        return "none yet (written when the extraction ends)"
    drift = certificate["batch_invariance"]
    return (
        f"influence as planned at {certificate['influence']['n_layers']} layers; "
        f"batch drift right {drift['right']:.1e}, left {drift['left']:.1e} (allowed {drift['allowed']:g}); "
        "weights bit-identical"
    )


# --- Adaptation ---


SECONDS = 30.0
"""Between two lines on a screen that is no terminal."""


def adapt_command(args: AdaptArgs) -> int:
    from probes.adaptation.adapt import adapt, ignore_step  # which loads Lightning

    report = ignore_step if args.quiet else _report(Console(stderr=True), is_verbose=args.verbose)
    adapted = adapt(args.config, say=watcher_of(args).say, report=report)
    show_written(adapted.folder, ("adapter_model.safetensors", "adaptation.json", "losses.csv", "held_out.csv"))
    show(adapted.verdict)
    adapters = ",".join((*args.config.decoder.adapters, str(adapted.folder)))  # those that it was trained upon first
    plan = args.config.plan.replace("hybrid", "bidirectional")  # which it is where there are no spans
    show(f"probe it with: icecore run CONFIG --decoder.adapter {adapters} --extraction.plan {plan}")
    return 0


def _report(console: Console, *, is_verbose: bool) -> "Callable[[StepReport], None]":
    shown = 0.0
    is_line = console.is_terminal and not is_verbose

    def report(step: "StepReport") -> None:
        nonlocal shown
        now = time.monotonic()
        parts = [f"step {step.step} of {step.steps}", *(f"{name} {loss:.3f}" for name, loss in step.losses.items())]
        parts += [f"held-out {step.held_out:.3f}"] * (step.held_out == step.held_out)
        parts += [f"{step.tokens_per_second:,.0f} tokens/s", f"{short_time(step.seconds_left)} left"]
        text = ", ".join(parts)
        if is_line:
            console.print(
                fit_line(text, max(console.width, 40) - 1), end="\r", highlight=False, soft_wrap=True, markup=False
            )
        elif is_verbose or step.step in (1, step.steps) or now - shown > SECONDS:
            console.print(printable(text), highlight=False, soft_wrap=True, markup=False)
            shown = now

    return report


def _measured_decoder(args: InfillArgs) -> DecoderSpec:
    """Return the decoder that is named, or that of a configuration, which may be a merge or have a revision."""
    if not args.decoder.endswith((".yaml", ".yml")):
        return DecoderSpec(args.decoder, adapter=args.adapter or None, device=args.device)
    typed = {"decoder.adapter": args.adapter, "decoder.device": args.device if args.device != "auto" else ""}
    pairs: list[tuple[str, str | None]] = [(key, text) for key, text in typed.items() if text]
    config = read_config(pairs, file=args.decoder, checks_heads=False)
    if not any(key.startswith("decoder") for key in config.sources.keys() - typed.keys()):
        raise UsageError(f"{args.decoder!r} names no decoder; give it a section decoder, or name a decoder.")
    return config.decoder


def infill_command(args: InfillArgs) -> int:
    if "--split" in args.typed and args.texts != WIKITEXT:
        raise UsageError(f"--split is one of {WIKITEXT}, and the texts come from {args.texts!r}; leave --split out.")
    shortest, longest = map(int, args.span_tokens.split("-"))
    options = {item.name: getattr(args, item.name) for item in fields(AbilityOptions) if item.name != "prefix_words"}
    options |= {"column": args.column or "text", "spans": DrawnSpans(args.spans, shortest, longest, args.seed)}
    folder = open_output(args.out) if args.out else None
    measured = measure_abilities(_measured_decoder(args), AbilityOptions(**options), watcher=watcher_of(args))
    compared = compare_scores([measured.scores], [measured.scores.name])
    Console(markup=False).print(score_screen(compared))
    show("\n".join([*measured.scores.notes, *(f"{sentence}." for sentence in verdicts(compared))]))
    if folder is not None:
        drawn = write_measured(folder, measured, formats=args.figures)
        show_written(folder, (PAGE, "summary.md", SCORES, ROWS), drawn)
    return 0
