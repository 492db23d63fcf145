"""Token heads on disk: weights as safetensors, everything else as JSON. No pickle is read or written."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from extract.errors import HeadError
from probes.networks.token_heads import TokenClassifier, TokenHead, TokenMix

TOKEN_HEADS: dict[str, type[TokenHead]] = {"token-classifier": TokenClassifier, "token-mix": TokenMix}
HEAD_SCHEMA = 1


@dataclass(frozen=True)
class SavedTokenHead:
    """A token head that was read back.

    Attributes:
        head: The head, in eval mode, on the CPU.
        record: What was stored with it: name, classes, layers, pooling, seed, best epochs, validation scores, history.
    """

    head: TokenHead
    record: dict[str, Any]


def save_token_head(folder: Path, head: TokenHead, record: dict[str, Any]) -> None:
    """Write a token head.

    Args:
        folder: Where `model.safetensors` and `head.json` go; made when absent.
        head: The head.
        record: Plain values; must hold `name`, `classes`, `layers` and `pooling`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    save_file({key: value.contiguous() for key, value in head.state_dict().items()}, folder / "model.safetensors")
    whole = {"schema": HEAD_SCHEMA, "arguments": head.arguments(), **record}
    # Written last: a folder without it holds no head.
    (folder / "head.json").write_text(json.dumps(whole, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def load_token_head(folder: str | Path) -> SavedTokenHead:
    """Read a token head back, ready to score latents.

    Args:
        folder: A folder written by `save_token_head`.

    Returns:
        The head, whose probes stand in the order of the record's layers, and its record.

    Raises:
        HeadError: No token head there, or one that cannot be read.

    Example:
        >>> saved = load_token_head("runs/words-sample/heads/token-classifier/seed_0")  # doctest: +SKIP
        >>> saved.head(latents).argmax(-1)  # (layers, words) of (layers, words, width)  # doctest: +SKIP
    """
    folder = Path(folder)
    try:
        record = json.loads((folder / "head.json").read_text(encoding="utf-8"))
        head = TOKEN_HEADS[record["name"]](**record["arguments"])
        head.load_state_dict(load_file(folder / "model.safetensors"))
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
        reason = f"{type(error).__name__}: {error}".partition("\n")[0]
        raise HeadError(
            f"folder {str(folder)!r} holds no readable token head ({reason}); "
            f"allowed: a folder with head.json and model.safetensors of {' or '.join(TOKEN_HEADS)}, as in "
            "RUN/heads/NAME/seed_0."
        ) from error
    head.eval()
    return SavedTokenHead(head, record)
