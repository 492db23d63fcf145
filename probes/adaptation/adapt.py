"""Adapting a decoder: texts and objectives under a mask plan give an adapter, with a record of how it was made."""

import json
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from importlib.metadata import version
from operator import call
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, cast

import lightning
import numpy as np
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers.pytorch_utils import Conv1D

from extract.decoders.adapters import ADAPTER_CONFIG, quiet_peft
from extract.decoders.decoder import Decoder, describe_offload
from extract.errors import CertificateError, ConfigError, DecoderError, HeadError, first_line
from extract.files import digest_json, digest_module, read_file, refuse_links, remove_file, write_file
from extract.masks.mask_plan import parse_plan
from extract.poolings.memory import keep_blocks
from extract.records import from_plain
from extract.store.manifest import Plain, differences
from extract.wiring.certificate import check_influence
from extract.wiring.plan_wiring import plan_in_force, states_with_gradients
from probes.adaptation.adapt_config import (
    AdaptConfig,
    LoraSpec,
    MntpOptions,
    MsgOptions,
    SscOptions,
    plain_config,
    read_adapt_config,
)
from probes.adaptation.infilling import require_no_leak
from probes.adaptation.objectives import (
    Contrast,
    ContrastBatch,
    Excluded,
    LanguageModel,
    MarkedRow,
    MaskedTokens,
    MissingSpans,
    MixedRows,
    TextRow,
    TokenBatch,
    TokenObjective,
    TokenRow,
    find_mask_id,
    gather_rows,
    load_language_model,
    mark_row,
    read_excluded,
    read_rows,
    read_text_rows,
)
from probes.fitting.fit import KeepBest, Look
from probes.fitting.loop import run_trainer
from probes.fitting.saved_fits import UNFINISHED, Unfinished

if TYPE_CHECKING:
    import pandas as pd


# --- Training: LoRA in place, objectives on a decoder under a plan, the best step kept ---


UNUSED = 1e-9
"""Dropout of updates that have none, so that an objective may set one."""


@dataclass(frozen=True, eq=False)
class Lora:
    """The updates of a language model, in place and trainable; everything else of it is frozen."""

    tuned: Any
    """peft's model around it."""
    weights: tuple[nn.Parameter, ...]
    """The matrices of all updates."""
    dropouts: tuple[nn.Dropout, ...]

    @property
    def n_parameters(self) -> int:
        """Numbers that are trained."""
        return sum(weight.numel() for weight in self.weights)

    @contextmanager
    def training(self, dropout: float) -> Iterator[None]:
        """Let dropout act on what enters the updates until the `with` block ends; the decoder itself has none."""
        try:
            for layer in self.dropouts:
                layer.p = dropout
                layer.train()
            yield
        finally:
            for layer in self.dropouts:
                layer.eval()

    def files(self) -> dict[str, bytes]:
        """Return the adapter's files as peft writes them, for `decoder.adapter` and any other program; weights last."""
        with TemporaryDirectory() as folder:
            self.tuned.save_pretrained(folder)
            return {name: read_file(Path(folder) / name) for name in (ADAPTER_CONFIG, WEIGHTS)}

    def remove(self) -> None:
        """Take the updates away for good; what is left is the language model as it was."""
        self.tuned.unload()


def add_lora(language: LanguageModel, spec: LoraSpec, *, seed: int) -> Lora:
    """Put updates in place, which change nothing yet: one matrix of each is zero, the other is drawn from the seed.

    Raises:
        DecoderError: peft is missing, or no module of the blocks has a name of `lora.targets`.
    """
    try:
        from peft import LoraConfig, get_peft_model
        from peft.tuners.lora import LoraLayer
    except ImportError as error:
        raise DecoderError(
            "icecore adapt needs the extra package peft; install it with: pip install peft accelerate."
        ) from error
    config = LoraConfig(
        r=spec.rank,
        lora_alpha=spec.alpha,  # type: ignore[arg-type]
        lora_dropout=spec.dropout or UNUSED,
        bias="none",
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng(), quiet_peft():
        torch.manual_seed(seed)
        try:
            config.target_modules = _find_targets(language, spec.targets)
            tuned = get_peft_model(language.model, config)
        except ValueError as error:
            raise DecoderError(
                f"lora.targets {', '.join(spec.targets)!r} cannot be adapted ({first_line(error)}); allowed: "
                "all-linear, or names of linear modules in the blocks of this decoder."
            ) from error
    layers = [module for module in tuned.modules() if isinstance(module, LoraLayer)]
    dropouts = [part for layer in layers for part in layer.lora_dropout.values() if isinstance(part, nn.Dropout)]
    weights = tuple(parameter for parameter in tuned.parameters() if parameter.requires_grad)
    config.lora_dropout = spec.dropout
    tuned.eval()
    for layer in dropouts:
        layer.p = spec.dropout
    return Lora(tuned, weights, tuple(dropouts))


def _find_targets(language: LanguageModel, names: tuple[str, ...]) -> list[str]:
    """Find the full names of the modules of the blocks that names mean: towers for images or sounds have like ones.

    ValueError for a name that no linear map of the blocks has.
    """
    in_blocks = {module for block in language.decoder.blocks for module in block.modules()}
    modules = {path: module for path, module in language.model.named_modules() if module in in_blocks}
    if names == ("all-linear",):
        return [path for path, module in modules.items() if isinstance(module, nn.Linear | Conv1D)]
    by_name = {name: [path for path in modules if f".{path}".endswith(f".{name}")] for name in names}
    if missing := [name for name, paths in by_name.items() if not paths]:
        raise ValueError(f"no module of the blocks is called {missing[0]!r}")
    others = [
        name for name, paths in by_name.items() if not all(isinstance(modules[p], nn.Linear | Conv1D) for p in paths)
    ]
    if others:  # before anything is put in place
        raise ValueError(f"{others[0]!r} is no linear map")
    return list(dict.fromkeys(path for paths in by_name.values() for path in paths))


TOKEN_OBJECTIVES = ("msg", "mntp", "mtp")
"""In the order in which they mark rows: spans first, then their context."""
WINDOW = 20
"""Steps over which tokens per second are averaged."""
HELD_OUT_SEED = 7
"""Decides what is hidden of the rows held out: always the same."""

Losses = list[dict[str, float]]
"""What is noted of each step, or of each look at the rows held out, by name."""


@dataclass(frozen=True)
class StepReport:
    """How far a training is."""

    step: int
    """Steps done."""
    steps: int
    losses: dict[str, float]
    """By objective, and `loss` as they are weighed."""
    tokens_per_second: float
    seconds_left: float
    held_out: float
    """Held-out loss at the last look; NaN before the first."""


def ignore_step(step: StepReport) -> None:
    """Report nothing."""


@dataclass(frozen=True, eq=False)
class Texts:
    """All rows of an adaptation."""

    tokens: MixedRows[TokenRow] | None
    held_out_tokens: MixedRows[TokenRow] | None
    contrast: MixedRows[TextRow] | None
    held_out_contrast: MixedRows[TextRow] | None


@dataclass(frozen=True, eq=False)
class StepPart:
    """What is computed at once: a part of a step, or some of the rows held out."""

    step: int
    tokens: TokenBatch | None = None
    contrast: ContrastBatch | None = None
    shares: Mapping[str, float] = field(default_factory=dict)
    """By objective the share of the step's targets that are in this part; all where it is not named."""

    @property
    def n_tokens(self) -> int:
        """Tokens that the decoder reads."""
        return sum(int(part.batch.n_tokens.sum()) for part in (self.tokens, self.contrast) if part is not None)

    def count(self, objective: str) -> int:
        """Count what an objective's loss is the mean over: targets, or rows."""
        if objective == "sscl":
            return 0 if self.contrast is None else self.contrast.n_rows
        return 0 if self.tokens is None else len(self.tokens.targets[objective][0])


class Objectives:
    """The objectives of an adaptation on its decoder."""

    def __init__(self, config: AdaptConfig, language: LanguageModel) -> None:
        self.config, self.language = config, language
        self.marking = [self._make(name) for name in TOKEN_OBJECTIVES if name in config.used]
        options = config.options("sscl") if "sscl" in config.used else None
        self.special_ids: tuple[int, ...] = tuple(language.decoder.tokenizer.all_special_ids)
        self.contrast = Contrast(language.decoder, options) if isinstance(options, SscOptions) else None

    def _make(self, name: str) -> TokenObjective:
        options = self.config.options(name)
        if isinstance(options, MsgOptions):
            return MissingSpans(options)
        assert isinstance(options, MntpOptions)
        tokenizer = self.language.decoder.tokenizer
        mask_id = find_mask_id(tokenizer, options.mask_token, objective=name)
        return MaskedTokens(name, options, mask_id, min(len(tokenizer), self.language.vocabulary))

    @property
    def masks(self) -> dict[str, str]:
        """The token that stands for hidden ones, by the name of the objective."""
        tokenizer = self.language.decoder.tokenizer
        hiding = [objective for objective in self.marking if isinstance(objective, MaskedTokens)]
        return {objective.name: str(tokenizer.convert_ids_to_tokens(objective.mask_id)) for objective in hiding}

    def marking_at(self, step: int) -> list[TokenObjective]:
        """Return the objectives that mark rows at a step: those with a weight."""
        weights = self.config.weights_at(step)
        return [objective for objective in self.marking if weights.get(objective.name)]

    def losses(self, part: StepPart) -> dict[str, Tensor]:
        """Compute the loss of every objective of a part: the mean over its targets, or over its rows."""
        losses: dict[str, Tensor] = {}
        if part.tokens is not None:
            decoder = self.language.decoder
            final = states_with_gradients(decoder, part.tokens.batch)[len(decoder.blocks) + 1]
            states = final.reshape(-1, final.shape[-1])
            for name, (tokens, places) in part.tokens.targets.items():
                if len(tokens):  # a row may have no span
                    wanted = states[places.to(states.device)]
                    losses[name] = self.language.losses(wanted, tokens.to(states.device)).mean()
        if part.contrast is not None and self.contrast is not None:
            losses["sscl"] = self.contrast.loss(part.contrast)
        return losses


class StepData(lightning.LightningDataModule):
    """The parts of every step, made when they are needed; each depends on the seed and its own number alone."""

    def __init__(self, config: AdaptConfig, texts: Texts, objectives: Objectives) -> None:
        super().__init__()
        self.config, self.texts, self.objectives = config, texts, objectives
        options = config.training
        self.order = np.zeros(0, np.int64)
        if texts.tokens is not None:
            self.order = texts.tokens.draw(config.steps * options.batch, seed=(config.seed, 1))
        self.contrast_batch = 0
        self.contrast_order = np.zeros(0, np.int64)
        if texts.contrast is not None and objectives.contrast is not None:
            self.contrast_batch = objectives.contrast.options.batch
            self.contrast_order = texts.contrast.draw(config.steps, self.contrast_batch, seed=(config.seed, 2))

    def part(self, step: int, number: int) -> StepPart:
        """Make a part of a step; the contrast of all rows of a step is in its first part."""
        config, weights = self.config, self.config.weights_at(step)
        tokens = contrast = None
        shares = dict[str, float]()
        marking = self.objectives.marking_at(step)
        if marking and self.texts.tokens is not None:
            options = config.training
            rows = [self.texts.tokens.rows[i] for i in self.order[step * options.batch : (step + 1) * options.batch]]
            marked = self._mark(rows, marking, (config.seed, 3, step))
            n = options.batch // options.accumulate
            tokens = gather_rows(marked[number * n : (number + 1) * n])
            counts = {name: sum(len(row.targets[name][0]) for row in marked) for name in tokens.targets}
            shares = {name: len(tokens.targets[name][0]) / max(1, n) for name, n in counts.items()}
        if weights.get("sscl") and number == 0 and self.texts.contrast is not None:
            first = step * self.contrast_batch
            some = self.contrast_order[first : first + self.contrast_batch]
            contrast = self._gather([self.texts.contrast.rows[i] for i in some])
        return StepPart(step, tokens, contrast, shares)

    def transfer_batch_to_device(self, batch: StepPart, device: torch.device, dataloader_idx: int) -> StepPart:
        """Leave a part where it is: the decoder sends what it needs."""
        del device, dataloader_idx
        return batch

    def _gather(self, rows: Sequence[TextRow]) -> ContrastBatch:
        assert self.objectives.contrast is not None
        return self.objectives.contrast.gather(rows)

    def train_dataloader(self) -> DataLoader[StepPart]:
        """Give the parts of the steps of one epoch, which ends at a look at the held-out loss."""
        options = self.config.training
        epoch = self.trainer.current_epoch if self.trainer else 0
        first = epoch * options.check_every
        steps = range(first, min(first + options.check_every, self.config.steps))
        parts = [(step, number) for step in steps for number in range(options.accumulate)]
        return _loader([partial(self.part, *at) for at in parts])

    def val_dataloader(self) -> DataLoader[StepPart]:
        """Give the rows that are held out."""
        return _loader([*self.held_out_parts()])

    def held_out_parts(self) -> Iterator[Callable[[], StepPart]]:
        """Give the makers of the parts of what is held out."""
        last, options = self.config.steps, self.config.training
        held = self.texts.held_out_tokens
        if self.objectives.marking and held is not None:
            n = options.batch // options.accumulate
            rows = held.rows[: options.held_out]
            for first in range(0, len(rows), n):
                yield partial(self._hidden, rows[first : first + n], first)
        if self.objectives.contrast is not None and self.texts.held_out_contrast is not None:
            texts = self.texts.held_out_contrast.rows
            for first in range(0, len(texts) - 1, self.contrast_batch):
                some = texts[first : first + self.contrast_batch]
                yield lambda some=some: StepPart(last, contrast=self._gather(some))  # type: ignore[misc]

    def _hidden(self, rows: Sequence[TokenRow], first: int) -> StepPart:
        marked = self._mark(rows, self.objectives.marking, (HELD_OUT_SEED,), first=first)
        return StepPart(self.config.steps, gather_rows(marked))

    def _mark(
        self, rows: Sequence[TokenRow], marking: Sequence[TokenObjective], seed: tuple[int, ...], *, first: int = 0
    ) -> list[MarkedRow]:
        """Mark rows, each by the seed and its own number."""
        special_ids = self.objectives.special_ids
        return [mark_row(row, marking, (*seed, k), special_ids=special_ids) for k, row in enumerate(rows, first)]


def _loader(makers: list[Callable[[], StepPart]]) -> DataLoader[StepPart]:
    """Make a loader of parts that are made when they are needed.

    It must not draw a number of the generator that dropout uses: a resumed training would not.
    """
    parts = cast("torch.utils.data.Dataset[StepPart]", makers)  # a list serves as one
    make = cast("Callable[[list[object]], object]", call)
    return DataLoader(parts, batch_size=None, collate_fn=make, generator=torch.Generator())


class Adaptation(lightning.LightningModule):
    """The updates as a module; the decoder that they are in stays outside, so that no checkpoint holds it."""

    def __init__(self, config: AdaptConfig, objectives: Objectives, lora: Lora) -> None:
        super().__init__()
        self.config, self.objectives, self.lora = config, objectives, lora
        self.weights = torch.nn.ParameterList(lora.weights)
        self.held_out: dict[str, list[tuple[float, int]]] = {}
        self.steps: Losses = []
        self.looks: Losses = []
        self._sums: dict[str, float] = {}

    def training_step(self, part: StepPart) -> Tensor:
        """Compute the weighed loss of a part of a step: those of all parts add up to that of the whole step."""
        weights, losses = self.config.weights_at(part.step), dict[str, Tensor]()
        contrast = self.objectives.contrast
        if part.tokens is not None:
            with self.lora.training(self.config.lora.dropout):
                losses |= self.objectives.losses(replace(part, contrast=None))
        if part.contrast is not None and contrast is not None:
            with self.lora.training(contrast.options.dropout):
                losses |= self.objectives.losses(replace(part, tokens=None))
        losses = {name: part.shares.get(name, 1.0) * loss for name, loss in losses.items()}
        nothing = 0.0 * self.weights[0].sum()  # of rows that are too short for any target
        total = sum((weights[name] * loss for name, loss in losses.items()), nothing)
        for name, loss in {**losses, "loss": total}.items():
            self._sums[name] = self._sums.get(name, 0.0) + float(loss.detach())
        self._sums["n_tokens"] = self._sums.get("n_tokens", 0) + part.n_tokens
        return total * self.config.training.accumulate  # Lightning divides by the number of parts

    def end_step(self, step: int) -> dict[str, float]:
        """Note the losses of a step whose parts are all computed; `HeadError` where one is not finite."""
        values, self._sums = {"step": float(step), **self._sums}, {}
        for name, loss in sorted(values.items(), key=lambda item: item[0] == "loss"):
            if not math.isfinite(loss):
                raise HeadError(
                    f"the loss {name} of step {step} is {loss:g}, and what follows would be too; lower "
                    "training.learning_rate, or leave that objective out."
                )
        self.steps.append(values)
        return values

    def validation_step(self, part: StepPart) -> None:
        """Add the losses of rows held out, without gradients.

        There is no dropout but for views of one text, which it makes: the same at every look.
        """
        contrast = self.objectives.contrast
        with ExitStack() as stack:
            if part.contrast is not None and contrast is not None and contrast.makes_views:
                device = self.objectives.language.decoder.device
                stack.enter_context(torch.random.fork_rng([device] if device.type == "cuda" else []))
                torch.manual_seed(HELD_OUT_SEED)
                stack.enter_context(self.lora.training(contrast.options.dropout))
            losses = self.objectives.losses(part)
        for name, loss in losses.items():
            self.held_out.setdefault(name, []).append((float(loss), part.count(name)))

    def on_validation_epoch_end(self) -> None:
        """Average the losses, and weigh them as the last phase does."""
        means = {
            name: sum(loss * n for loss, n in pairs) / sum(n for _, n in pairs) for name, pairs in self.held_out.items()
        }
        self.held_out.clear()
        weights = self.config.last_phase.weights
        total = sum(weights.get(name, 0.0) * loss for name, loss in means.items())
        self.looks.append({"step": float(len(self.steps)), **means, "loss": total})

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """Make AdamW, and the learning rate's rise and fall."""
        options = self.config.training
        optimiser = torch.optim.AdamW(
            self.weights.parameters(), lr=options.learning_rate, weight_decay=options.weight_decay
        )
        schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: rate_at(self.config, step))
        return {"optimizer": optimiser, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def on_save_checkpoint(self, checkpoint: dict[str, object]) -> None:
        """Keep the losses of the steps done."""
        checkpoint["steps"], checkpoint["looks"] = self.steps, self.looks

    def on_load_checkpoint(self, checkpoint: dict[str, object]) -> None:
        """Go on after the steps done."""
        self.steps, self.looks = (list(cast("Losses", checkpoint[key])) for key in ("steps", "looks"))


def rate_at(config: AdaptConfig, step: int) -> float:
    """Return the learning rate at a step, from 0, as a share of the largest.

    Example:
        >>> from probes.adaptation.adapt_config import CorpusPart, Phase, TrainingSpec
        >>> training, phases = TrainingSpec(warmup=0.1), (Phase(100, {"mntp": 1.0}),)
        >>> config = AdaptConfig(corpus=(CorpusPart("a.txt"),), training=training, phases=phases)
        >>> [rate_at(config, step) for step in (0, 9, 10, 55, 100)]
        [0.1, 1.0, 1.0, 0.5, 0.0]
    """
    options, steps = config.training, config.steps
    warm = round(options.warmup * steps)
    if step < warm:
        return (step + 1) / warm
    done = (step - warm) / max(1, steps - warm)
    if options.schedule == "constant":
        return 1.0
    return 1 - done if options.schedule == "linear" else 0.5 * (1 + math.cos(math.pi * done))


class _Steps(Callback):
    """Ends every step, and reports it."""

    def __init__(self, config: AdaptConfig, report: Callable[[StepReport], None]) -> None:
        self.config, self.report = config, report
        self._recent: deque[tuple[float, float]] = deque(maxlen=WINDOW)
        self._began = 0.0

    def on_train_batch_start(self, trainer: object, pl_module: object, batch: StepPart, batch_idx: int) -> None:
        """Start the clock of a step."""
        del trainer, pl_module, batch
        if batch_idx % self.config.training.accumulate == 0:
            self._began = time.monotonic()

    def on_train_batch_end(
        self, trainer: object, pl_module: lightning.LightningModule, outputs: object, batch: StepPart, batch_idx: int
    ) -> None:
        """Report a step when its last part is computed."""
        del trainer, outputs, batch
        assert isinstance(pl_module, Adaptation)
        if (batch_idx + 1) % self.config.training.accumulate:
            return
        values = pl_module.end_step(len(pl_module.steps) + 1)
        values["seconds"] = time.monotonic() - self._began
        self._recent.append((values["n_tokens"], values["seconds"]))
        tokens, seconds = (sum(column) for column in zip(*self._recent, strict=True))
        left = (self.config.steps - len(pl_module.steps)) * seconds / len(self._recent)
        held_out = pl_module.looks[-1]["loss"] if pl_module.looks else float("nan")
        losses = {name: value for name, value in values.items() if name not in ("step", "n_tokens", "seconds")}
        report = StepReport(len(pl_module.steps), self.config.steps, losses, tokens / seconds, left, held_out)
        self.report(report)


@dataclass(frozen=True, eq=False)
class Trained:
    """A training that has ended; the updates hold the weights of the best look."""

    best_step: int
    """Step of the look of the last phase with the lowest held-out loss; 0 where no step was taken."""
    steps: Losses
    """Losses, tokens and seconds of every step."""
    looks: Losses
    """Held-out losses at every look, the first of them before any step."""
    seconds: float


def train(
    config: AdaptConfig,
    objectives: Objectives,
    texts: Texts,
    lora: Lora,
    *,
    unfinished: Unfinished,
    report: Callable[[StepReport], None] = ignore_step,
) -> Trained:
    """Train updates that are in place, resuming what a killed training left in the folder."""
    data, module = StepData(config, texts, objectives), Adaptation(config, objectives, lora)
    device = objectives.language.decoder.device
    options = config.training
    folder = unfinished.path.parent
    started = time.monotonic()
    is_half = is_bfloat16(options.precision, device)
    if unfinished.find() is None:
        with torch.autocast(device.type, torch.bfloat16, enabled=is_half):  # as all further looks
            look_once(module, data)
        missing = [name for name, weight in config.last_phase.weights.items() if weight and name not in module.looks[0]]
        if "msg" in missing:
            raise ConfigError(
                f"msg draws no span in any of the {options.held_out} rows held out, as the longest span is half of a "
                "row; lower objectives.msg.shortest, or give longer texts."
            )
        if missing:
            raise ConfigError(
                f"{missing[0]} predicts no token of the {options.held_out} rows held out, all of them special or in "
                "spans; lower objectives.msg.all_share, raise training.held_out, or give other texts."
            )
        write_losses(folder, config, module.steps, module.looks)

    def look(epoch: int, *_: object) -> Look:
        del epoch
        values = module.looks[-1]
        write_losses(folder, config, module.steps, module.looks)
        return Look(np.array([-values["loss"]]), dict(values), dict(values))

    if config.steps:
        n_looks = -(-config.steps // options.check_every)
        before = (config.steps - config.last_phase.steps) // options.check_every
        keeper = KeepBest(
            1,
            parts=lambda: ((weight, None) for weight in module.weights),
            look=look,
            patience=options.patience or n_looks + 1,
            first=before + 1,
        )
        run_trainer(
            module,
            data,
            seed=config.seed,
            device=str(device),
            hooks=[_Steps(config, report), keeper],
            unfinished=unfinished,
            max_epochs=n_looks,
            reload_dataloaders_every_n_epochs=1,
            accumulate_grad_batches=options.accumulate,
            gradient_clip_val=options.clip or None,
            inference_mode=False,  # masks that validation makes are used in training
            precision="bf16-mixed" if is_half else "32-true",
        )
        [best] = keeper.best_epochs.tolist()
        if not best:
            raise HeadError(
                f"no held-out loss of the last phase was finite (the last is {module.looks[-1]['loss']:g}); lower "
                "training.learning_rate."
            )
        module.to(device)
        keeper.restore()
        best_step = min(best * options.check_every, config.steps)
    else:
        best_step = 0
    seconds = time.monotonic() - started + unfinished.seconds_before
    return Trained(best_step, module.steps, module.looks, seconds)


def is_bfloat16(precision: str, device: torch.device) -> bool:
    """Whether to compute in bfloat16."""
    has_it = device.type == "cuda" and torch.cuda.is_bf16_supported()
    return precision == "bfloat16" or (precision == "auto" and has_it)


@torch.no_grad()
def look_once(module: Adaptation, data: StepData) -> None:
    """Look at the held-out loss before any step."""
    for part in data.val_dataloader():
        module.validation_step(part)
    module.on_validation_epoch_end()


# --- From texts to an adapter ---


RECORD = "adaptation.json"
LOSSES, LOOKS = "losses.csv", "held_out.csv"
WEIGHTS = "adapter_model.safetensors"
SCHEMA = 1
SHOWN = 3
"""Decimals of losses."""
CUT_SAMPLED = 1000
"""Most rows of texts in which those that are cut are counted."""


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
            else f"the held-out loss did not fall: {before['loss']:.{SHOWN}f} before, {best['loss']:.{SHOWN}f} kept"
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

    A killed training goes on from the last look at which its state was written, every minute or so. The adapter is that
    of the look of the last phase with the lowest held-out loss, in peft's own format; the decoder is proved to be as it
    was.

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
        ConfigError: The folder holds another adapter, or one that was not made here.

    Example:
        >>> adapt({"corpus": [{"files": "texts.txt"}], "plan": "bidirectional"})  # doctest: +SKIP
    """
    config = as_adapt_config(config)
    folder = config.folder
    refuse_links(folder)
    existing = find_adapted(folder)
    if existing is not None:
        _require_same_settings(existing, config)
    language = language or load_language_model(config.decoder, report=say)
    decoder, plan = language.decoder, parse_plan(config.plan)
    _require_one_device(decoder)
    objectives = Objectives(config, language)
    if "msg" in config.used:
        require_no_leak(plan, len(decoder.blocks))
    excluded = read_excluded(config.exclude)
    texts = _read_texts(config, decoder, excluded, say)
    identity = _identity(config, decoder, texts)
    fit_id = digest_json(identity)
    if existing is not None:
        if existing.record["fit_id"] == fit_id:
            say(f"{folder} holds this adapter already")
            return existing
        raise ConfigError(
            f"folder {str(folder)!r} holds an adapter of another decoder, other texts or shares of them, other "
            "versions, or another kind of device or precision; give another name, or remove the folder."
        )
    unfinished = Unfinished(folder, fit_id)
    _require_no_other_state(unfinished)
    if texts.contrast is not None and objectives.contrast is not None:
        rows = texts.contrast.rows
        n_cut, n_texts = objectives.contrast.count_cut(rows[:: -(-len(rows) // CUT_SAMPLED)])
        if n_cut:
            say(f"of {n_texts:,} texts of sscl, {n_cut:,} are longer than objectives.sscl.length, and are cut")
    if objectives.masks:
        say(f"hidden tokens are shown as {' and '.join(map(repr, sorted({*objectives.masks.values()})))}")
    folder.mkdir(parents=True, exist_ok=True)
    with plan_in_force(decoder, plan), keep_blocks():
        check_influence(decoder, plan)
        say(f"plan {plan.text} took effect on {decoder.description.name}")
        lora = add_lora(language, config.lora, seed=config.seed)
        try:
            _require_gradients(objectives, config.lora)
            n, n_all = lora.n_parameters, decoder.description.n_parameters
            say(f"{n:,} parameters are trained, {n / n_all:.1%} of the decoder's {n_all:,}")
            trained = train(config, objectives, texts, lora, unfinished=unfinished, report=report)
            files = lora.files()
        finally:
            lora.remove()
    _require_same_weights(decoder)
    record = _write_record(config, decoder, texts, excluded, objectives.masks, lora, trained, identity, fit_id)
    for name, content in files.items():
        write_file(folder / name, content)
    remove_file(unfinished.path)
    return Adapted(folder, record)


def find_adapted(folder: Path) -> Adapted | None:
    """Find the adapter of a folder; None where there is none that is whole, `ConfigError` for a foreign one."""
    has_weights = (folder / WEIGHTS).exists()
    if not (folder / RECORD).exists() and (has_weights or (folder / ADAPTER_CONFIG).exists()):
        raise ConfigError(
            f"folder {str(folder)!r} holds an adapter without {RECORD}, so it is not known to be made here; give "
            "another name, or remove the folder."
        )
    if not has_weights:
        return None
    try:
        record = json.loads(read_file(folder / RECORD))
        if record["schema"] != SCHEMA or type(record["fit_id"]) is not str:
            raise ValueError("its schema is another")
        return Adapted(folder, record, was_there=True)
    except (ValueError, KeyError, TypeError, OSError, RecursionError) as error:
        raise ConfigError(
            f"{str(folder / RECORD)!r} is no record of an adaptation ({error}); remove it, or choose another name."
        ) from error


def _require_no_other_state(unfinished: Unfinished) -> None:
    """Refuse a folder in which a killed training of other settings could still go on."""
    folder = unfinished.path.parent
    for state in folder.glob(UNFINISHED.format("*")):
        if state != unfinished.path:
            raise ConfigError(
                f"folder {str(folder)!r} holds a training of other settings, texts or versions that was stopped; give "
                f"another name, or remove {state.name} from it."
            )


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
            f"{config.steps:,} steps read each {config.steps * options.batch / len(tokens.rows):.2g} times on average"
        )
    if "sscl" in config.used:
        sscl = config.options("sscl")
        assert isinstance(sscl, SscOptions)
        seen = Excluded(excluded.sources) if tokens is not None and not sscl.files else excluded  # counted once
        documents = frozenset() if held_tokens is None else held_tokens.documents
        contrast, held_contrast = read_text_rows(
            sscl, config.corpus, held_out=options.held_out, excluded=seen, held_documents=documents
        )
        say(
            f"{len(contrast.rows):,} rows of texts that belong together to train on, {len(held_contrast.rows)} held out"
        )
    if excluded.dropped:
        counts = ", ".join(f"{n:,} with a text of {name}" for name, n in excluded.dropped.items())
        say(f"dropped: {counts}")
    return Texts(tokens, held_tokens, contrast, held_contrast)


PROCEDURE = 5
"""Of what settings lead to: 1 drew what is hidden for whole batches, and kept looks of any phase; 2 looked at views
without dropout, drew rows of contrast whatever the weights of corpora, and scored them in half precision; 3 excluded no
sentences of words, held out views and anchors row by row, and did not count where it was computed; 4 let a batch of
contrast hold a row twice, and equal texts be negatives, and predicted special tokens that a text spells out."""


def _settings(config: Plain) -> Plain:
    """Take the settings that decide an adapter, apart from its decoder and texts, which are known by their digests."""
    return {key: value for key, value in config.items() if key not in ("decoder", "corpus", "name")}


def _require_same_settings(existing: Adapted, config: AdaptConfig) -> None:
    """Refuse a folder with an adapter of other settings, before anything is loaded."""
    now = json.loads(json.dumps(plain_config(config)))
    changed = differences(_settings(existing.record["config"]), _settings(now))
    if changed:
        listed = ", ".join(f"{key} ({before!r} there, {after!r} now)" for key, (before, after) in changed.items())
        raise ConfigError(
            f"folder {str(existing.folder)!r} holds an adapter of other settings: {listed}; give another name, or "
            "remove the folder."
        )


def _identity(config: AdaptConfig, decoder: Decoder, texts: Texts) -> dict[str, Any]:
    """Return all that decides an adapter."""
    about = decoder.description
    rows = {name: None if part is None else part.digest for name, part in vars(texts).items()}
    return {
        "procedure": PROCEDURE,
        "config": _settings(plain_config(config)),
        "decoder": {"weights": about.weight_digest, "tokenizer": about.tokenizer_digest, "dtype": about.dtype},
        "texts": rows,
        "versions": {"torch": str(torch.__version__), "peft": version("peft")},
        "computed": _describe_computation(config, decoder),
    }


def _describe_computation(config: AdaptConfig, decoder: Decoder) -> dict[str, str]:
    """Return where a training is computed and in what: an adapter of one is not that of another."""
    is_half = is_bfloat16(config.training.precision, decoder.device)
    return {"device": decoder.device.type, "precision": "bfloat16" if is_half else "float32"}


def _require_gradients(objectives: Objectives, spec: LoraSpec) -> None:
    """Refuse updates that are all above what the contrastive objective reads: they would get no gradients of it."""
    contrast = objectives.contrast
    if contrast is None:
        return
    blocks = enumerate(objectives.language.decoder.blocks, 1)
    trained = (number for number, block in blocks if any(weight.requires_grad for weight in block.parameters()))
    lowest = next(trained)  # `add_lora` refuses updates of no block
    if contrast.highest_block < lowest:
        raise ConfigError(
            f"objectives.sscl.layers is {[*contrast.options.layers]}, and lora.targets {[*spec.targets]} begins at "
            f"block {lowest}, above it, so sscl would train nothing; allowed: layers from block_{lowest:02d} on. "
            "Name one, or lower targets."
        )


def _require_one_device(decoder: Decoder) -> None:
    """Refuse a decoder in several places, whose updates would all be put where the first is."""
    places = {str(device) for device in decoder.devices}
    if describe_offload(decoder.blocks) or len(places) > 1:
        raise ConfigError(
            "the decoder is spread over several devices, or waits in main memory or on disk, and icecore adapt trains "
            "on one device; leave decoder.device_map out."
        )


def _require_same_weights(decoder: Decoder) -> None:
    digest = digest_module(decoder.module)
    if digest != decoder.description.weight_digest:
        raise CertificateError(
            f"the frozen weights changed during the adaptation: {digest[:12]} after, "
            f"{decoder.description.weight_digest[:12]} before; the adapter is not recorded. Reload the decoder and run "
            "again."
        )


def write_losses(folder: Path, config: AdaptConfig, steps: Losses, looks: Losses) -> None:
    """Write the losses of the steps and looks that are done."""
    import pandas as pd

    columns = None if steps else ["step", *sorted(config.used), "loss", "n_tokens", "seconds"]
    write_file(folder / LOSSES, pd.DataFrame(steps, columns=columns).to_csv(index=False))
    write_file(folder / LOOKS, pd.DataFrame(looks).to_csv(index=False))


def _write_record(
    config: AdaptConfig,
    decoder: Decoder,
    texts: Texts,
    excluded: Excluded,
    masks: dict[str, str],
    lora: Lora,
    trained: Trained,
    identity: dict[str, Any],
    fit_id: str,
) -> dict[str, Any]:
    """Write the losses and the record, before the adapter: a kill leaves none, or a folder that is known as its own."""
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
        "computed": identity["computed"],
        "rows": {name: 0 if part is None else len(part.rows) for name, part in vars(texts).items()},
        "dropped": dict(excluded.dropped),
        "mask_tokens": masks,
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
    write_losses(folder, config, trained.steps, trained.looks)
    write_file(folder / RECORD, json.dumps(record, indent=1) + "\n")
    return record
