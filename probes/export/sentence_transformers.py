"""Folders that sentence-transformers encodes with, equal to the latents of a cache, and how they go to the hub."""

import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
import yaml
from jaxtyping import Float
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from extract.decoders.decoder import Decoder, check_folder, load_decoder, quiet_loading
from extract.decoders.decoder_spec import EMBEDDING, FINAL_NORM, KNOWN_DECODERS, DecoderSpec, select_layers
from extract.decoders.fetch import working_folder
from extract.errors import CodeError, ConfigError, HeadError, first_line, unknown_name
from extract.files import read_file
from extract.inputs.template import InputTemplate
from extract.poolings.pooling_table import JOIN, split_poolings
from extract.registry import later, require_extra
from extract.run.embed import embed_readings
from extract.run.extraction_spec import ExtractionSpec
from probes.latents.text_latents import Transform, no_transform
from probes.report.scores import seal_scores
from probes.runs.folder import UNREADABLE, RunFolder, read_spec
from probes.runs.predict import load_scorer, read_run_folder

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


# --- The recipe ---


TENSORS = ("mean", "scale", "basis")
"""Of a transform."""
STOCK_POOLINGS = {"last": "lasttoken", "mean": "mean", "max": "max", "first": "cls"}
"""Poolings to what sentence-transformers calls them; its weighted mean counts on from the tokens of a prompt."""
MODULES = {
    "transformer": "sentence_transformers.base.modules.transformer.Transformer",
    "pooling": "sentence_transformers.sentence_transformer.modules.pooling.Pooling",
    "normalize": "sentence_transformers.base.modules.normalize.Normalize",
}


@dataclass(frozen=True)
class Recipe:
    """How texts become vectors: one layer and pooling of an extraction, or those of several views side by side."""

    readings: Mapping[str, ExtractionSpec]
    """View to its extraction, of one layer and pooling alone; under no name where there is one."""
    normalise: bool
    """Whether vectors are divided by their length."""
    decoder: Mapping[str, str]
    """`name`, `weight_digest` and `tokenizer_digest` of the decoder."""
    is_stock: bool = False
    """Whether sentence-transformers' own modules read it, or the module of this project."""
    read_outs: Mapping[str, Transform] = field(default_factory=dict)
    """View to what is done to its latents, fitted on other texts; those to which nothing is are not there."""
    FILE: ClassVar[str] = "icecore.json"
    TENSORS: ClassVar[str] = "icecore.safetensors"
    SCHEMAS: ClassVar[tuple[int, int]] = (1, 2)
    """Of one reading, and of several, which earlier versions do not know."""

    @classmethod
    def of(
        cls,
        decoder: Decoder,
        spec: ExtractionSpec,
        *,
        layer: str | Mapping[str, str],
        pooling: str,
        normalise: bool,
        read_out: Transform | Mapping[str, Transform] | None = None,
    ) -> "Recipe":
        """Narrow an extraction to one layer and pooling, or to one of each of several views, joined by `+`."""
        names, n_blocks = split_poolings(pooling), len(decoder.blocks)
        by_name = layer if isinstance(layer, Mapping) else dict.fromkeys(names, layer)
        for name in by_name:
            if name not in names:
                raise unknown_name("view with a layer", name, names)
        if len(names) > 1 and read_out is not None and not isinstance(read_out, Mapping):
            raise ConfigError(
                f"read_out is {read_out.name!r} for {', '.join(names)} together; allowed: a mapping of each to its own."
            )
        readings = {}
        for name in names:
            if spec.views and name not in spec.views:
                raise unknown_name("view", name, spec.views)
            if name not in by_name:
                raise unknown_name("view with a layer", name, by_name)
            layers = select_layers(by_name[name], n_blocks)
            if len(layers) != 1:
                raise ConfigError(
                    f"the layer is {by_name[name]!r}, which are {len(layers)}; allowed: one, as block_12, 12 or -1."
                )
            readings[name] = spec.of_layer(layers[0], name)
            spans = readings[name].template.spans
            if spans and not spans.startswith("random:"):
                raise ConfigError(
                    f"template.spans is the file {Path(spans).name!r}, which new texts are not in; allowed: none, or "
                    "'random:SEED'."
                )
        read_outs = read_out if isinstance(read_out, Mapping) else {} if read_out is None else {names[0]: read_out}
        read_outs = {name: read_outs[name] for name in names if name in read_outs}
        if len(names) == 1:
            readings, read_outs = {"": readings[names[0]]}, dict(zip([""], read_outs.values(), strict=False))
        elif normalise:  # each by itself, so that a view of larger vectors does not count more
            read_outs = {name: replace(read_outs.get(name, no_transform(1, 0)), is_unit=True) for name in names}
        described = decoder.description
        return cls(
            readings,
            normalise,
            {key: getattr(described, key) for key in ("name", "weight_digest", "tokenizer_digest")},
            read_outs=read_outs,
        )

    @property
    def spec(self) -> ExtractionSpec:
        """The extraction of the only reading; of the first of several."""
        return next(iter(self.readings.values()))

    @property
    def layer(self) -> str:
        """The layer of the only reading."""
        return self.spec.layers[0]

    @property
    def pooling(self) -> str:
        """The pooling of the only reading."""
        return self.spec.poolings[0]

    def describe(self) -> Iterator[str]:
        """Yield a line for each reading: layer, pooling, template, plan, and what is done to the latents."""
        for name, spec in self.readings.items():
            read_out = self.read_outs.get(name)
            steps = [] if read_out is None else [read_out.name] * (read_out.name != "none")
            steps += ["length 1"] * (read_out is not None and read_out.is_unit)
            template = [f"template {spec.template.name}"] * bool(spec.template.name)
            parts = [spec.layers[0], spec.poolings[0], *template, f"plan {spec.plan}", *steps]
            yield f"{name}{': ' if name else ''}{', '.join(parts)}"

    def vectors(self, latents: Mapping[str, Float[Tensor, "1 N D"]]) -> Float[Tensor, "N E"]:
        """Return what becomes of the latents of every reading, before vectors are divided by their lengths."""
        done = [self.read_outs[name](part) if name in self.read_outs else part for name, part in latents.items()]
        return torch.cat(done, dim=-1)[0]

    def save(self, folder: Path) -> None:
        """Write the recipe to a folder, and what is done to latents beside it."""
        if self.read_outs:
            tensors = {
                f"{name}/{key}".lstrip("/"): getattr(read_out, key).contiguous()
                for name, read_out in self.read_outs.items()
                for key in TENSORS
            }
            (folder / self.TENSORS).write_bytes(save(tensors))
        (folder / self.FILE).write_text(json.dumps(self.to_dict(), indent=2) + "\n", "utf-8")

    def to_dict(self) -> dict[str, object]:
        """Return the recipe as plain values; the schema of one reading is that of earlier versions."""
        readings = {}
        for name, spec in self.readings.items():
            extraction = {key: value for key, value in asdict(spec).items() if key not in ("store_texts", "views")}
            readings[name] = {"extraction": json.loads(json.dumps(extraction))}
            if read_out := self.read_outs.get(name):
                readings[name] |= {"read_out": read_out.name, **({"is_unit": True} if read_out.is_unit else {})}
        is_one = "" in readings
        return {
            "schema": self.SCHEMAS[not is_one],
            "is_stock": self.is_stock,
            "normalise": self.normalise,
            "decoder": dict(self.decoder),
            **(readings[""] if is_one else {"views": readings}),
        }

    @classmethod
    def read(cls, folder: Path) -> "Recipe":
        """Read the recipe of a folder; HeadError where it has none that can be read."""
        try:
            values = json.loads((folder / cls.FILE).read_text("utf-8"))
            if values["schema"] not in cls.SCHEMAS:
                known = " and ".join(map(str, cls.SCHEMAS))
                raise ValueError(f"its schema is {values['schema']}, this version reads {known}")
            listed = {"": values} if values["schema"] == cls.SCHEMAS[0] else dict(values["views"])
            tensors, read_outs = {}, {}
            if any("read_out" in reading for reading in listed.values()):
                tensors = load((folder / cls.TENSORS).read_bytes())
            for name, reading in listed.items():
                if "read_out" in reading:
                    parts = {key: tensors[f"{name}/{key}".lstrip("/")] for key in TENSORS}
                    read_outs[name] = Transform(str(reading["read_out"]), **parts, is_unit=bool(reading.get("is_unit")))
            readings = {name: read_spec(reading["extraction"]) for name, reading in listed.items()}
            return cls(
                readings, bool(values["normalise"]), dict(values["decoder"]), bool(values["is_stock"]), read_outs
            )
        except (*UNREADABLE, SafetensorError) as error:
            raise HeadError(
                f"folder {str(folder)!r} holds no {cls.FILE} that can be read ({first_line(error)}); allowed: a folder "
                "made by icecore export sentence-transformers."
            ) from error


def why_not_stock(recipe: Recipe, decoder: Decoder) -> str:
    """Say why the modules of sentence-transformers cannot read what a recipe asks for; empty where they can."""
    spec, pooling = recipe.spec, recipe.pooling
    special = decoder.tokenizer("a", return_special_tokens_mask=True)["special_tokens_mask"]
    reasons = {
        f"it joins the views {', '.join(recipe.readings)}": len(recipe.readings) > 1,
        f"latents are transformed ({', '.join(done.name for done in recipe.read_outs.values())})": recipe.read_outs,
        f"the plan is {spec.plan!r}, and a stock folder is causal": not spec.mask_plan.is_untouched,
        "its template is not that of the tokenizer alone": replace(spec.template, max_tokens=None) != InputTemplate(),
        f"{recipe.layer} is inside a block": recipe.layer not in decoder.layers,
        f"transformers hands out {recipe.layer} only after the final norm": recipe.layer == decoder.layers[-2],
        f"its pooling is {pooling!r}; stock ones are {', '.join(STOCK_POOLINGS)}": pooling not in STOCK_POOLINGS,
        f"the tokenizer adds special tokens, which a stock {pooling} would pool": pooling != "last" and any(special),
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


def save_decoder_files(decoder: Decoder, folder: Path, *, max_tokens: int | None = None) -> None:
    """Write a decoder and its tokenizer in hub layout; texts are padded on the right."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer: Any = copy(decoder.tokenizer)
    if max_tokens is not None:
        tokenizer.padding_side, tokenizer.model_max_length = "right", max_tokens
        if tokenizer.pad_token is None:
            tokenizer.pad_token = tokenizer.eos_token  # masked, so any token will do
    with quiet_loading():
        tokenizer.save_pretrained(folder)
        decoder.module.save_pretrained(folder)


STOCK_SETTINGS = "sentence_bert_config.json"
STOCK_KEYS = frozenset({"transformer_task", "modality_config", "module_output_name"})
STOCK_FOLDERS = frozenset({"", "1_Pooling", "2_Normalize"})
"""What a folder of stock modules has beside its decoder."""


def write_stock(recipe: Recipe, decoder: Decoder, folder: Path) -> None:
    """Write a folder of stock modules: Transformer, Pooling and perhaps Normalize."""
    window = decoder.description.window
    save_decoder_files(decoder, folder, max_tokens=min(window, recipe.spec.template.max_tokens or window))
    number = {EMBEDDING: 0, FINAL_NORM: len(decoder.blocks)}.get(recipe.layer, decoder.layers.index(recipe.layer))
    output = {"method": "forward", "method_output_name": ["hidden_states", number]}
    parts = [("transformer", ""), ("pooling", "1_Pooling"), *[("normalize", "2_Normalize")] * recipe.normalise]
    pooling = {
        "embedding_dimension": decoder.description.width,
        "pooling_mode": STOCK_POOLINGS[recipe.pooling],
        "include_prompt": False,
    }
    files = {
        STOCK_SETTINGS: {
            "transformer_task": "feature-extraction",
            "modality_config": {"text": output},
            "module_output_name": "token_embeddings",
        },
        "1_Pooling/config.json": pooling,
        Recipe.FILE: replace(recipe, is_stock=True).to_dict(),
    }
    _write(files, folder, [(MODULES[name], path) for name, path in parts])


def write_custom(recipe: Recipe, decoder: Decoder, folder: Path) -> None:
    """Write a folder that the module of this project reads."""
    save_decoder_files(decoder, folder)
    parts = [(DECODER_LATENTS.place.replace(":", "."), "")]
    parts += [(MODULES["normalize"], "1_Normalize")] * recipe.normalise
    _write({}, folder, parts)
    recipe.save(folder)


def _write(files: Mapping[str, object], folder: Path, modules: list[tuple[str, str]]) -> None:
    """Write files as JSON, and what says which modules there are, each a type and its folder."""
    listed = [{"idx": k, "name": str(k), "path": path, "type": kind} for k, (kind, path) in enumerate(modules)]
    config: dict[str, object] = {
        "model_type": "SentenceTransformer",
        "prompts": {},
        "default_prompt_name": None,
        "similarity_fn_name": "cosine",
    }
    for _, path in modules:
        (folder / path).mkdir(exist_ok=True)
    for name, values in {**files, "modules.json": listed, "config_sentence_transformers.json": config}.items():
        (folder / name).write_text(json.dumps(values, indent=2) + "\n", "utf-8")


# --- A finished run on the hub ---


TEXTS = {".json", ".yaml", ".md", ".html", ".csv", ".svg", ".txt"}
"""Suffixes of files that are searched for what nobody else should read."""
REST = r"/[^\s\"'<>;,)]*[^\s\"'<>;,).]"
PATH = re.compile(r"(?<![\w.~:/-])/(?:root|home|Users|work|workspace|mnt|opt|tmp|var|data)" + REST)
CLIMBING = re.compile(r"(?<![\w.~:/-])(?:\.\./)+(?:root|home|Users|tmp|var)" + REST)
"""Relative paths that pass the root of the disk."""
TOKEN = re.compile(r"\bhf_[A-Za-z0-9]{16,}\b")
SEALED = ("heads", "manifests", "config.yaml")
"""Files of a run, or folders of them, that cannot be changed without breaking their digests."""
REASONS = {
    401: "the hub does not know you; log in with: hf auth login",
    403: "your token may not write there; make one with write access",
    404: "there is no such owner, or your token may not see it",
}
"""Answers of the hub, and what to do."""


def stage_run(
    run: str | Path,
    folder: str | Path,
    *,
    repo: str = "OWNER/NAME",
    has_cache: bool = True,
    caches: str | Path = "",
) -> list[Path]:
    """Write to a folder what `push_run` uploads: the run folder, its cache under `caches/`, and a card, README.md.

    Files are linked where the disk allows it, and copied otherwise. Absolute paths are shortened to their last part.

    Args:
        run: A finished run.
        folder: A new or empty folder.
        repo: The name of the repository, for the card.
        has_cache: Send the cache too, which may be large.
        caches: Folder of the caches; the one that the run names when empty.

    Returns:
        The files, relative to the folder.

    Raises:
        HeadError: No finished run there.
        CacheError: Its cache is gone; `has_cache=False` sends the rest.
        ConfigError: The folder holds something, or a file has a token of the hub in it; names the file.
    """
    source, target = read_run_folder(run), Path(folder)
    if target.exists() and any(target.iterdir()):
        raise ConfigError(f"folder {str(folder)!r} holds something already; name a new one, or empty it.")
    files = {path.relative_to(source.path): path for path in sorted(source.path.rglob("*"))}
    files = {  # without drafts, links and hidden files
        name: path
        for name, path in files.items()
        if path.is_file() and not path.is_symlink() and not any(part.startswith(".") for part in name.parts)
    }
    if has_cache:
        cache = source.cache(caches)
        files |= {Path("caches", path.relative_to(cache.path.parent)): path for path in cache.files}
    changed = _without_private(files)
    for name, path in files.items():
        copy = target / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        if name in changed:
            copy.write_text(changed[name], "utf-8")
            continue
        try:
            os.link(path, copy)
        except OSError:
            shutil.copyfile(path, copy)
    card = target / "README.md"
    card.unlink(missing_ok=True)  # it may be a link to a file of the run
    card.write_text(_shortened(write_card(source, repo, has_cache=has_cache)), "utf-8")
    return sorted({*files, Path("README.md")})


def _without_private(files: Mapping[Path, Path]) -> dict[Path, str]:
    """Return the texts of files that name absolute paths, shortened to their last parts; scores are sealed again."""
    texts = {name: path.read_text("utf-8", errors="replace") for name, path in files.items() if path.suffix in TEXTS}
    changed = {}
    for name, text in texts.items():
        if TOKEN.search(text):
            raise ConfigError(
                f"{str(name)!r} has a token of the hub in it; take it out before the run is sent to others."
            )
        is_sealed = name.parts[0] in SEALED
        if is_sealed and (match := PATH.search(text)):
            raise ConfigError(
                f"{str(name)!r} has the absolute path {match[0][:60]!r} in it, and a digest that forbids to change "
                "it; run again with a path relative to the working folder."
            )
        shortened = _shortened(text)
        if shortened != text and not is_sealed:  # a config keeps its relative paths
            changed[name] = shortened
    scores = Path("scores.json")
    if scores in changed:
        values = json.loads(changed[scores])
        seal = seal_scores(values)
        changed = {
            name: changed.get(name, text).replace(values["sha256"], seal)
            for name, text in texts.items()
            if name in changed or values["sha256"] in text
        }
    return changed


def _shortened(text: str) -> str:
    """Return a text with the last parts of its absolute paths, and of those that pass the root of the disk."""
    for pattern in (PATH, CLIMBING):
        text = pattern.sub(lambda match: Path(match[0]).name, text)
    return text


def write_card(run: RunFolder, repo: str, *, has_cache: bool) -> str:
    """Write the card of a run: metadata, how to load it, and the summary of its report."""
    scores, decoder = run.scores, run.scores.header.decoder
    known = KNOWN_DECODERS.get(str(decoder["name"]).lower())
    base = known.hub_id if known else decoder["name"] if "/" in str(decoder["name"]) else None
    metadata: dict[str, object] = {
        "library_name": "icecore",
        **({"base_model": base} if base else {}),
        "tags": ["icecore", "probing", "frozen-features", scores.header.kind],
    }
    summary = run.path / "summary.md"
    cache = "\nThe latents of every layer are in `caches/`: `icecore.LatentCache(path)`.\n" if has_cache else ""
    return f"""---
{yaml.safe_dump(metadata, sort_keys=False).strip()}
---

Heads on the frozen latents of {decoder["name"]}, on the task {scores.header.task["name"]} ({scores.header.kind}), under
the mask plan `{scores.cache["plan"]}`. Made with icecore. To use the best head, `{run.best}`:

```python
import icecore
from huggingface_hub import snapshot_download

run = icecore.load_run(snapshot_download("{repo}"))
```
{cache}
{summary.read_text("utf-8") if summary.is_file() else ""}"""


def push_run(
    run: str | Path,
    repo: str,
    *,
    is_public: bool = False,
    has_cache: bool = True,
    caches: str | Path = "",
    report: Callable[[str], None] = lambda _: None,
) -> str:
    """Upload a finished run to a repository of the hub, which is made where it is missing; see `stage_run`.

    Args:
        run: A finished run.
        repo: `OWNER/NAME`.
        is_public: Make a new repository public; one that is there stays as it is.
        has_cache: Send the cache too.
        caches: Folder of the caches; the one that the run names when empty.
        report: Receives one-line remarks.

    Returns:
        The address of the upload.

    Raises:
        ConfigError: A repository without an owner, or the hub refuses or cannot be reached; and as `stage_run`.
    """
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", repo):
        raise ConfigError(f"the repository is {repo!r}; allowed: OWNER/NAME.")
    from huggingface_hub import HfApi

    path = Path(run).resolve()
    with TemporaryDirectory(prefix=".push-", dir=path.parent) as draft:
        files = stage_run(run, draft, repo=repo, has_cache=has_cache, caches=caches)
        size = sum((Path(draft) / file).stat().st_size for file in files)
        report(f"uploading {len(files)} files, {size / 1e6:,.1f} MB, to {repo}")
        api = HfApi()
        try:
            api.create_repo(repo, private=not is_public, exist_ok=True)
            message = f"Upload the run {path.name} of icecore"
            commit = api.upload_folder(repo_id=repo, folder_path=draft, commit_message=message)
        except Exception as error:  # the client, its HTTP layer and the system raise unrelated types
            status = getattr(getattr(error, "response", None), "status_code", None)
            reason = REASONS.get(status or 0, first_line(error).rstrip("."))
            answer = f" (HTTP {status})" if status else ""
            raise ConfigError(
                f"the run was not uploaded to {repo!r}: {reason}{answer}. Nothing here has changed; try again."
            ) from error
    return str(commit.commit_url)


# --- Folders ---


DECODER_LATENTS = later("probes.export.latents_module:DecoderLatents")
"""The module of a folder; importing it needs the extra."""
TOLERANCE = 1e-4
"""Largest difference to a cache, relative to the largest value of a vector."""
TRIALS = (
    "Ice.",
    "  Two words, after two blanks.",
    "A much longer sentence, so that the batch of these four has padding in it.",
    "Ein Satz mit Umlauten: über, schön, groß.",
)
"""Texts on which a folder is compared with an extraction before it is handed out."""


def export_sentence_transformer(
    decoder: Decoder,
    spec: ExtractionSpec,
    folder: str | Path,
    *,
    layer: str | Mapping[str, str] = "final_norm",
    pooling: str = "",
    normalise: bool = False,
    read_out: Transform | Mapping[str, Transform] | None = None,
) -> Recipe:
    """Write a folder that encodes texts as an extraction does, and compare the two on a few texts.

    Views are encoded side by side, as by an `Encoder` with these views.

    Where the modules of sentence-transformers can do so, the folder has nothing else, and any program can load it with
    `SentenceTransformer(folder)`. For other plans, templates, layers and poolings it names the module of this project:
    load it with `load_sentence_transformer`.

    Args:
        decoder: The decoder, which is written into the folder.
        spec: Plan, template and poolings, or views.
        folder: A new or empty folder.
        layer: A layer, by name or number; of views, for all of them, or view to layer.
        pooling: A pooling, or several or views side by side, joined by `+`; when empty those that `layer` names, or
            else all views, or the only pooling of `spec`.
        normalise: Divide vectors by their length, those of views side by side each by its own.
        read_out: A fitted transform of the latents, as of `ChosenEncoder`, or view to one; none when None.

    Returns:
        What the folder holds; `is_stock` says which of the two it is.

    Raises:
        ConfigError: The extra is missing, the folder holds something, or the vectors are not those of an extraction.
        UnknownNameError: No such layer or pooling.
    """
    require_extra("sentence_transformers")
    target = Path(folder)
    if target.exists() and any(target.iterdir()):
        raise ConfigError(f"folder {str(folder)!r} holds something already; name a new one, or empty it.")
    if not pooling:
        poolings = tuple(layer if isinstance(layer, Mapping) else spec.poolings_read(of_words=False))
        if len(poolings) != 1 and not (spec.views or isinstance(layer, Mapping)):
            raise ConfigError(f"the poolings are {', '.join(poolings)}; name one of them.")
        pooling = JOIN.join(poolings)
    recipe = Recipe.of(decoder, spec, layer=layer, pooling=pooling, normalise=normalise, read_out=read_out)
    with working_folder(target) as draft:
        reason = why_not_stock(recipe, decoder)
        if not reason:
            write_stock(recipe, decoder, draft)
            reason = _difference(recipe, decoder, draft)
        if reason:
            shutil.rmtree(draft)
            write_custom(recipe, decoder, draft)
            if unequal := _difference(recipe, decoder, draft):
                raise ConfigError(f"the folder would not encode as the extraction does: {unequal}; please report it.")
        if target.exists():
            target.rmdir()
        shutil.copytree(draft, target)
    return Recipe.read(target)


def _difference(recipe: Recipe, decoder: Decoder, folder: Path) -> str:
    """Compare the vectors of a folder with those of an extraction; empty where they are equal."""
    expected = recipe.vectors(embed_readings(decoder, TRIALS, readings=recipe.readings)).numpy()
    if recipe.normalise:
        expected = expected / np.linalg.norm(expected, axis=1, keepdims=True)
    model = load_sentence_transformer(folder, device=str(decoder.device), dtype=decoder.description.dtype)
    vectors = np.asarray(model.encode(list(TRIALS), show_progress_bar=False), np.float32)
    gap = float((np.abs(vectors - expected).max(axis=1) / np.abs(expected).max(axis=1)).max())
    return "" if gap <= TOLERANCE else f"its vectors differ by {gap:.1e} of their largest value"


def load_sentence_transformer(
    folder: str | Path, *, device: str = "auto", dtype: str = "auto", trust_remote_code: bool = False
) -> "SentenceTransformer":
    """Load a folder of `export_sentence_transformer` for encoding; no flag is needed, as no code is in it.

    Args:
        folder: The folder.
        device: As `decoder.device`.
        dtype: As `decoder.dtype`.
        trust_remote_code: Run code that comes with the decoder.

    Raises:
        ConfigError: The extra is missing.
        HeadError: No such folder, or its decoder is not the one it was exported with.
        CodeError: It names modules that no export has.

    Example:
        >>> model = load_sentence_transformer("encoder")  # doctest: +SKIP
        >>> model.encode(["A cat sleeps."]).shape  # doctest: +SKIP
        (1, 576)
    """
    package: Any = require_extra("sentence_transformers")
    recipe = Recipe.read(Path(folder))
    model: SentenceTransformer
    if recipe.is_stock:
        listed = Path(folder) / "modules.json"
        try:
            modules = json.loads(read_file(listed))
            types = [module["type"] for module in modules]
            settings = json.loads(read_file(Path(folder) / STOCK_SETTINGS))
            is_own = {str(module["path"]) for module in modules} <= STOCK_FOLDERS and settings.keys() <= STOCK_KEYS
        except UNREADABLE as error:
            raise HeadError(f"{str(listed)!r} cannot be read ({first_line(error)}).") from error
        if not is_own:  # which may have transformers write files, or fetch code
            raise CodeError(f"{str(folder)!r} has settings that no export has; export it again.")
        check_folder(Path(folder))
        for name in types:  # sentence-transformers runs what a folder names
            if name not in MODULES.values():
                raise CodeError(
                    f"{str(listed)!r} names {str(name)[:60]!r}; allowed: {', '.join(MODULES.values())}. Export the "
                    "folder again."
                )
        with quiet_loading():
            model = package.SentenceTransformer(
                str(folder), device=None if device == "auto" else device, local_files_only=True
            )
        return model
    from sentence_transformers.base.modules import Normalize

    spec: Any = DecoderSpec(str(folder), dtype=dtype, device=device, trust_remote_code=trust_remote_code)  # type: ignore[arg-type]
    decoder = load_decoder(spec)
    for part, key in (("decoder", "weight_digest"), ("tokenizer", "tokenizer_digest")):
        if getattr(decoder.description, key) != recipe.decoder[key]:
            raise HeadError(
                f"the {part} in {str(folder)!r} is not the one it was exported with: its digest differs; export the "
                "folder again."
            )
    modules = [DECODER_LATENTS(decoder, recipe), *[Normalize()] * recipe.normalise]
    model = package.SentenceTransformer(modules=modules, device=str(decoder.device), similarity_fn_name="cosine")
    return model


class PairScorer:
    """Scores pairs of texts with a head of a finished run, by the methods of `CrossEncoder`, without that package.

    Args:
        run: A run folder on pairs.
        head: Which head, for instance `siamese-cosine`; the best when empty.
        decoder: As for `load_scorer`.
        trust_remote_code: As for `load_scorer`.
        allow_code: As for `load_scorer`.

    Raises:
        HeadError: No finished run there, or one that is not on pairs.
    """

    def __init__(
        self,
        run: str | Path,
        *,
        head: str = "",
        decoder: Decoder | str | None = None,
        trust_remote_code: bool = False,
        allow_code: str | Iterable[str] = (),
    ) -> None:
        self.scorer = load_scorer(
            run, head=head or None, decoder=decoder, trust_remote_code=trust_remote_code, allow_code=allow_code
        )
        if self.scorer.kind != "pairs":
            raise HeadError(f"the run {str(run)!r} is on {self.scorer.kind}; allowed: a run on pairs of texts.")

    def predict(
        self, sentences: Sequence[Sequence[str]] | Sequence[str], batch_size: int = 1024, **kwargs: object
    ) -> Float[np.ndarray, " N"] | float:
        """Score pairs, in the units of the run's gold; a single pair gives a single number.

        Args:
            sentences: Pairs of texts, or one pair.
            batch_size: Pairs scored at a time; bounds memory.
            **kwargs: Arguments of `CrossEncoder.predict` that make no difference here.
        """
        del kwargs
        is_single = len(sentences) == 2 and all(isinstance(text, str) for text in sentences)
        scores = self.scorer.predict([sentences] if is_single else sentences, at_a_time=batch_size)  # type: ignore[list-item]
        return float(scores[0]) if is_single else np.array(scores, np.float32)  # type: ignore[arg-type]

    def rank(
        self,
        query: str,
        documents: Sequence[str],
        top_k: int | None = None,
        *,
        return_documents: bool = False,
        **kwargs: Any,
    ) -> list[dict[str, Any]]:
        """Rank documents by their score with a query, the highest first, as `corpus_id`, `score` and perhaps `text`."""
        scores = np.atleast_1d(self.predict([(query, document) for document in documents], **kwargs))
        order = np.argsort(-scores, kind="stable")[:top_k]
        return [
            {"corpus_id": int(i), "score": float(scores[i]), **({"text": documents[i]} if return_documents else {})}
            for i in order
        ]
