"""Loading decoders: a known name, a hub id, a local folder or a GGUF file becomes a frozen decoder."""

import inspect
import json
import os
import re
import shutil
import tempfile
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMultimodalLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES,
    MODEL_MAPPING_NAMES,
)
from transformers.utils.peft_utils import find_adapter_config_file

from extract.decoders.adapters import merge_adapter
from extract.decoders.decoder_spec import (
    COMPUTE_DTYPES,
    DecoderSource,
    DecoderSpec,
    MergePart,
    as_decoder_spec,
    layer_names,
    list_adapters,
    short_name,
)
from extract.decoders.fetch import MOST_BLOCKS, Located, locate_decoder
from extract.errors import DecoderError, first_line, without_panics
from extract.files import digest_json, digest_module, digest_tokenizer, hooks_of, read_file
from extract.records import to_plain
from extract.registry import digest_code, is_code_of_user

if TYPE_CHECKING:
    import pandas as pd


META = torch.device("meta")
LAUNCHED = ("RANK", "LOCAL_RANK", "WORLD_SIZE")
"""Variables that torchrun sets in the environment of every process."""
PARTS = {"attention": ("attn", "attention"), "mlp": ("mlp", "feed_forward", "ffn", "fc1", "fc2", "block_sparse_moe")}
"""Parts of a block, by words in the names of their modules."""
CHUNK = 1 << 24
"""Numbers of a tensor that are widened to float64 at a time."""
INERT = re.compile(
    "_.*|.*_token_id|.*dropout|architectures|auto_map|chunk_size_feed_forward|dtype|id2label|initializer_range|"
    "is_encoder_decoder|label2id|output_(attentions|hidden_states|router_logits)|problem_type|return_dict|"
    "tie_word_embeddings|torch_dtype|transformers_version|use_cache"
)
"""Settings of a configuration that are known to change no latent, or are told elsewhere."""
RARE = ("merge", "quantization", "bidirectional", "config_digest")
"""Recorded only of decoders that have it: the identities of others stay what they were."""
LIBRARIES = ("torch", "transformers", "accelerate", "peft")
"""Packages whose code a decoder is made of, wherever they are installed."""
REMOTE = "transformers_modules."
"""Package of the code that came with a checkpoint."""
COUNTS_BLOCKS = re.compile("layers|blocks|depth")
"""Keys of config.json that say how many blocks there are, also in towers for images or sounds."""
WINDOWS = ("max_position_embeddings", "n_positions", "seq_length", "max_seq_len")
"""Where configurations state their longest row."""
UNBOUNDED = 1 << 20
"""Window of decoders that state none, in tokens."""
TORCH_DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in COMPUTE_DTYPES}
DEFAULT_SPEC = DecoderSpec()
IN_MEMORY = "in-memory"
FILES_WANTED = (
    "Give a causal LM in hub layout (config.json, safetensors, tokenizer.json), a .gguf file, or a known name."
)
UNTESTED = ("mps",)
"""Devices that are refused by name."""


@dataclass(frozen=True)
class DecoderDescription:
    """What a decoder is; stored with every cache."""

    name: str
    """As asked for, a path shortened to its last part."""
    source: str
    """`folder`, `gguf`, `hub`, `known` or `memory`."""
    revision: str
    """Hub commit or wheel version; empty for a local folder."""
    adapter: str
    """As asked for, several with a comma between them, or empty."""
    family: str
    """`model_type` of the configuration (`llama`, `gpt2` ...)."""
    n_layers: int
    """Blocks."""
    width: int
    """Dimension `D` of the hidden states."""
    n_parameters: int
    """Below the language-model head."""
    window: int
    """Longest row in tokens."""
    dtype: str
    """Of the computation."""
    attention: str
    """Attention implementation of transformers."""
    weight_digest: str
    """SHA-256 over parameters and buffers as they are used."""
    tokenizer_digest: str
    """SHA-256 over the tokenizer."""
    merge: tuple[str, ...] = ()
    """Weight and name of every checkpoint of a merge."""
    quantization: dict[str, Any] | None = None
    """As asked for."""
    bidirectional: dict[str, object] | None = None
    """Flags by which the checkpoint attends to both sides; off here."""
    config_digest: str = ""
    """SHA-256 over the settings of its configuration that decide numbers; empty where the revision decides them."""

    def to_dict(self) -> dict[str, Any]:
        """Return the description as plain values; those that most decoders lack only where there is one."""
        return {key: value for key, value in to_plain(self).items() if value or key not in RARE}


@dataclass(frozen=True, eq=False)
class Decoder:
    """A frozen decoder without its language-model head, in eval mode and without gradients."""

    module: PreTrainedModel
    """The decoder; its output is the normed last hidden state."""
    blocks: tuple[nn.Module, ...]
    """Its transformer blocks, bottom up."""
    tokenizer: PreTrainedTokenizerBase
    description: DecoderDescription

    def __repr__(self) -> str:
        about = self.description
        shape = f"{about.family}, {about.n_layers} blocks, width {about.width}"
        return f"<decoder {about.name}: {shape}, {about.dtype} on {self.device}>"

    @property
    def device(self) -> torch.device:
        """Device that inputs go to, that of the embedding; blocks may be on others (`devices`)."""
        return computing_device(self.module)

    @property
    def devices(self) -> tuple[torch.device, ...]:
        """Device that each block computes on, bottom up."""
        return tuple(map(computing_device, self.blocks))

    @property
    def layers(self) -> tuple[str, ...]:
        """Names of all layers, bottom up."""
        return layer_names(len(self.blocks))

    @cached_property
    def text_config(self) -> PreTrainedConfig:
        """The configuration of its blocks, where it is one of several."""
        return self.module.config.get_text_config()

    @cached_property
    def split_length(self) -> int | None:
        """Longest row, in tokens, before rotary frequencies change for the whole batch (longrope); None without.

        Rows on both sides of it must not share a batch: their latents would depend on their neighbours.
        """
        rope = getattr(self.text_config, "rope_parameters", None) or {}
        return rope.get("original_max_position_embeddings") if rope.get("rope_type") == "longrope" else None

    @cached_property
    def longest_dense_row(self) -> int | None:
        """Longest row, in tokens, of which a sparse indexer (DeepSeek V3.2) keeps every key; None without one.

        In longer rows it keeps the keys of the highest scores. Many scores are exactly 0, and which of those it keeps
        depends on the padded length of the batch.
        """
        return getattr(self.text_config, "index_topk", None)

    @cached_property
    def takes_position_ids(self) -> bool:
        """Whether the forward call accepts `position_ids`."""
        return "position_ids" in inspect.signature(self.module.forward).parameters


def wrap_decoder(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    *,
    located: Located | None = None,
    adapter: str | tuple[str, ...] | None = None,
    merge: tuple[MergePart, ...] = (),
    quantization: dict[str, Any] | None = None,
) -> Decoder:
    """Freeze a causal language model of transformers, moved and cast already, and describe it with its tokenizer."""
    located = located or Located(name=IN_MEMORY, source="memory", path="", revision="")
    module = body_of(model)
    module.train(False).requires_grad_(False)
    config = module.config
    text_config, n_layers, width = _sizes(config)
    windows = (getattr(text_config, name, None) for name in WINDOWS)
    blocks = find_blocks(module, n_layers, family=config.model_type)
    if next(module.parameters()).dtype == torch.float64:
        raise DecoderError(
            f"the weights of {located.name!r} are float64; allowed: {', '.join(COMPUTE_DTYPES)}. Convert them, as by "
            "model.float()."
        )
    description = DecoderDescription(
        name=located.name,
        source=located.source,
        revision=located.revision,
        adapter=",".join(map(short_name, list_adapters(adapter))),
        family=str(config.model_type),
        n_layers=len(blocks),
        width=width,
        n_parameters=sum(p.numel() for p in module.parameters()),
        window=next((window for window in windows if isinstance(window, int) and window > 0), UNBOUNDED),
        dtype=str(next(module.parameters()).dtype).removeprefix("torch."),
        attention=str(config._attn_implementation or "own"),  # transformers offers no public name
        weight_digest=digest_module(module),
        tokenizer_digest=digest_tokenizer(tokenizer),
        merge=tuple(part.label for part in merge),
        quantization=quantization,
        bidirectional=bidirectional_flags(config) or None,
        config_digest="" if located.revision else digest_config(text_config),
    )
    return Decoder(module, blocks, tokenizer, description)


def _sizes(config: PreTrainedConfig) -> tuple[PreTrainedConfig, int, int]:
    """Return the configuration of the text decoder, its number of blocks and its width."""
    try:
        text_config = config.get_text_config()
        return text_config, int(text_config.num_hidden_layers), int(text_config.hidden_size)
    except (AttributeError, ValueError, TypeError, NotImplementedError) as error:
        raise DecoderError(
            f"the configuration of the family {config.model_type!r} does not state one number of blocks and one width "
            "(several transformers in one, as over bytes and patches, are not read); allowed: causal language models "
            "with all blocks in one module list."
        ) from error


def find_blocks(module: nn.Module, n_layers: int, *, family: str) -> tuple[nn.Module, ...]:
    """Find the blocks of a decoder, bottom up: its first module list of `n_layers`; DecoderError when there is none."""
    lists = [child for child in module.modules() if isinstance(child, nn.ModuleList) and len(child) == n_layers]
    if not lists:
        raise DecoderError(
            f"the {family!r} decoder has no list of {n_layers} blocks to read from; "
            "allowed: causal language models with all blocks in one module list."
        )
    config = getattr(module, "config", None)
    if config is not None and config.get_text_config() is not config:  # towers beside the text decoder, perhaps as deep
        inner = set(lists[0].modules())
        if any(other not in inner for other in lists):
            raise DecoderError(
                f"the {family!r} decoder has several lists of {n_layers} blocks, and does not say which is that of its "
                "text decoder; allowed: models whose get_decoder() returns it."
            )
    return tuple(lists[0])


def body_of(model: PreTrainedModel) -> PreTrainedModel:
    """Return a causal language model without its head; that of its text decoder where it has several parts."""
    model = getattr(model, "thinker", model)  # as in `_read_config`
    get_decoder = getattr(model, "get_decoder", None)
    body = get_decoder() if callable(get_decoder) else getattr(model, "base_model", model)
    if getattr(body, "lm_head", None) is not None:  # a model of several parts hands out its text model, head and all
        body = getattr(body, "model", body)
    if not hasattr(body, "config"):  # a head that is called `decoder` (ModernBERT)
        body = getattr(model, "base_model", model)
    return body if isinstance(body, PreTrainedModel) else model


def load_decoder(
    spec: DecoderSource | nn.Module | Decoder = DEFAULT_SPEC,
    tokenizer: PreTrainedTokenizerBase | None = None,
    *,
    name: str = IN_MEMORY,
    report: Callable[[str], None] = lambda _: None,
) -> Decoder:
    """Load a decoder onto its device, frozen and described, or take one that is in memory already.

    Args:
        spec: What to load: a name or a path, the settings of a `DecoderSpec` as a mapping, or that record. Or a causal
            language model of transformers, which stays where it is and in its dtype; its weights are frozen. A decoder
            that is loaded already is returned.
        tokenizer: The fast tokenizer of a model in memory.
        name: What to call a model in memory, in files and reports.
        report: Receives one-line remarks (where the decoder comes from).

    Raises:
        DecoderError: It cannot be found, read or wired; the sentence says what was tried.

    Example:
        >>> decoder = load_decoder(model, tokenizer, name="mine")  # doctest: +SKIP
    """
    if isinstance(spec, Decoder):
        return spec
    return load_whole(spec, tokenizer, name=name, report=report)[0]


def load_whole(
    spec: DecoderSource | nn.Module,
    tokenizer: PreTrainedTokenizerBase | None,
    *,
    name: str,
    report: Callable[[str], None],
    with_head: bool = False,
) -> tuple[Decoder, PreTrainedModel]:
    """Load a decoder as `load_decoder`, and return the model that it is the body of as well.

    `with_head` refuses a checkpoint that lacks weights of the language-model head too.
    """
    if isinstance(spec, nn.Module):
        decoder, model = _take_model(spec, tokenizer, name)
        return _remarked(decoder, report), model
    if tokenizer is not None:
        raise DecoderError(f"there is a tokenizer beside {spec!r}; it is for a model in memory, as the first argument.")
    spec = as_decoder_spec(spec)
    device = main_device(spec, choose_device(spec.device))
    if spec.merge:
        model, tokenizer, located = _merge(spec, device, report, with_head=with_head)
    else:
        located = locate_decoder(spec.name, revision=spec.revision, report=report)
        with _loading(located, spec):
            tokenizer = _read_tokenizer(located, spec)
            model = _read_adapted(located, spec, device, with_head=with_head)
    with _loading(located, spec):
        if spec.dtype == "auto" and device.type == "cuda" and torch.cuda.is_bf16_supported():
            for parameter in model.parameters():
                if parameter.dtype == torch.float16:  # massive activations overflow float16
                    parameter.data = parameter.data.to(torch.bfloat16)
        if spec.device_map is not None and spec.is_made:
            dispatch(model, spec)
        elif not spec.is_placed:
            model = model.to(device)  # type: ignore[arg-type]
    decoder = wrap_decoder(
        model, tokenizer, located=located, adapter=spec.adapter, merge=spec.merge, quantization=spec.quantization
    )
    if cost := describe_offload(decoder.blocks):
        report(cost)
    return _remarked(decoder, report), model


def load_tokenizer(
    spec: DecoderSource = DEFAULT_SPEC, *, report: Callable[[str], None] = lambda _: None
) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a decoder and not the decoder, as `load_decoder`."""
    spec = as_decoder_spec(spec)
    if spec.merge:
        spec = replace(spec, name=spec.merge[0].name, revision=spec.merge[0].revision, merge=())
    located = locate_decoder(spec.name, revision=spec.revision, report=report)
    with _loading(located, spec):
        return _read_tokenizer(located, spec)


def read_n_blocks(spec: DecoderSpec, *, report: Callable[[str], None] = lambda _: None) -> int:
    """Return the number of blocks of a decoder from its configuration alone; of a merge, of its first part."""
    name, revision = (spec.merge[0].name, spec.merge[0].revision) if spec.merge else (spec.name, spec.revision)
    located = locate_decoder(name, revision=revision, report=report)
    with _loading(located, spec):
        return _sizes(_read_config(located, spec))[1]


def _remarked(decoder: Decoder, report: Callable[[str], None]) -> Decoder:
    if flags := decoder.description.bidirectional:
        report(
            f"{decoder.description.name} was trained to attend to both sides "
            f"({', '.join(f'{name}: {value}' for name, value in flags.items())}): the plan 'bidirectional' is the "
            "decoder as it was trained, and 'causal', the default, is not"
        )
    return decoder


def _take_model(
    model: nn.Module, tokenizer: PreTrainedTokenizerBase | None, name: str
) -> tuple[Decoder, PreTrainedModel]:
    """Wrap a model in memory."""
    if not isinstance(model, PreTrainedModel):
        raise DecoderError(
            f"the model is a {type(model).__name__}; allowed: a causal language model of transformers, as "
            "AutoModelForCausalLM.from_pretrained gives."
        )
    if tokenizer is None or not tokenizer.is_fast:
        problem = (
            "there is no tokenizer" if tokenizer is None else f"{type(tokenizer).__name__} is not a fast tokenizer"
        )
        raise DecoderError(f"{problem}; give that of the model, as AutoTokenizer.from_pretrained gives.")
    _require_supported(computing_device(model))
    return wrap_decoder(model, tokenizer, located=Located(name=name, source="memory", path="", revision="")), model


def choose_device(name: str) -> torch.device:
    """Resolve a device name; `auto` is the accelerator torch reports where it is supported, else the CPU."""
    if name == "auto":
        accelerator = torch.accelerator.current_accelerator(check_available=True)
        return torch.device("cpu") if accelerator is None or accelerator.type in UNTESTED else accelerator
    try:
        device = _require_supported(torch.device(name))
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise DecoderError(
            f"device {name!r} cannot be used here ({first_line(error)}); allowed: auto, cpu"
            f"{', cuda' if torch.cuda.is_available() else ''}."
        ) from error
    return device


def _require_supported(device: torch.device) -> torch.device:
    if device.type in UNTESTED:
        raise DecoderError(
            f"device {str(device)!r} is not supported: nothing here was tested on it, and it has no float64, which the "
            "probes use; allowed: auto, cpu, cuda."
        )
    return device


def main_device(spec: DecoderSpec, chosen: torch.device) -> torch.device:
    """Return the device that decides the compute dtype: the CPU where a map names nothing but `cpu` and `disk`."""
    devices = set(spec.device_map.values()) if isinstance(spec.device_map, dict) else {"auto"}
    return torch.device("cpu") if devices <= {"cpu", "disk"} else chosen


@contextmanager
def _loading(located: Located, spec: DecoderSpec) -> Iterator[None]:
    """Load without progress bars, and turn any error into a sentence."""
    try:
        with quiet_loading(), without_panics():
            yield
    except DecoderError:
        raise
    except Exception as error:  # transformers, accelerate, torch and pickle raise a dozen types on foreign files
        raise DecoderError(
            f"decoder {spec.name!r} cannot be loaded from {located.source} {located.path}: {first_line(error)}. "
            + ("Check decoder.device_map, or set it to auto." if isinstance(spec.device_map, dict) else FILES_WANTED)
        ) from error


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


def _read_config(located: Located, spec: DecoderSpec) -> PreTrainedConfig:
    config: PreTrainedConfig = AutoConfig.from_pretrained(located.path, **_options(located, spec))
    for key, value in _numbers_of(config.to_dict()):
        if COUNTS_BLOCKS.search(key) and value > MOST_BLOCKS:
            raise DecoderError(f"config.json of {spec.name!r} has {key} {value:,}; allowed: up to {MOST_BLOCKS:,}.")
    for part in (config, *(getattr(config, name, None) for name in config.sub_configs)):
        if "/" in str(getattr(part, "_attn_implementation", "")):  # which transformers would fetch, and run
            raise DecoderError(f"config.json of {spec.name!r} names code of the hub for attention; take it out.")
    if getattr(config, "transformers_weights", None):
        raise DecoderError(f"config.json of {spec.name!r} names its weights as transformers_weights; take it out.")
    return getattr(config, "thinker_config", config)  # of an omni model, the part that reads and writes text


def _numbers_of(value: object, key: str = "") -> Iterator[tuple[str, int]]:
    """Give the whole numbers inside plain values, each with its key."""
    if isinstance(value, Mapping):
        for name, part in value.items():
            yield from _numbers_of(part, str(name))
    elif isinstance(value, int):
        yield key, value


def check_folder(folder: Path) -> None:
    """Refuse a decoder's folder that another library is about to load, as loading it here would (`DecoderError`)."""
    located, spec = Located(folder.name, "folder", str(folder), ""), DecoderSpec(str(folder))
    with _loading(located, spec):
        _require_own_files(located)
        _read_config(located, spec)


def _options(located: Located, spec: DecoderSpec) -> dict[str, Any]:
    revision = {"revision": located.revision} if located.source == "hub" and located.revision else {}
    return {"trust_remote_code": spec.trust_remote_code, **revision}


def _load_dtype(spec: DecoderSpec, device: torch.device) -> torch.dtype | Literal["auto"]:
    # The dtype is given to the loader, never to module.to(): that would round the rotary frequencies as well.
    if spec.dtype != "auto":
        return TORCH_DTYPES[spec.dtype]
    return "auto" if device.type == "cuda" else torch.float32


def _plain_dtype(spec: DecoderSpec, device: torch.device, config: PreTrainedConfig) -> torch.dtype:
    dtype = _load_dtype(spec, device)
    stated = config.dtype if isinstance(config.dtype, torch.dtype) else torch.float32
    return stated if dtype == "auto" else dtype


def _read_adapted(
    located: Located, spec: DecoderSpec, device: torch.device, *, with_head: bool = False
) -> PreTrainedModel:
    is_random = located.random_seed is not None
    model = _draw_model(located, spec, device) if is_random else _read(located, spec, device, with_head=with_head)
    for adapter in spec.adapters:
        model = merge_adapter(model, adapter, body=_body_path(model))
    return model


def _read(located: Located, spec: DecoderSpec, device: torch.device, *, with_head: bool = False) -> PreTrainedModel:
    _require_own_files(located)
    dtype, options, config = _load_dtype(spec, device), _options(located, spec), _read_config(located, spec)
    placing = {} if spec.is_made else placing_options(spec, config, dtype)
    if config.model_type.endswith("_thinker"):
        options["config"] = config
    model: PreTrainedModel
    model, info = _auto_class(config).from_pretrained(
        located.path, dtype=dtype, output_loading_info=True, **options, **placing
    )
    _require_whole(model, info, spec, with_head=with_head)
    return model


def _require_own_files(located: Located) -> None:
    """Refuse a checkpoint whose weights are elsewhere: it is no adapter, and its index names files beside it alone."""
    folder = Path(located.path)
    if find_adapter_config_file(located.path, revision=located.revision or None):
        raise DecoderError(
            f"{located.name!r} holds an adapter, whose decoder is another; give that as decoder.name, and this as "
            "decoder.adapter."
        )
    for path in folder.glob("*.index.json"):
        for name in {*json.loads(read_file(path)).get("weight_map", {}).values()}:
            part = folder / str(name)
            if part.name != name or (part.exists() and not part.is_file()):  # one that is absent may not be needed
                raise DecoderError(f"{path.name} of {located.name!r} names {name!r}, which is no file beside it.")


def _auto_class(config: PreTrainedConfig) -> Any:
    """Choose the class that loads a checkpoint: one of images or sounds is loaded whole, for its text decoder."""
    kind = str(config.model_type)
    if kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        return AutoModelForCausalLM
    if kind in MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES:
        return AutoModelForMultimodalLM
    # The text decoder of such a checkpoint, saved alone as an export does, has no head and no class with one.
    is_alone = kind.endswith("_text") and kind in MODEL_MAPPING_NAMES and not config.is_encoder_decoder
    return AutoModel if is_alone else AutoModelForCausalLM


def _require_whole(
    model: PreTrainedModel, info: Mapping[str, Collection[object]], spec: DecoderSpec, *, with_head: bool
) -> None:
    """Refuse a checkpoint that leaves weights of the decoder random; those of its head only where it is used."""
    path = "" if with_head else _body_path(model)
    prefix = f"{path}." if path else ""
    missing = sorted(str(key) for key in info["missing_keys"] if str(key).startswith(prefix))
    unknown = sorted(str(key) for key in info["unexpected_keys"] if prefix and str(key).startswith(prefix))
    other = sorted(str(key[0] if isinstance(key, tuple) else key) for key in info["mismatched_keys"])
    for keys, verb in (
        (missing, "lacks"),
        (other, "has another shape for"),
        (unknown, "has, and the decoder does not,"),
    ):
        if keys:
            raise DecoderError(
                f"decoder {spec.name!r} would be loaded in part: its checkpoint {verb} {len(keys)} weights, such as "
                f"{keys[0]!r}, so layers would hold random numbers. Give the checkpoint that belongs to config.json."
            )


def _body_path(model: PreTrainedModel) -> str:
    """Return the path of the body inside a model; empty where it is the model itself."""
    body = body_of(model)
    paths: dict[nn.Module, str] = {module: name for name, module in model.named_modules()}
    return paths.get(body, "")


def _draw_model(located: Located, spec: DecoderSpec, device: torch.device) -> PreTrainedModel:
    """Make a decoder of the same configuration with the random weights of a seed."""
    if spec.adapters:
        raise DecoderError(
            f"decoder {spec.name!r} has random weights, which adapter {spec.adapters[0]!r} is not made for."
        )
    config = _read_config(located, spec)
    make = _auto_class(config).from_config
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(located.random_seed or 0)
        model: PreTrainedModel = make(config, dtype=torch.float32, trust_remote_code=spec.trust_remote_code)
    _cast(model, _plain_dtype(spec, device, config))
    return model


def _cast(model: nn.Module, dtype: torch.dtype) -> None:
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)


def _merge(
    spec: DecoderSpec, device: torch.device, report: Callable[[str], None], *, with_head: bool = False
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase, Located]:
    """Merge checkpoints in memory: the first's parameters become the sum; the others are loaded one at a time.

    Outside its body (towers for images or sounds), the first keeps what not all of the others have.
    """
    merged: PreTrainedModel | None = None
    is_empty = True  # nothing with a weight was added yet
    for part in spec.merge:
        located = locate_decoder(part.name, revision=part.revision, report=report)
        single = DecoderSpec(
            name=part.name,
            revision=part.revision,
            adapter=part.adapter,
            dtype="float32",
            device="cpu",
            trust_remote_code=spec.trust_remote_code,
        )
        with _loading(located, single):
            if merged is None:
                first, tokenizer = located.name, _read_tokenizer(located, single)
                dtype = _plain_dtype(spec, device, _read_config(located, single))
            model = _read_adapted(located, single, torch.device("cpu"), with_head=with_head)
        added = _parameters_by_body(model)
        if merged is None:
            merged, sums = model, _parameters_by_body(model, once=True)
            in_body = dict(body_of(model).named_parameters())
            outside = {key: total.data for key, total in sums.items() if key not in in_body}
        else:
            _require_alike(merged, model, (first, located.name), report)
        for key in [key for key in outside if key not in added or added[key].shape != outside[key].shape]:
            sums.pop(key).data = outside.pop(key)  # as it was
        for key, total in sums.items():
            if is_empty:
                total.data = added[key].data.float() * part.weight
            elif part.weight:  # a part that weighs nothing must not turn -0.0 into 0.0
                total.data.add_(added[key].data.float(), alpha=part.weight)
        is_empty = is_empty and part.weight == 0
        del model, added  # no more than two are in memory
    assert merged is not None, "a merge has parts"
    _cast(merged, dtype)
    return merged, tokenizer, Located(spec.name, "merge", spec.merge[0].name, "")


def _parameters_by_body(model: PreTrainedModel, *, once: bool = False) -> dict[str, nn.Parameter]:
    """Return the parameters of a model by their names in its body, or else in the model; tied ones by each name."""
    prefix = f"{_body_path(model)}."
    return {key.removeprefix(prefix): value for key, value in model.named_parameters(remove_duplicate=once)}


def _require_alike(
    first: PreTrainedModel, other: PreTrainedModel, names: tuple[str, str], report: Callable[[str], None]
) -> None:
    """Refuse to merge checkpoints whose bodies have parameters of other names or shapes, or other buffers."""
    bodies = body_of(first), body_of(other)
    here, there = ({key: p.shape for key, p in body.named_parameters()} for body in bodies)
    unequal = sorted(key for key in here.keys() | there.keys() if here.get(key) != there.get(key))
    if unequal:
        key = unequal[0]
        raise DecoderError(
            f"{names[0]!r} and {names[1]!r} cannot be merged: {len(unequal)} of their parameters have other names or "
            f"shapes, such as {key!r}, which is {_shape(here.get(key))} in the first and {_shape(there.get(key))} in "
            "the other; allowed: checkpoints of one architecture and size."
        )
    buffers = dict(bodies[1].named_buffers())
    for key, buffer in bodies[0].named_buffers():
        if key not in buffers or not torch.equal(buffer.cpu(), buffers[key].cpu()):
            if first.config.model_type != other.config.model_type:  # as BidirLM merges Qwen3 with Qwen3-VL
                report(
                    f"{names[0]} and {names[1]} differ in {key!r} (such as by another rope_theta); the merge has that "
                    f"of {names[0]}"
                )
                return
            raise DecoderError(
                f"{names[0]!r} and {names[1]!r} cannot be merged: their {key!r} differ, so they were trained with "
                "other settings (such as rope_theta); allowed: checkpoints with one configuration."
            )


def _shape(shape: torch.Size | None) -> str:
    return "absent" if shape is None else "x".join(map(str, shape))


def placing_options(spec: DecoderSpec, config: PreTrainedConfig, dtype: torch.dtype | str) -> dict[str, Any]:
    """Build the arguments by which `from_pretrained` spreads, splits or quantises a decoder (`DecoderError`)."""
    options: dict[str, Any] = {}
    if spec.device_map is not None:
        if find_spec("accelerate") is None:
            raise DecoderError(
                "decoder.device_map needs the extra package accelerate; install it with: pip install accelerate."
            )
        memory = {_numbered(key): most for key, most in (spec.max_memory or {}).items()} or None
        devices = spec.device_map
        if isinstance(devices, dict):
            devices = {module: _numbered(device) for module, device in devices.items()}
        options |= {"device_map": devices, "max_memory": memory, "offload_folder": spec.offload_folder}
    if spec.tp_plan is not None:
        options["distributed_config"] = _tensor_parallel(config)
    if spec.quantization is not None:
        options["quantization_config"] = _quantization(spec.quantization, dtype)
        options.setdefault("device_map", {"": torch.accelerator.current_device_index()})
    return options


def _numbered(device: str | int) -> str | int:
    """Read the number of a GPU, as accelerate takes it; YAML gives numbers already."""
    return int(device) if str(device).isdecimal() else device


def _tensor_parallel(config: PreTrainedConfig) -> object:
    text_config = config.get_text_config()
    if not text_config.base_model_tp_plan:
        raise DecoderError(
            f"the family {text_config.model_type!r} has no tensor-parallel plan in this release of transformers; leave "
            "decoder.tp_plan out, and spread its blocks with decoder.device_map: auto."
        )
    if any(name not in os.environ for name in LAUNCHED):
        raise DecoderError(
            "decoder.tp_plan splits every block over processes, and this is one process; start the command with "
            "torchrun --nproc-per-node N."
        )
    from transformers.distributed.configuration_utils import DistributedConfig

    return DistributedConfig(tp_plan="auto")


def _quantization(settings: Mapping[str, Any], dtype: torch.dtype | str) -> object:
    if find_spec("bitsandbytes") is None:
        raise DecoderError(
            "decoder.quantization needs the extra package bitsandbytes; install it: pip install bitsandbytes."
        )
    if not torch.cuda.is_available():
        raise DecoderError("decoder.quantization needs a GPU, and torch finds none; leave it out.")
    from transformers import BitsAndBytesConfig

    options = {key: value for key, value in settings.items() if key != "bits"}
    arguments = {f"load_in_{settings['bits']}bit": True, **options}
    allowed = inspect.signature(BitsAndBytesConfig).parameters
    if unknown := sorted(arguments.keys() - allowed.keys()):
        raise DecoderError(
            f"decoder.quantization has {unknown[0]!r}; allowed: bits, and the arguments of BitsAndBytesConfig "
            f"({', '.join(sorted(allowed))})."
        )
    compute = {"bnb_4bit_compute_dtype": dtype} if isinstance(dtype, torch.dtype) else {}
    return BitsAndBytesConfig(**{**compute, **arguments})  # type: ignore[no-untyped-call]


def dispatch(model: PreTrainedModel, spec: DecoderSpec) -> None:
    """Spread a decoder that is whole in main memory: one that was merged, adapted or drawn at random."""
    from accelerate import dispatch_model, infer_auto_device_map
    from accelerate.utils import get_balanced_memory

    options = placing_options(spec, model.config, model.dtype)
    devices = options["device_map"]
    whole = {"no_split_module_classes": list(model._no_split_modules or ())}
    if isinstance(devices, str):
        memory = get_balanced_memory(model, options["max_memory"], **whole)
        devices = infer_auto_device_map(model, memory, **whole)
    if "disk" in devices.values() and spec.offload_folder is None:
        raise DecoderError(
            f"decoder {spec.name!r} is made in memory, and decoder.device_map puts parts of it on disk; set "
            "decoder.offload_folder to a folder for them."
        )
    folder = None
    if spec.offload_folder is not None:  # a new folder: accelerate reads everything in one that was used
        Path(spec.offload_folder).mkdir(parents=True, exist_ok=True)
        folder = tempfile.mkdtemp(dir=spec.offload_folder)
        embedding = model.get_input_embeddings()  # a part that stays when the language-model head goes
        weakref.finalize(embedding, shutil.rmtree, folder, ignore_errors=True)
    dispatch_model(model, devices, offload_dir=folder, skip_keys=model._skip_keys_device_placement)


def computing_device(module: nn.Module) -> torch.device:
    """Return the device a module computes on: where accelerate brings its first inputs, else that of its weights."""
    for part in module.modules():
        for hook in hooks_of(part):
            if hook.execution_device is not None:
                return torch.device(hook.execution_device)
        for tensor in part.parameters(recurse=False):
            return tensor.device
    return torch.device("cpu")


def is_offloaded(module: nn.Module) -> bool:
    """Whether weights of a module wait in main memory or on disk and are brought in while it runs."""
    return any(parameter.device == META for parameter in module.parameters())


def is_split(module: nn.Module) -> bool:
    """Whether weights of a module are split over processes (tensor parallel), so that all of them compute together."""
    return any(type(parameter).__name__ == "DTensor" for parameter in module.parameters())


def count_places(blocks: tuple[nn.Module, ...]) -> dict[str, int]:
    """Count the blocks by the device that they compute on, and those whose weights are offloaded."""
    return dict(Counter(f"{computing_device(block)}{', offloaded' * is_offloaded(block)}" for block in blocks))


def describe_offload(blocks: tuple[nn.Module, ...]) -> str:
    """Describe the cost of offloading in one line; empty where no block is offloaded."""
    waiting = [block for block in blocks if is_offloaded(block)]
    if not waiting:
        return ""
    size = sum(p.numel() * p.element_size() for block in waiting for p in block.parameters() if p.device == META)
    return (
        f"{len(waiting)} of {len(blocks)} blocks are on cpu/disk; expect {size / 1e9:.2g} GB of weights to be brought "
        "in for every batch, however small it is (docs/scaling.md has measured ratios)."
    )


def compare_weights(one: Decoder, other: Decoder) -> "pd.DataFrame":
    """Compare two checkpoints of one architecture block by block.

    The weights of a part of a block are read as one long vector, matrices and their biases, as BidirLM's F.2 does.

    Returns:
        A row per block and part (`attention`, `mlp` and both together, `block`), for `block` also `embedding`: `layer`,
        `part`, `cosine` of the two vectors, `distance` (the length of their difference over that of the first), and
        `n_parameters`.

    Raises:
        DecoderError: They have other blocks, or weights of other shapes.

    Example:
        >>> compare_weights(load_decoder("A"), load_decoder("B"))  # doctest: +SKIP
    """
    import pandas as pd

    sums: dict[tuple[str, str], Tensor] = {}
    for layer, part, a, b in list(_pairs(one, other)):  # all are compared in shape first
        products = _products(a, b)
        for key in dict.fromkeys([(layer, part), (layer, "block")]):
            sums[key] = sums.get(key, torch.zeros(4, dtype=torch.float64)) + products
    rows = []
    for (layer, part), (dot, a, b, n) in ((key, value.tolist()) for key, value in sums.items()):
        distance = max(a + b - 2 * dot, 0.0) ** 0.5
        cosine = dot / (a * b) ** 0.5 if a and b else float("nan")
        relative = distance / a**0.5 if a else float("nan")
        rows.append((layer, part, cosine, relative, int(n)))
    return pd.DataFrame(rows, columns=["layer", "part", "cosine", "distance", "n_parameters"])


def _pairs(one: Decoder, other: Decoder) -> Iterator[tuple[str, str, Tensor, Tensor]]:
    """Yield every two tensors to compare, with their layer and part."""
    if len(one.blocks) != len(other.blocks):
        raise DecoderError(
            f"{one.description.name!r} has {len(one.blocks)} blocks and {other.description.name!r} "
            f"{len(other.blocks)}; allowed: checkpoints of one architecture and size."
        )
    first, second = _compared_weights(one), _compared_weights(other)
    for layer, part, key in dict.fromkeys([*first, *second]):
        a, b = first.get((layer, part, key)), second.get((layer, part, key))
        if a is None or b is None or a.shape != b.shape:
            shapes = [_shape(None if weight is None else weight.shape) for weight in (a, b)]
            raise DecoderError(
                f"{key!r} is {shapes[0]} in one checkpoint and {shapes[1]} in the other; allowed: checkpoints of one "
                "architecture and size."
            )
        yield layer, part, a, b


def _compared_weights(decoder: Decoder) -> dict[tuple[str, str, str], Tensor]:
    """Return weights by layer, part and name; norms are left out, as in the paper."""
    embedding = decoder.module.get_input_embeddings().get_parameter("weight")
    weights: dict[tuple[str, str, str], Tensor] = {("embedding", "block", "embedding"): embedding}
    for layer, block in zip(decoder.layers[1:-1], decoder.blocks, strict=True):
        for key, tensor in block.named_parameters():
            part = next((part for part, words in PARTS.items() if any(word in key for word in words)), "")
            if part and "norm" not in key:
                weights[layer, part, f"{layer}.{key}"] = tensor
    return weights


def _products(a: Tensor, b: Tensor) -> Tensor:
    """Return a.b, a.a, b.b and the number of values, in float64."""
    total = torch.zeros(4, dtype=torch.float64)
    one, other = a.detach().flatten(), b.detach().flatten()
    for start in range(0, len(one), CHUNK):
        u, v = (x[start : start + CHUNK].cpu().double() for x in (one, other))
        total += torch.stack([u @ v, u @ u, v @ v, torch.tensor(float(len(u)), dtype=torch.float64)])
    return total


# --- Checkpoints that attend to both sides by a flag: off while icecore runs them, since the plan decides ---

READ_BY_ALL, READ_BY_SOME = "is_causal", "use_bidirectional_attention"
BIDIRECTIONAL = {READ_BY_ALL: (False,), READ_BY_SOME: (True, "all")}  # "vision" is about images alone
CAUSAL = {READ_BY_ALL: True, READ_BY_SOME: None}


def digest_config(config: PreTrainedConfig) -> str:
    """Digest the settings of a text decoder that may decide its numbers beside its weights, as a window does."""
    try:
        values = json.loads(config.to_json_string(use_diff=False))
        return digest_json({key: value for key, value in values.items() if not INERT.fullmatch(key)})
    except (TypeError, ValueError) as error:
        raise DecoderError(
            f"the configuration of the family {config.model_type!r} cannot be written as JSON ({first_line(error)}), "
            "so no cache could tell what it is of; set its values to numbers, strings and lists of them."
        ) from error


_KNOWN_CODE: ContextVar[dict[int, str]] = ContextVar("known code", default={})  # noqa: B039 - never changed in place


@contextmanager
def code_as_now(decoder: Decoder) -> Iterator[None]:
    """Let the code of a decoder count as it is now until the `with` block ends, whatever its hooks note meanwhile."""
    known = _KNOWN_CODE.get()
    token = _KNOWN_CODE.set({id(decoder): digest_custom_code(decoder), **known})
    try:
        yield
    finally:
        _KNOWN_CODE.reset(token)


def digest_custom_code(decoder: Decoder) -> str:
    """Digest what a decoder runs that no installed package has, with the values it holds; empty for most.

    That is classes of the user or of a folder with code of its own, hooks, and `forward` methods that were replaced. A
    hook that notes what it sees is another one afterwards. The code of a checkpoint with a revision is known by that.
    """
    if id(decoder) in _KNOWN_CODE.get():
        return _KNOWN_CODE.get()[id(decoder)]
    custom: list[tuple[str, object]] = []
    for name, part in decoder.module.named_modules():
        hooks = [*part._forward_pre_hooks.values(), *part._forward_hooks.values()]
        for thing in (type(part), vars(part).get("forward", type(part).forward), *hooks):
            module = str(getattr(thing, "__module__", ""))
            is_known = module.startswith(REMOTE) and decoder.description.revision
            if is_code_of_user(thing) and module.partition(".")[0] not in LIBRARIES and not is_known:
                custom.append((name, thing))
    try:
        return digest_code(custom) if custom else ""
    except Exception as error:  # of any object that the code holds
        raise DecoderError(
            f"the code that {decoder.description.name!r} runs beside installed packages cannot be digested "
            f"({first_line(error)}), so no cache could tell what it is of; take out your hooks and classes, or what "
            "they hold."
        ) from error


def bidirectional_flags(config: PreTrainedConfig) -> dict[str, object]:
    """Return the flags by which a checkpoint attends to both sides, with their values; empty for most.

    Example:
        >>> from transformers import Gemma3TextConfig
        >>> bidirectional_flags(Gemma3TextConfig(use_bidirectional_attention=True))
        {'use_bidirectional_attention': True}
    """
    return {
        name: getattr(owner, name)
        for owner in (config, config.get_text_config())
        for name, values in BIDIRECTIONAL.items()
        # A family that reads the second flag declares it; elsewhere it has no effect.
        if (name == READ_BY_ALL or hasattr(type(owner), name)) and getattr(owner, name, None) in values
    }


@contextmanager
def flags_off(module: PreTrainedModel, blocks: Sequence[nn.Module], flags: Mapping[str, object]) -> Iterator[None]:
    """Switch such flags of a decoder off until the `with` block ends; transformers then runs it as a causal one."""
    with ExitStack() as stack:
        for owner in (module.config, module.config.get_text_config()):
            stack.enter_context(changed(owner, **{name: CAUSAL[name] for name in flags if hasattr(owner, name)}))
        if READ_BY_SOME in flags:  # attention modules read it when they were made
            for part in (part for block in blocks for part in block.modules()):
                if vars(part).get("is_causal") is False:
                    stack.enter_context(changed(part, is_causal=True))
        yield


@contextmanager
def changed(owner: object, **values: object) -> Iterator[None]:
    """Change attributes of an object until the `with` block ends."""
    before = {name: getattr(owner, name) for name in values}
    try:
        for name, value in values.items():
            setattr(owner, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(owner, name, value)
