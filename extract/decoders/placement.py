"""Decoders larger than one device: where blocks compute, where their weights wait, and what loads them that way.

accelerate spreads a decoder: hooks bring the inputs of each block to its device, and offloaded weights too, for as long
as the block runs. Meanwhile these are on the device `meta`, without values. transformers splits one block over several
processes (tensor parallel), and bitsandbytes holds weights in 4 or 8 bits.
"""

import inspect
import os
import shutil
import tempfile
import weakref
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn

from extract.decoders.spec import DecoderSpec
from extract.digest import hooks_of
from extract.errors import DecoderError

META = torch.device("meta")
LAUNCHED = ("RANK", "LOCAL_RANK", "WORLD_SIZE")
"""What torchrun sets in the environment of every process."""


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
    places = [f"{computing_device(block)}{', offloaded' if is_offloaded(block) else ''}" for block in blocks]
    return {place: places.count(place) for place in dict.fromkeys(places)}


def describe_offload(blocks: tuple[nn.Module, ...]) -> str:
    """Say what offloading costs, in one line; empty where no block is offloaded."""
    waiting = [block for block in blocks if is_offloaded(block)]
    if not waiting:
        return ""
    size = sum(p.numel() * p.element_size() for block in waiting for p in block.parameters() if p.device == META)
    return (
        f"{len(waiting)} of {len(blocks)} blocks are on cpu/disk; expect {size / 1e9:.2g} GB of weights to be brought "
        "in for every batch, however small it is (docs/scaling.md has measured ratios)."
    )


def main_device(spec: DecoderSpec, chosen: torch.device) -> torch.device:
    """Return the device that decides the compute dtype: the CPU where a map names nothing but `cpu` and `disk`."""
    places = set(spec.device_map.values()) if isinstance(spec.device_map, dict) else {"auto"}
    return torch.device("cpu") if places <= {"cpu", "disk"} else chosen


def placing_options(spec: DecoderSpec, config: Any, dtype: torch.dtype | str) -> dict[str, Any]:
    """Build the arguments by which `from_pretrained` spreads, splits or quantises a decoder, if that is asked for.

    Raises:
        DecoderError: A package, a GPU, a plan of the family or a launcher that this takes is missing.
    """
    options: dict[str, Any] = {}
    if spec.device_map is not None:
        if find_spec("accelerate") is None:
            raise DecoderError(
                "decoder.device_map needs the extra package accelerate; install it with: pip install accelerate."
            )
        memory = {_numbered(key): most for key, most in (spec.max_memory or {}).items()} or None
        options |= {"device_map": _places(spec), "max_memory": memory, "offload_folder": spec.offload_folder}
    if spec.tp_plan is not None:
        options["distributed_config"] = _tensor_parallel(config)
    if spec.quantization is not None:
        options["quantization_config"] = _quantization(spec.quantization, dtype)
        options.setdefault("device_map", {"": torch.accelerator.current_device_index()})
    return options


def dispatch(model: Any, spec: DecoderSpec) -> None:
    """Spread a decoder that is whole in main memory: one that was merged, adapted or drawn at random."""
    from accelerate import dispatch_model, infer_auto_device_map
    from accelerate.utils import get_balanced_memory

    options = placing_options(spec, model.config, model.dtype)
    places = options["device_map"]
    whole = {"no_split_module_classes": list(model._no_split_modules or ())}
    if isinstance(places, str):
        memory = get_balanced_memory(model, options["max_memory"], **whole)
        places = infer_auto_device_map(model, memory, **whole)
    if "disk" in places.values() and spec.offload_folder is None:
        raise DecoderError(
            f"decoder {spec.name!r} is made in memory, and decoder.device_map puts parts of it on disk; set "
            "decoder.offload_folder to a folder for them."
        )
    folder = None
    if spec.offload_folder is not None:  # a folder of its own: accelerate reads what it finds in one that was used
        Path(spec.offload_folder).mkdir(parents=True, exist_ok=True)
        folder = tempfile.mkdtemp(dir=spec.offload_folder)
        kept = model.get_input_embeddings()  # a part that stays when the language-model head goes
        weakref.finalize(kept, shutil.rmtree, folder, ignore_errors=True)
    dispatch_model(model, places, offload_dir=folder, skip_keys=model._skip_keys_device_placement)


def _places(spec: DecoderSpec) -> Any:
    if not isinstance(spec.device_map, dict):
        return spec.device_map
    return {module: _numbered(device) for module, device in spec.device_map.items()}


def _numbered(device: str | int) -> str | int:
    """Read the number of a GPU, as accelerate takes it; YAML gives numbers already."""
    return int(device) if str(device).isdecimal() else device


def _tensor_parallel(config: Any) -> Any:
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


def _quantization(asked: dict[str, Any], dtype: torch.dtype | str) -> Any:
    if find_spec("bitsandbytes") is None:
        raise DecoderError(
            "decoder.quantization needs the extra package bitsandbytes; install it: pip install bitsandbytes."
        )
    if not torch.cuda.is_available():
        raise DecoderError("decoder.quantization needs a GPU, and torch finds none; leave it out.")
    import transformers

    make: Any = transformers.BitsAndBytesConfig
    given = {f"load_in_{asked['bits']}bit": True, **{key: value for key, value in asked.items() if key != "bits"}}
    known = inspect.signature(make).parameters
    if unknown := sorted(given.keys() - known.keys()):
        raise DecoderError(
            f"decoder.quantization has {unknown[0]!r}; allowed: bits, and the arguments of BitsAndBytesConfig "
            f"({', '.join(sorted(known))})."
        )
    compute = {"bnb_4bit_compute_dtype": dtype} if isinstance(dtype, torch.dtype) else {}
    return make(**{**compute, **given})
