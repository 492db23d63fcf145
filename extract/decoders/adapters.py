"""Adapters in peft's format, merged into the decoder that they were made for."""

import json
import re
import warnings
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from extract.errors import DecoderError, first_line
from extract.files import read_file

ADAPTER_CONFIG = "adapter_config.json"
LORA_READ = (
    "r",
    "lora_alpha",
    "target_modules",
    "exclude_modules",
    "fan_in_fan_out",
    "bias",
    "use_rslora",
    "use_dora",
    "lora_bias",
    "modules_to_save",
    "rank_pattern",
    "alpha_pattern",
    "trainable_token_indices",
    "target_parameters",
)
"""Settings of an adapter that decide what it computes, and are read."""
LORA_UNREAD = (
    "peft_type",
    "task_type",
    "auto_mapping",
    "peft_version",
    "base_model_name_or_path",
    "revision",
    "inference_mode",
    "lora_dropout",
    "init_lora_weights",
    "layers_to_transform",
    "layers_pattern",
    "loftq_config",
    "eva_config",
    "corda_config",
    "lora_ga_config",
    "qalora_group_size",
    "megatron_core",
    "runtime_config",
    "ensure_weight_tying",
)
"""Those of its training, or for which the names of its tensors stand."""
PLAIN_STARTS = (True, False, None, "gaussian", "eva", "orthogonal")
"""First weights of an adapter that leave those of the decoder alone."""
NAMES = re.compile(r"[\w.]+")
NAME_PATTERN = re.compile(r"(?:\.\*)?(?:[\w.^$-]|\\\.)*")
"""A pattern of names that takes no longer than the names are."""


@contextmanager
def quiet_peft() -> Iterator[None]:
    """Silence what transformers says of peft's own calls inside the block."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=FutureWarning, message=".*gradient_checkpointing")
        yield


def merge_adapter(model: PreTrainedModel, adapter: str, *, body: str) -> PreTrainedModel:
    """Merge an adapter into the part of a model that it was saved on; every tensor must fit.

    `body` is the path of the body inside the model.
    """
    try:
        from peft import LoraConfig, PeftModel, get_peft_model_state_dict
        from peft.utils import load_peft_weights
    except ImportError as error:
        raise DecoderError(
            f"adapter {adapter!r} needs the extra package peft; install it with: pip install peft accelerate."
        ) from error
    try:
        settings = json.loads(read_file(_adapter_file(adapter)))
        tensors = load_peft_weights(adapter, device="cpu")
    except DecoderError:
        raise
    except Exception as error:  # the hub, safetensors and pickle raise a dozen types
        where = "" if Path(adapter).is_dir() else " There is no such folder."
        raise DecoderError(
            f"adapter {adapter!r} cannot be read: {first_line(error)}.{where} Give a folder in peft's format, as "
            "icecore adapt writes it, or a hub id."
        ) from error
    keys = set(tensors)
    part = _adapted_part(model, keys, body)
    low_rank = [tensor for key, tensor in tensors.items() if ".lora_" in key and tensor.numel()]
    largest = max((max(tensor.shape, default=0) for tensor in low_rank), default=0)
    modules = {name for name, _ in part.named_modules()}
    config = LoraConfig(**_read_lora(adapter, settings, keys, modules, largest), inference_mode=True)
    with quiet_peft():
        tuned = PeftModel(part, config)
    mapping = getattr(part, "_checkpoint_conversion_mapping", {})
    try:
        loaded = tuned.load_adapter(adapter, "default", key_mapping=mapping)
    except KeyError as error:  # peft looks up modules that were saved whole by their names
        raise _half_applied(adapter, "lacks", [str(error.args[0])]) from error
    # peft reports tensors of its own that are missing, but not the model's biases that were trained beside them
    saved = get_peft_model_state_dict(tuned, save_embedding_layers=False)
    biases = set() if mapping else {key for key in saved if key.endswith(".bias")} - keys
    if missing := sorted({*loaded.missing_keys, *biases}):
        raise _half_applied(adapter, "lacks", missing)
    if loaded.unexpected_keys:
        raise _half_applied(adapter, "has, and the decoder does not take,", sorted(loaded.unexpected_keys))
    with _negative_zeros_kept(tuned):
        merged: PreTrainedModel = tuned.merge_and_unload()
    return merged if part is model else model


@contextmanager
def _negative_zeros_kept(tuned: nn.Module) -> Iterator[None]:
    """Keep the bits of weights of -0.0 to which a merge inside the block adds 0; the sum is 0.0, of another digest."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    layers = [module.get_base_layer() for module in tuned.modules() if isinstance(module, BaseTunerLayer)]
    weights = [weight for layer in layers for weight in layer.parameters()]
    places = [((weight == 0) & weight.signbit()).nonzero(as_tuple=True) for weight in weights]
    yield
    for weight, place in zip(weights, places, strict=True):
        weight.data[place] = weight.data[place].where(weight.data[place] != 0, -0.0)


def _adapter_file(adapter: str) -> Path:
    """Find the settings of an adapter, whose files must be plain ones: a folder, or at the hub."""
    folder = Path(adapter)
    if not folder.is_dir():
        beside = sorted(str(path.parent) for path in folder.parent.glob(f"*/{ADAPTER_CONFIG}"))
        if beside and "/" in adapter:  # a folder that is mistyped, and no hub id
            raise DecoderError(f"there is no adapter {adapter!r}; in that folder are {', '.join(beside[:8])}.")
        from huggingface_hub import hf_hub_download

        return Path(hf_hub_download(adapter, ADAPTER_CONFIG))
    for path in folder.glob("adapter_*"):
        if not path.is_file():
            raise DecoderError(f"{path.name} of adapter {adapter!r} is no plain file; give a folder in peft's format.")
    return folder / ADAPTER_CONFIG


def _read_lora(
    adapter: str, settings: object, keys: Collection[str], modules: Collection[str], largest: int
) -> dict[str, Any]:
    """Read what an adapter computes; whatever else its settings ask for is left out, or refused (`DecoderError`).

    They may come from anybody, and peft would run patterns and initialisations that do not end, and read files.
    """

    def refuse(what: str) -> DecoderError:
        return DecoderError(
            f"adapter {adapter!r} {what}; allowed: LoRA or DoRA whose settings are names and numbers. Or merge it with "
            "peft where it is from, and give the merged decoder."
        )

    if not isinstance(settings, dict) or settings.get("peft_type") != "LORA":
        kind = settings.get("peft_type") if isinstance(settings, dict) else settings
        raise refuse(f"is of the type {str(kind)[:40]!r}")
    if settings.get("init_lora_weights", True) not in PLAIN_STARTS:
        raise refuse(f"began as {str(settings['init_lora_weights'])[:40]!r}, which changes the decoder too")
    for name, value in settings.items():
        if value and name not in (*LORA_READ, *LORA_UNREAD):
            raise refuse(f"sets {name!r}, which is not read")
    lora = {name: value for name, value in settings.items() if name in LORA_READ and value is not None}
    patterns = {**lora.get("rank_pattern", {}), **lora.get("alpha_pattern", {})}
    if any(not NAME_PATTERN.fullmatch(pattern) for pattern in patterns):
        raise refuse("has rank_pattern or alpha_pattern with more than names in it")
    saved = lora.get("modules_to_save", [])
    if not isinstance(saved, list) or any(not isinstance(name, str) or not NAMES.fullmatch(name) for name in saved):
        raise refuse("has modules_to_save with more than names in it")
    ranks = [lora.get("r", 8), *lora.get("rank_pattern", {}).values()]
    if any(type(rank) is not int or not 0 < rank <= largest for rank in ranks):
        raise refuse(f"has a rank of {max(map(str, ranks), key=len)}, and no tensor of it is that large")
    targets = lora.get("target_modules")
    is_pattern = isinstance(targets, str) and targets != "all-linear"
    excludes_pattern = isinstance(lora.get("exclude_modules"), str)
    if is_pattern or excludes_pattern or settings.get("layers_to_transform") is not None:
        lora.pop("exclude_modules", None)
        names = {key.removeprefix("base_model.model.").partition(".lora_")[0] for key in keys if ".lora_" in key}
        lora["target_modules"] = sorted(names if names <= {*modules} else {name.rpartition(".")[2] for name in names})
    return lora


def _adapted_part(model: PreTrainedModel, keys: Collection[str], body: str) -> nn.Module:
    """Return the module that an adapter was saved on: the model, or a module above its body (LLM2Vec)."""
    names = body.split(".")
    roots = {key.removeprefix("base_model.model.").partition(".")[0] for key in keys}
    parts = [model, *(model.get_submodule(".".join(names[: depth + 1])) for depth in range(len(names)))]
    return max(parts, key=lambda part: len(roots & {name for name, _ in part.named_children()}))  # the outermost


def _half_applied(adapter: str, verb: str, keys: list[str]) -> DecoderError:
    return DecoderError(
        f"adapter {adapter!r} would be applied in part: it {verb} {len(keys)} tensors, such as {keys[0]!r}. "
        "Give a whole adapter that was made for this decoder, saved on its causal LM or on its body."
    )
