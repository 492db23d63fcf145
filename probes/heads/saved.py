"""Heads on disk: weights as safetensors, everything else as JSON. No pickle is read or written."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from extract.errors import HeadError
from probes.heads.registry import head_entry
from probes.networks.autoencoder import LayerAutoencoder
from probes.networks.pair_head import PairHead

HEAD_SCHEMA = 2
AUTOENCODER = "autoencoder"


@dataclass(frozen=True)
class SavedHead:
    """A head that was read back.

    Attributes:
        head: The head, in eval mode, on the CPU.
        record: What was stored with it: name, arguments, layers, pooling, seed, calibration, fit history.
    """

    head: PairHead
    record: dict[str, Any]


@dataclass(frozen=True)
class SavedAutoencoder:
    """Layer-wise autoencoders that were read back.

    Attributes:
        module: The autoencoders, in eval mode, on the CPU.
        record: What was stored with them: arguments, layers, pooling, seed, corpus, losses.
    """

    module: LayerAutoencoder
    record: dict[str, Any]


def save_head(folder: Path, head: PairHead | LayerAutoencoder, record: dict[str, Any]) -> None:
    """Write a head, or layer-wise autoencoders.

    Args:
        folder: Where `model.safetensors` and `head.json` go; made when absent.
        head: The head.
        record: Plain values; must hold `name`, `layers` and `pooling`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    save_file({key: value.contiguous() for key, value in head.state_dict().items()}, folder / "model.safetensors")
    whole = {
        "schema": HEAD_SCHEMA, "n_layers": head.n_layers, "width": head.width, "arguments": head.arguments(), **record,
    }  # fmt: skip
    whole["arguments"] = {k: v for k, v in whole["arguments"].items() if k not in ("n_layers", "width")}
    # Written last: a folder without it holds no head.
    (folder / "head.json").write_text(json.dumps(whole, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def load_head(folder: str | Path) -> SavedHead:
    """Read a head back, ready to score latents.

    Args:
        folder: A folder written by `save_head`.

    Returns:
        The head and its record.

    Raises:
        HeadError: No head there, or one that cannot be read.
        UnknownNameError: A head that this version does not know.
    """
    head, record = _read(folder, lambda record: head_entry(record["name"]).head)
    return SavedHead(head, record)


def load_autoencoder(folder: str | Path) -> SavedAutoencoder:
    """Read layer-wise autoencoders back.

    Args:
        folder: A folder written by `save_head`.

    Returns:
        The autoencoders and their record.

    Raises:
        HeadError: No autoencoders there, or some that cannot be read.
    """
    module, record = _read(folder, lambda record: {AUTOENCODER: LayerAutoencoder}[record["name"]])
    return SavedAutoencoder(module, record)


def _read(folder: str | Path, choose: Callable[[dict[str, Any]], type[Any]]) -> tuple[Any, dict[str, Any]]:
    folder = Path(folder)
    try:
        record = json.loads((folder / "head.json").read_text(encoding="utf-8"))
        if record["schema"] != HEAD_SCHEMA:
            raise ValueError(f"its schema is {record['schema']}, this version reads {HEAD_SCHEMA}; fit it again")
        build = choose(record)
        with torch.random.fork_rng():  # fresh weights are drawn before the saved ones replace them
            module = build(record["n_layers"], record["width"], **record["arguments"])
        module.load_state_dict(load_file(folder / "model.safetensors"))
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
        reason = f"{type(error).__name__}: {error}".partition("\n")[0]
        raise HeadError(
            f"folder {str(folder)!r} holds no readable head ({reason}); "
            "allowed: a folder with head.json and model.safetensors, as in RUN/heads/NAME/seed_0."
        ) from error
    module.eval()
    return module, record
