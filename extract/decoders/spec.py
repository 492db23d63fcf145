"""Settings of a decoder. Reading a config loads no torch."""

import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from extract.errors import DecoderError, unknown_name

ComputeDtype = Literal["auto", "float32", "bfloat16", "float16"]
COMPUTE_DTYPES = ("float32", "bfloat16", "float16")


DEVICE_MAPS = ("auto", "balanced")
PLACEMENT = ("device_map", "max_memory", "offload_folder", "tp_plan")
"""Settings that say where a decoder is held, and not what it is."""
LATER = ("merge", *PLACEMENT, "quantization")
"""Settings that are recorded only where they are given: older records lack them."""
WEIGHT_TOLERANCE = 1e-6
"""Of the sum of the weights of a merge."""


@dataclass(frozen=True)
class MergePart:
    """One checkpoint of a merge."""

    name: str
    """As `decoder.name`."""
    weight: float
    """What its parameters are multiplied with; the weights of a merge sum to 1."""
    revision: str | None = None
    """As `decoder.revision`."""
    adapter: str | None = None
    """As `decoder.adapter`, merged into this checkpoint first."""

    @property
    def label(self) -> str:
        """The weight and the name, a path shortened to its last part, and of an adapter as well."""
        parts = [Path(each).name if Path(each).exists() else each for each in (self.name, self.adapter) if each]
        return f"{self.weight:g}*{'+'.join(parts)}"


@dataclass(frozen=True)
class DecoderSpec:
    """Which decoder, and its dtype and device."""

    name: str = "smollm2-135m-instruct"
    """A known name (`icecore list decoders`), a hub id, a local folder, or a .gguf file; with `@random-SEED` behind it,
    a decoder of the same shape with random weights, as a control."""
    revision: str | None = None
    """Hub revision: branch, tag or commit; the default branch when absent. The commit is recorded."""
    adapter: str | None = None
    """PEFT/LoRA adapter (hub id or folder), merged into the frozen weights in memory."""
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
        """Refuse values outside the table, and name a merge after its parts."""
        parts = self.merge
        if parts:
            if self.adapter or self.revision:
                raise DecoderError(
                    "decoder.merge is given beside decoder.adapter or decoder.revision; give them to the parts: "
                    "merge: [{name: A, weight: 0.5, adapter: C}, ...]."
                )
            total = sum(part.weight for part in parts)
            if not abs(total - 1) <= WEIGHT_TOLERANCE:
                raise DecoderError(
                    f"the weights of decoder.merge are {[part.weight for part in parts]}, in all {total:g}; allowed: "
                    "weights that sum to 1."
                )
            object.__setattr__(self, "name", merged_name(parts))
        if self.dtype not in ("auto", *COMPUTE_DTYPES):
            raise unknown_name("compute dtype", self.dtype, ["auto", *COMPUTE_DTYPES])
        self._check_placement()

    @property
    def is_made(self) -> bool:
        """Whether the weights are made in memory from those of a checkpoint, or drawn."""
        return bool(self.merge or self.adapter) or split_random(self.name)[1] is not None

    @property
    def is_placed(self) -> bool:
        """Whether the settings say where parts of the decoder go, and not one device for all."""
        return any(value is not None for value in (self.device_map, self.tp_plan, self.quantization))

    def _given(self, *names: str) -> str:
        """Name the first of some settings that is given; empty where none is."""
        return next((f"decoder.{name}" for name in names if getattr(self, name) is not None), "")

    def _check_placement(self) -> None:
        if isinstance(self.device_map, str) and self.device_map not in DEVICE_MAPS:
            raise unknown_name("device map", self.device_map, [*DEVICE_MAPS, "{MODULE: DEVICE, ...}"])
        if self.device != "auto" and self.is_placed:
            raise DecoderError(
                f"{self._given('device_map', 'tp_plan', 'quantization')} is given beside decoder.device "
                f"{self.device!r}, and chooses devices itself; leave decoder.device out."
            )
        if self.is_made and (given := self._given("tp_plan", "quantization")):
            raise DecoderError(
                f"{given} is given for {self.name!r}, whose weights are made in memory (merge, adapter, @random-SEED); "
                "allowed: a checkpoint that is read as it is."
            )
        if self.tp_plan and (given := self._given("device_map", "quantization")):
            raise DecoderError(f"decoder.tp_plan is given beside {given}; allowed: one of them.")
        if self.device_map is None and (given := self._given("max_memory", "offload_folder")):
            raise DecoderError(f"{given} is given without decoder.device_map; set that to auto, or to a map.")
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


def plain_decoder(spec: DecoderSpec) -> dict[str, Any]:
    """Return the settings as plain values; those that older records lack only where they are given."""
    values = {key: value for key, value in asdict(spec).items() if key not in LATER or value}
    return {**values, "merge": list(values["merge"])} if spec.merge else values


def read_plain_decoder(values: dict[str, Any]) -> DecoderSpec:
    """Read settings back from plain values; an unknown key is a `TypeError`, a part that is none a `DecoderError`."""
    return DecoderSpec(**{**values, "merge": tuple(_read_part(each) for each in values.get("merge", ()))})


def read_recorded_decoder(values: dict[str, Any]) -> DecoderSpec:
    """Read the settings of a run back; raises as `read_plain_decoder`.

    Where that run held the decoder is passed over, as it may have been another machine, and a stranger must not choose
    a folder that is written to: one that was spread is spread by accelerate, as this machine allows.
    """
    kept = {key: value for key, value in values.items() if key not in PLACEMENT}
    is_spread = bool(values.get("device_map") or values.get("tp_plan"))
    return read_plain_decoder({**kept, "device_map": "auto"} if is_spread else kept)


def _read_part(values: Any) -> MergePart:
    try:
        return MergePart(**{**values, "name": str(values["name"]), "weight": float(values["weight"])})
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
    found = re.fullmatch(r"(.+)@random-(\d{1,9})", name)
    return (found[1], int(found[2])) if found else (name, None)
