"""A small grid on the sample of pairs: two plans, three encoders."""

from pathlib import Path
from typing import Any

from probes.runs.run_config import RunConfig

OVER = {
    "plan": ["causal", "bidirectional:1"],
    "encoder": {"plain": {}, "last": {"poolings": ["last"]}, "echo": {"template": "echo", "poolings": ["echo-mean"]}},
}


def config_in(folder: Path, decoder: Path, *, pairs: int = 16, **values: Any) -> RunConfig:
    """Make the run of a grid; `pairs` per split."""
    plain = {
        "name": "grid",
        "decoder": str(decoder),
        "task": {"name": "sts-sample", "pairs": pairs},
        "heads": {"layer-cosine": {}},
        "bootstrap": 100,
        "caches": str(folder / "caches"),
        "runs": str(folder / "runs"),
    }
    return RunConfig(**{**plain, **values})
