"""Adapting a decoder: texts and objectives under a mask plan give an adapter, with a record of how it was made."""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from extract.decoders.decoder import Decoder
from extract.errors import CertificateError, ConfigError
from extract.files import digest_json, digest_module, read_file, refuse_links, remove_file, write_file
from extract.masks.mask_plan import parse_plan
from extract.records import from_plain
from extract.wiring.certificate import check_influence
from extract.wiring.plan_wiring import plan_in_force
from probes.adaptation.adapt_config import AdaptConfig, SscOptions, plain_config, read_adapt_config
from probes.adaptation.infilling import require_no_leak
from probes.adaptation.objectives import (
    Excluded,
    LanguageModel,
    load_language_model,
    read_excluded,
    read_rows,
    read_text_rows,
)
from probes.adaptation.training import Lora, Objectives, StepReport, Texts, Trained, add_lora, ignore_step, train
from probes.fitting.saved_fits import UNFINISHED

if TYPE_CHECKING:
    import pandas as pd


RECORD = "adaptation.json"
LOSSES, LOOKS = "losses.csv", "held_out.csv"
WEIGHTS = "adapter_model.safetensors"
SCHEMA = 1
SHOWN = 3
"""Decimals of losses."""


@dataclass(frozen=True, eq=False)
class Adapted:
    """An adapter and how it was made.

    Example:
        >>> adapted = adapt("configs/adapt/demo.yaml")  # doctest: +SKIP
        >>> run("stsb.yaml", decoder={"adapter": adapted.folder})  # doctest: +SKIP
    """

    folder: Path
    """Of the adapter: give it to `decoder.adapter`."""
    record: Mapping[str, Any]
    """What adaptation.json holds."""
    was_there: bool = field(default=False, compare=False)
    """Whether the adapter was found and nothing was computed."""

    @cached_property
    def losses(self) -> "pd.DataFrame":
        """A row per step: the loss of every objective, the weighed `loss`, tokens and seconds."""
        import pandas as pd

        return pd.read_csv(self.folder / LOSSES)

    @cached_property
    def held_out(self) -> "pd.DataFrame":
        """A row per look at the rows held out, the first before any step: the same losses."""
        import pandas as pd

        return pd.read_csv(self.folder / LOOKS)

    def __repr__(self) -> str:
        record = self.record
        return (
            f"<adapter {self.folder.name}: {record['decoder']['name']}, plan {record['plan']}, "
            f"{', '.join(record['objectives'])}>\n{self.verdict}"
        )

    @property
    def verdict(self) -> str:
        """The held-out loss before and at the step that was kept, as a sentence."""
        before, best = self.record["held_out"]["before"], self.record["held_out"]["kept"]
        step, steps = self.record["best_step"], self.record["steps"]
        if not step:
            return f"no step was taken; the held-out loss is {before['loss']:.{SHOWN}f}, that of the decoder."
        change = (
            f"the held-out loss fell from {before['loss']:.{SHOWN}f} to {best['loss']:.{SHOWN}f}"
            if best["loss"] < before["loss"]
            else f"the held-out loss did not fall: {before['loss']:.{SHOWN}f} before, {best['loss']:.{SHOWN}f} at best"
        )
        names = [name for name in before if name not in ("loss", "step")]
        parts = [f"{name} {before[name]:.{SHOWN}f} to {best[name]:.{SHOWN}f}" for name in names]
        return f"{change} at step {step:,} of {steps:,}, which was kept ({', '.join(parts)})."


AdaptSource = AdaptConfig | Mapping[str, Any] | str | Path
"""What an adaptation may be given as: its record, a mapping of values, or a YAML file."""


def as_adapt_config(source: AdaptSource) -> AdaptConfig:
    """Read the settings of an adaptation from what stands for them; `ConfigError` or `UsageError` where it cannot."""
    if isinstance(source, AdaptConfig):
        return source
    if isinstance(source, str | Path):
        return read_adapt_config([], file=str(source))
    config: AdaptConfig = from_plain(AdaptConfig, source)
    return config


def adapt(
    config: AdaptSource,
    *,
    language: LanguageModel | None = None,
    say: Callable[[str], None] = lambda _: None,
    report: Callable[[StepReport], None] = ignore_step,
) -> Adapted:
    """Adapt a decoder by LoRA under a mask plan, or find the adapter that the same settings made.

    A killed training goes on where it last looked at the held-out loss. The adapter is that of the look with the
    lowest held-out loss, in peft's own format; the decoder is proved to be as it was.

    Args:
        config: The settings: an `AdaptConfig`, a mapping of its values, or a YAML file.
        language: A language model in memory instead of `config.decoder`, from `load_language_model`.
        say: Receives remarks of one line.
        report: Receives every step.

    Returns:
        The folder of the adapter, its record, and its losses as frames.

    Raises:
        ConfigError: Settings that do not fit together.
        DecoderError: The decoder has no language-model head, or the plan cannot be put in force on it.
        TaskError: Texts that cannot be read, or too few of them.
        ConfigError: The folder holds another adapter.

    Example:
        >>> adapt({"corpus": [{"files": "texts.txt"}], "plan": "bidirectional"})  # doctest: +SKIP
    """
    config = as_adapt_config(config)
    folder = config.folder
    refuse_links(folder)
    language = language or load_language_model(config.decoder, report=say)
    decoder, plan = language.decoder, parse_plan(config.plan)
    excluded = read_excluded(config.exclude)
    texts = _read_texts(config, decoder, excluded, say)
    identity = _identity(config, decoder, texts)
    fit_id = digest_json(identity)
    existing = find_adapted(folder)
    if existing is not None:
        if existing.record["fit_id"] == fit_id:
            say(f"{folder} holds this adapter already")
            return existing
        raise ConfigError(
            f"folder {str(folder)!r} holds an adapter of other settings, texts or versions; give another name, or "
            "remove the folder."
        )
    objectives = Objectives(config, language)
    if "msg" in config.used:
        require_no_leak(plan, len(decoder.blocks))
    folder.mkdir(parents=True, exist_ok=True)
    with plan_in_force(decoder, plan):
        check_influence(decoder, plan)
        say(f"plan {plan.text} took effect on {decoder.description.name}")
        lora = add_lora(language, config.lora, seed=config.seed)
        try:
            n_all = decoder.description.n_parameters
            say(
                f"{lora.n_parameters:,} numbers are trained, {lora.n_parameters / n_all:.1%} of the decoder's {n_all:,}"
            )
            trained = train(config, objectives, texts, lora, folder=folder, fit_id=fit_id, report=report)
            lora.save(folder)
        finally:
            lora.remove()
    _require_same_weights(decoder)
    record = _write_record(config, decoder, texts, excluded, lora, trained, identity, fit_id)
    for state in folder.glob(UNFINISHED.format("*")):
        remove_file(state)
    return Adapted(folder, record)


def find_adapted(folder: Path) -> Adapted | None:
    """Find the adapter of a folder; None where there is none, or none that is whole."""
    if not (folder / RECORD).exists() or not (folder / WEIGHTS).exists():
        return None
    try:
        record = json.loads(read_file(folder / RECORD))
        if record["schema"] != SCHEMA or type(record["fit_id"]) is not str:
            raise ValueError("its schema is another")
        return Adapted(folder, record, was_there=True)
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise ConfigError(
            f"{str(folder / RECORD)!r} is no record of an adaptation ({error}); remove it, or choose another name."
        ) from error


def _read_texts(config: AdaptConfig, decoder: Decoder, excluded: Excluded, say: Callable[[str], None]) -> Texts:
    options = config.training
    tokens = held_tokens = contrast = held_contrast = None
    if config.used - {"sscl"}:
        tokens, held_tokens = read_rows(
            config.corpus,
            decoder.tokenizer,
            length=min(options.length, decoder.description.window),
            held_out=options.held_out,
            excluded=excluded,
            report=say,
        )
        say(
            f"{len(tokens.rows):,} rows of at most {options.length} tokens to train on, {options.held_out} held out; "
            f"{config.steps:,} steps read {config.steps * options.batch / len(tokens.rows):.2g} times as many"
        )
    if "sscl" in config.used:
        sscl = config.options("sscl")
        assert isinstance(sscl, SscOptions)
        contrast, held_contrast = read_text_rows(sscl, config.corpus, held_out=options.held_out, excluded=excluded)
        say(
            f"{len(contrast.rows):,} rows of texts that belong together to train on, {len(held_contrast.rows)} held out"
        )
    if excluded.dropped:
        counts = ", ".join(f"{n:,} with a text of {name}" for name, n in excluded.dropped.items())
        say(f"dropped: {counts}")
    return Texts(tokens, held_tokens, contrast, held_contrast)


def _identity(config: AdaptConfig, decoder: Decoder, texts: Texts) -> dict[str, Any]:
    """Return all that decides an adapter."""
    about = decoder.description
    rows = {name: None if part is None else part.digest for name, part in vars(texts).items()}
    return {
        "config": {
            key: value for key, value in plain_config(config).items() if key not in ("decoder", "corpus", "name")
        },
        "decoder": {"weights": about.weight_digest, "tokenizer": about.tokenizer_digest, "dtype": about.dtype},
        "texts": rows,
        "versions": {"torch": str(torch.__version__), "peft": version("peft")},
    }


def _require_same_weights(decoder: Decoder) -> None:
    digest = digest_module(decoder.module)
    if digest != decoder.description.weight_digest:
        raise CertificateError(
            f"the frozen weights changed during the adaptation: {digest[:12]} after, "
            f"{decoder.description.weight_digest[:12]} before; the adapter is not recorded. Reload the decoder and run "
            "again."
        )


def _write_record(
    config: AdaptConfig,
    decoder: Decoder,
    texts: Texts,
    excluded: Excluded,
    lora: Lora,
    trained: Trained,
    identity: dict[str, Any],
    fit_id: str,
) -> dict[str, Any]:
    """Write the losses, and last the record: a kill before it leaves no adapter."""
    import pandas as pd

    folder = config.folder
    kept = next((look for look in trained.looks if look["step"] == trained.best_step), trained.looks[0])
    n_tokens = sum(step["n_tokens"] for step in trained.steps)
    seconds = sum(step["seconds"] for step in trained.steps)
    record = {
        "schema": SCHEMA,
        "fit_id": fit_id,
        "decoder": decoder.description.to_dict(),
        "plan": config.plan,
        "objectives": sorted(config.used),
        "config": plain_config(config),
        "texts": identity["texts"],
        "rows": {name: 0 if part is None else len(part.rows) for name, part in vars(texts).items()},
        "dropped": dict(excluded.dropped),
        "n_trained": lora.n_parameters,
        "steps": len(trained.steps),
        "best_step": trained.best_step,
        "held_out": {"before": trained.looks[0], "kept": kept},
        "tokens": n_tokens,
        "tokens_per_second": n_tokens / seconds if seconds else None,
        "seconds": trained.seconds,
        "versions": {name: version(name) for name in ("icecore", "torch", "transformers", "peft", "lightning")},
        "made": time.strftime("%Y-%m-%d"),
    }
    write_file(folder / LOSSES, pd.DataFrame(trained.steps).to_csv(index=False))
    write_file(folder / LOOKS, pd.DataFrame(trained.looks).to_csv(index=False))
    write_file(folder / RECORD, json.dumps(record, indent=1) + "\n")
    return record
