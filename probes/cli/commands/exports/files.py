"""`icecore export`: a cache as a file of another format, or a folder that sentence-transformers encodes with."""

from pathlib import Path
from types import SimpleNamespace

from extract.decoders.loading import load_decoder
from extract.decoders.spec import DecoderSpec
from extract.errors import ConfigError, UsageError
from extract.inputs.joined import JoinedText
from extract.run.spec import ExtractionSpec
from probes.cli.commands.embed import column_of
from probes.cli.commands.score import read_lines
from probes.cli.parsing import read_config
from probes.cli.screen import show
from probes.export.folder import why_not_stock
from probes.export.sentence_folder import export_sentence_transformer
from probes.runs.existing import open_named
from probes.runs.finished import read_finished
from probes.runs.kinds import KINDS
from probes.runs.obtain import load_run_task
from probes.runs.record import CONFIG
from probes.tasks.corpus import read_texts

FOLDER = "sentence-transformers"
OF_FOLDERS, OF_FILES = ("--normalise", "--head", "--decoder"), ("--texts", "--column")
"""Options that only an encoder takes, and those that only files of latents take."""


def export_command(found: SimpleNamespace) -> int:
    """Write a cache as .parquet, .arrow or .safetensors, or a folder for sentence-transformers."""
    for option in OF_FILES if found.format == FOLDER else OF_FOLDERS:
        if option in found.typed:
            raise UsageError(f"{option} does nothing for the format {found.format!r}; leave it out.")
    if found.format == FOLDER:
        return _export_folder(found)
    out = Path(found.out)
    if out.suffix != f".{found.format}":
        raise ConfigError(f"the file is {out.name!r}; allowed for {found.format}: a name that ends in .{found.format}.")
    source = Path(found.source)
    cache = open_named(found.source)
    show(str(cache.export(out, layers=found.layer or "all", poolings=found.poolings, texts=_texts(found, source))))
    return 0


def _texts(found: SimpleNamespace, source: Path) -> list[str] | list[JoinedText] | None:
    """Return the texts to write beside the latents: those of a file, or with `task` those of the run's task."""
    if not found.texts:
        return None
    column = column_of(found.texts, found.column)
    if found.texts == "task":
        if not source.is_dir():
            raise ConfigError(f"--texts task is for a run folder, and {str(source)!r} is none; name a file of texts.")
        return list(load_run_task(read_config([], file=str(source / CONFIG))).texts())  # type: ignore[return-value]
    lines = read_lines("-") if found.texts == "-" else read_texts(Path(found.texts), column=column)
    return [text for text in lines if text.strip()]


def _export_folder(found: SimpleNamespace) -> int:
    source = Path(found.source)
    if len(found.poolings) > 1:
        raise UsageError(f"--poolings names {', '.join(found.poolings)}; allowed for an encoder: one of them.")
    if found.head and not source.is_dir():
        raise UsageError(f"--head is for a run folder, and {found.source!r} is none; leave --head out.")
    decoder_spec, spec, layer, pooling = _of_run(source, found.head) if source.is_dir() else _of_config(found.source)
    layer, pooling = found.layer or layer, next(iter(found.poolings), pooling)
    if not layer:
        raise ConfigError("no single layer is chosen there; name one with --layer, as block_12, 12 or -1.")
    if found.decoder:
        decoder_spec = DecoderSpec(found.decoder, dtype=decoder_spec.dtype, device=decoder_spec.device)
    decoder = load_decoder(decoder_spec)
    recipe = export_sentence_transformer(
        decoder, spec, found.out, layer=layer, pooling=pooling, normalise=found.normalise
    )
    show(f"{found.out}: {recipe.layer}, {recipe.pooling}, plan {recipe.spec.plan}")
    if recipe.is_stock:
        show(f"modules of sentence-transformers alone: SentenceTransformer({found.out!r}) loads it.")
        if recipe.pooling != "last":
            show(f"A prompt is left out of {recipe.pooling}; end it with ':' or a line break, not with a blank.")
    else:
        reason = why_not_stock(recipe, decoder) or "stock modules would encode otherwise"
        show(f"a module of icecore reads it ({reason}): probes.export.load_sentence_transformer({found.out!r}).")
    return 0


def _of_run(folder: Path, head: str) -> tuple[DecoderSpec, ExtractionSpec, str, str]:
    """Return what a head of a finished run reads, the best one's where none is named."""
    run = read_finished(folder)
    if KINDS[run.scores.header.kind].reads_words:
        raise ConfigError(
            f"the run {str(folder)!r} is on words, and a folder encodes whole texts; give a run on those."
        )
    name = head or run.best
    if name not in run.scores.heads:
        raise ConfigError(f"the run has no head {name!r}; allowed: {', '.join(run.scores.heads)}.")
    result = run.scores.heads[name]
    return (
        run.decoder,
        run.spec,
        str(result.chosen.get("layer", "")).rpartition("/")[2],
        _one(result.pooling.split("+")),
    )


def _of_config(name: str) -> tuple[DecoderSpec, ExtractionSpec, str, str]:
    config = read_config([], file=name)
    layers = config.extraction.layers
    layer = layers[0] if len(layers) == 1 and layers[0] not in ("all", "blocks", "upper-half") else ""
    return config.decoder, config.extraction, layer, _one(config.extraction.poolings)


def _one(names: "tuple[str, ...] | list[str]") -> str:
    return names[0] if len(names) == 1 else ""
