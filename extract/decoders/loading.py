"""Loading decoders: a known name, a hub id, a local folder or a GGUF file becomes a frozen decoder."""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
)

from extract.decoders.decoder import Decoder, body_of, wrap_decoder
from extract.decoders.locate import Located, locate_decoder
from extract.decoders.merge import WeightSum
from extract.decoders.placement import computing_device, describe_offload, dispatch, main_device, placing_options
from extract.decoders.spec import COMPUTE_DTYPES, DecoderSpec
from extract.errors import DecoderError

TORCH_DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in COMPUTE_DTYPES}
DEFAULT_SPEC = DecoderSpec()
IN_MEMORY = "in-memory"
FILES_WANTED = (
    "Give a causal LM in hub layout (config.json, safetensors, tokenizer.json), a .gguf file, or a known name."
)
UNTESTED = ("mps",)
"""Devices that are refused by name."""


def load_decoder(
    spec: DecoderSpec | str | nn.Module = DEFAULT_SPEC,
    tokenizer: PreTrainedTokenizerBase | None = None,
    *,
    name: str = IN_MEMORY,
    report: Callable[[str], None] = lambda _: None,
) -> Decoder:
    """Load a decoder onto its device, frozen and described, or take one that is in memory already.

    Args:
        spec: What to load; a string stands for `DecoderSpec(name)`. Or a causal language model of transformers, which
            stays where it is and in its dtype; its weights are frozen.
        tokenizer: The fast tokenizer of a model in memory.
        name: What to call a model in memory, in files and reports.
        report: Receives one-line remarks (where the decoder comes from).

    Raises:
        DecoderError: It cannot be found, read or wired; the sentence says what was tried.

    Example:
        >>> decoder = load_decoder(model, tokenizer, name="mine")  # doctest: +SKIP
    """
    if isinstance(spec, nn.Module):
        return _remarked(_take_model(spec, tokenizer, name), report)
    if tokenizer is not None:
        raise DecoderError(f"a tokenizer was given for {spec!r}; it is for a model in memory, as the first argument.")
    spec = DecoderSpec(spec) if isinstance(spec, str) else spec
    device = main_device(spec, choose_device(spec.device))
    if spec.merge:
        model, tokenizer, located = _merge(spec, device, report)
    else:
        located = locate_decoder(spec.name, revision=spec.revision, report=report)
        with _loading(located, spec):
            tokenizer = _read_tokenizer(located, spec)
            model = _read_adapted(located, spec, device)
    with _loading(located, spec):
        if spec.dtype == "auto" and device.type == "cuda" and torch.cuda.is_bf16_supported():
            for parameter in model.parameters():
                if parameter.dtype == torch.float16:  # massive activations overflow float16
                    parameter.data = parameter.data.to(torch.bfloat16)
        if spec.device_map is not None and spec.is_made:
            dispatch(model, spec)
        elif not spec.is_placed:
            model = model.to(device)
    made = wrap_decoder(
        model, tokenizer, located=located, adapter=spec.adapter or "", merge=spec.merge, quantization=spec.quantization
    )
    if cost := describe_offload(made.blocks):
        report(cost)
    return _remarked(made, report)


def _remarked(decoder: Decoder, report: Callable[[str], None]) -> Decoder:
    if flags := decoder.description.bidirectional:
        report(
            f"{decoder.description.name} was trained to attend to both sides "
            f"({', '.join(f'{name}: {value}' for name, value in flags.items())}): the plan 'bidirectional' is the "
            "decoder as it was trained, and 'causal', the default, is not"
        )
    return decoder


def _read_adapted(located: Located, spec: DecoderSpec, device: torch.device) -> Any:
    model = _draw_model(located, spec, device) if located.random_seed is not None else _read(located, spec, device)
    return _merge_adapter(model, spec.adapter) if spec.adapter else model


def _merge(spec: DecoderSpec, device: torch.device, report: Callable[[str], None]) -> Any:
    """Merge checkpoints in memory; beside the sum, one of them is held at a time."""
    summed, tokenizer, asked = WeightSum(), None, _load_dtype(spec, device)
    dtype = torch.float32
    for part in spec.merge:
        located = locate_decoder(part.name, revision=part.revision, report=report)
        own = DecoderSpec(part.name, part.revision, part.adapter, "float32", "cpu", spec.trust_remote_code)
        with _loading(located, own):
            if tokenizer is None:
                tokenizer = _read_tokenizer(located, own)
                config = AutoConfig.from_pretrained(located.path, **_options(located, own))
                dtype = (config.dtype or torch.float32) if asked == "auto" else asked
            model = _read_adapted(located, own, torch.device("cpu"))
        summed.add(model, weight=part.weight, name=located.name)
        del model
    return summed.finished(dtype), tokenizer, Located(spec.name, "merge", spec.merge[0].name, "")


def _take_model(model: nn.Module, tokenizer: PreTrainedTokenizerBase | None, name: str) -> Decoder:
    """Wrap a model in memory."""
    if not isinstance(model, PreTrainedModel):
        raise DecoderError(
            f"the model is a {type(model).__name__}; allowed: a causal language model of transformers, as "
            "AutoModelForCausalLM.from_pretrained gives."
        )
    if tokenizer is None or not tokenizer.is_fast:
        found = "no tokenizer was given" if tokenizer is None else f"{type(tokenizer).__name__} is not a fast tokenizer"
        raise DecoderError(f"{found}; give that of the model, as AutoTokenizer.from_pretrained gives.")
    _require_supported(computing_device(model))
    return wrap_decoder(model, tokenizer, located=Located(name=name, source="memory", path="", revision=""))


def _require_supported(device: torch.device) -> torch.device:
    if device.type in UNTESTED:
        raise DecoderError(
            f"device {str(device)!r} is not supported: nothing here was tested on it, and it has no float64, which the "
            "probes use; allowed: auto, cpu, cuda."
        )
    return device


def load_tokenizer(
    spec: DecoderSpec | str = DEFAULT_SPEC, *, report: Callable[[str], None] = lambda _: None
) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a decoder and not the decoder, as `load_decoder`."""
    spec = DecoderSpec(spec) if isinstance(spec, str) else spec
    if spec.merge:
        spec = replace(spec, name=spec.merge[0].name, revision=spec.merge[0].revision, merge=())
    located = locate_decoder(spec.name, revision=spec.revision, report=report)
    with _loading(located, spec):
        return _read_tokenizer(located, spec)


def choose_device(name: str) -> torch.device:
    """Resolve a device name; `auto` is the accelerator torch reports where it is supported, else the CPU.

    Raises:
        DecoderError: A device torch does not know or does not have, or one that is not supported (MPS).
    """
    if name == "auto":
        found = torch.accelerator.current_accelerator(check_available=True)
        return torch.device("cpu") if found is None or found.type in UNTESTED else found
    try:
        device = _require_supported(torch.device(name))
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise DecoderError(
            f"device {name!r} cannot be used here ({str(error).splitlines()[0]}); allowed: auto, cpu"
            f"{', cuda' if torch.cuda.is_available() else ''}."
        ) from error
    return device


@contextmanager
def quiet_loading() -> Iterator[None]:
    """Silence progress bars and reports of transformers until the `with` block ends; `_require_whole` has its own."""
    from transformers.utils import logging as untyped

    logging: Any = untyped

    was_enabled, verbosity = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if was_enabled:
            logging.enable_progress_bar()


def _read_tokenizer(located: Located, spec: DecoderSpec) -> PreTrainedTokenizerBase:
    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(located.path, **_options(located, spec))
    return tokenizer


def _options(located: Located, spec: DecoderSpec) -> dict[str, Any]:
    revision = {"revision": located.revision} if located.source == "hub" and located.revision else {}
    return {"trust_remote_code": spec.trust_remote_code, **revision}


def _auto_class(config: Any) -> Any:
    """Choose what loads a checkpoint: one of images and text is loaded whole, and its text decoder taken."""
    is_of_images = config.model_type in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES
    is_of_text = config.model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    return AutoModelForImageTextToText if is_of_images and not is_of_text else AutoModelForCausalLM


@contextmanager
def _loading(located: Located, spec: DecoderSpec) -> Iterator[None]:
    """Load without progress bars, and turn what can go wrong into a sentence."""
    try:
        with quiet_loading():
            yield
    except DecoderError:
        raise
    except Exception as error:  # transformers, accelerate, torch and pickle raise a dozen types on foreign files
        raise DecoderError(
            f"decoder {spec.name!r} cannot be loaded from {located.source} {located.path}: {_first_line(error)} "
            + ("Check decoder.device_map, or set it to auto." if isinstance(spec.device_map, dict) else FILES_WANTED)
        ) from error


def _require_whole(model: nn.Module, loaded: Mapping[str, Collection[Any]], spec: DecoderSpec) -> None:
    """Refuse a checkpoint that leaves weights of the decoder random; those of its language-model head are not used."""
    body = body_of(model)
    prefix = next((f"{name}." for name, module in model.named_modules() if module is body and name), "")
    missing = sorted(key for key in loaded["missing_keys"] if key.startswith(prefix))
    unknown = sorted(key for key in loaded["unexpected_keys"] if prefix and key.startswith(prefix))
    other = sorted(str(key[0] if isinstance(key, tuple) else key) for key in loaded["mismatched_keys"])
    for keys, what in (
        (missing, "lacks"),
        (other, "has another shape for"),
        (unknown, "has, and the decoder does not,"),
    ):
        if keys:
            raise DecoderError(
                f"decoder {spec.name!r} would be loaded in part: its checkpoint {what} {len(keys)} weights, such as "
                f"{keys[0]!r}, so layers would hold random numbers. Give the checkpoint that belongs to config.json."
            )


def _read(located: Located, spec: DecoderSpec, device: torch.device) -> Any:
    dtype, options = _load_dtype(spec, device), _options(located, spec)
    config = AutoConfig.from_pretrained(located.path, **options)
    placing = {} if spec.is_made else placing_options(spec, config, dtype)
    found: Any = _auto_class(config).from_pretrained(
        located.path, dtype=dtype, output_loading_info=True, **options, **placing
    )
    model, loaded = found
    _require_whole(model, loaded, spec)
    return model


def _draw_model(located: Located, spec: DecoderSpec, device: torch.device) -> Any:
    """Make a decoder of the same configuration with the random weights of a seed."""
    if spec.adapter:
        raise DecoderError(f"decoder {spec.name!r} has random weights, which adapter {spec.adapter!r} is not made for.")
    options, dtype = _options(located, spec), _load_dtype(spec, device)
    config = AutoConfig.from_pretrained(located.path, **options)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(located.random_seed or 0)
        model = _auto_class(config).from_config(config, dtype=torch.float32, trust_remote_code=spec.trust_remote_code)
    for parameter in model.parameters():
        parameter.data = parameter.data.to((config.dtype or torch.float32) if dtype == "auto" else dtype)
    return model


def _merge_adapter(model: Any, adapter: str) -> Any:
    """Merge an adapter into the part of a model that it was saved on; every place must get its tensor."""
    try:
        from peft import PeftConfig, PeftModel, get_peft_model_state_dict
        from peft.utils import load_peft_weights
    except ImportError as error:
        raise DecoderError(
            f"adapter {adapter!r} needs the extra package peft; install it with: pip install peft accelerate."
        ) from error
    keys = set(load_peft_weights(adapter, device="cpu"))
    part: Any = _adapted_part(model, keys)
    config = PeftConfig.from_pretrained(adapter)
    config.inference_mode = True
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
        raise _half_applied(adapter, "has, and the decoder has no place for,", sorted(loaded.unexpected_keys))
    merged = tuned.merge_and_unload()
    return merged if part is model else model


def _adapted_part(model: nn.Module, keys: Collection[str]) -> nn.Module:
    """Return what an adapter was saved on: the model, or a module on the way to its body, as LLM2Vec saves."""
    body = body_of(model)
    names = next((name for name, module in model.named_modules() if module is body), "").split(".")
    roots = {key.removeprefix("base_model.model.").partition(".")[0] for key in keys}
    parts = [model, *(model.get_submodule(".".join(names[: depth + 1])) for depth in range(len(names)))]
    return max(parts, key=lambda part: len(roots & {name for name, _ in part.named_children()}))  # the outermost


def _half_applied(adapter: str, verb: str, keys: list[str]) -> DecoderError:
    return DecoderError(
        f"adapter {adapter!r} would be applied in part: it {verb} {len(keys)} tensors, such as {keys[0]!r}. "
        "Give a whole adapter that was made for this decoder, saved on its causal LM or on its body."
    )


def _load_dtype(spec: DecoderSpec, device: torch.device) -> torch.dtype | Literal["auto"]:
    # The dtype is given to the loader, never to module.to(): that would round the rotary frequencies as well.
    if spec.dtype != "auto":
        return TORCH_DTYPES[spec.dtype]
    return "auto" if device.type == "cuda" else torch.float32


def _first_line(error: BaseException) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return (lines[0].rstrip(".") if lines else type(error).__name__) + "."
