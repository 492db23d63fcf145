"""Chosen probes on disk: weights as safetensors, everything else as JSON, and new latents classified by them."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from extract.errors import HeadError
from probes.heads.classes.results import training_names
from probes.logistic.head import LogisticHead
from probes.logistic.result import LogisticFit
from probes.tasks.classes.task import ClassTask

PROBE_SCHEMA = 1
WEIGHTS, RECORD = "model.safetensors", "head.json"


@dataclass(frozen=True)
class SavedProbe:
    """A probe that was read back.

    Attributes:
        head: The probe of one layer and one C, in eval mode, on the CPU.
        record: What was stored with it: `pooling`, `layer`, `C`, `class_names`, `is_pairs`, `task`, `convergence`.
    """

    head: LogisticHead
    record: dict[str, Any]

    def predict(self, features: Float[Tensor, "N W"]) -> list[str]:
        """Classify features.

        Args:
            features: `(N, W)` raw latents of the record's layer and pooling; for pairs as `join_pair` joins them.

        Returns:
            `N` class names.
        """
        codes = self.head.predict_step((features[None], torch.zeros(len(features))), 0)
        return [self.record["class_names"][code] for code in codes.tolist()]


def save_probe(folder: Path, fit: LogisticFit, task: ClassTask, facts: Mapping[str, Any]) -> None:
    """Write a chosen probe.

    Args:
        folder: Where `model.safetensors` and `head.json` go; made when absent.
        fit: The probe alone.
        task: The task it was fitted on.
        facts: Its `pooling`, `layer` and `convergence`.
    """
    n_classes, width = fit.weight.shape[-2:]
    precision = "float64" if fit.weight.dtype == torch.float64 else "float32"
    head = LogisticHead(1, width, n_classes=n_classes, Cs=fit.Cs, precision=precision)
    head.take(fit)
    head.choose(layer=0, c=0)
    folder.mkdir(parents=True, exist_ok=True)
    save_file({key: value.contiguous() for key, value in head.state_dict().items()}, folder / WEIGHTS)
    record = {
        "schema": PROBE_SCHEMA,
        "name": "logistic-probe",
        "arguments": head.arguments(),
        "pooling": facts["pooling"],
        "layer": facts["layer"],
        "C": fit.Cs[0],
        "class_names": training_names(task),
        "is_pairs": task.is_pairs,
        "task": {"name": task.name, "digest": task.digest()},
        "convergence": facts["convergence"],
    }
    # Written last: a folder without it holds no probe.
    (folder / RECORD).write_text(json.dumps(record, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def load_probe(folder: str | Path) -> SavedProbe:
    """Read a probe back.

    Args:
        folder: A folder written by `save_probe`, as RUN/heads/logistic-probe.

    Returns:
        The probe and its record.

    Raises:
        HeadError: No probe there, or one that cannot be read.
    """
    folder = Path(folder)
    try:
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        if record["schema"] != PROBE_SCHEMA or record["name"] != "logistic-probe":
            found = f"{record['name']} of schema {record['schema']}"
            raise ValueError(f"it is {found}, this version reads logistic-probe of schema {PROBE_SCHEMA}")
        head = LogisticHead(**record["arguments"])
        head.load_state_dict(load_file(folder / WEIGHTS))
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
        reason = f"{type(error).__name__}: {error}".partition("\n")[0]
        raise HeadError(
            f"folder {str(folder)!r} holds no readable probe ({reason}); allowed: a folder with {RECORD} and "
            f"{WEIGHTS}, as RUN/heads/logistic-probe."
        ) from error
    head.eval()
    return SavedProbe(head, record)
