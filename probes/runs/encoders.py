"""The list of `icecore sweep --over encoders`: ways to read a frozen decoder without training. Loads no numpy."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Encoder:
    """A way to read a frozen decoder without training it."""

    pooling: str
    template: str = ""
    plan: str = ""
    layers: str = ""
    repeat: int = 1
    transform: str = "none"
    """What cosines of pairs see."""


_PROMPTED = Encoder("last", "prompt-eol")
_SIXTH, _THIRD, _HALF = (f"nosink-bidirectional:{{{share}}}" for share in ("sixth", "third", "half"))
ENCODERS: dict[str, Encoder] = {
    "mean": Encoder("mean"),
    "mean-standardised": Encoder("mean", transform="standardise"),
    "last": Encoder("last"),
    "prompt-eol": _PROMPTED,
    "pretended-cot": Encoder("last", "pretended-cot"),
    "knowledge": Encoder("last", "knowledge"),
    "echo-mean": Encoder("echo-mean", "echo"),
    "echo-last": Encoder("echo-last", "echo"),
    "reba-mean": Encoder("reba-mean", repeat=2),
    "reba-last": Encoder("reba-last", repeat=2),
    "token-prepending": Encoder("last", "prompt-eol", plan="causal~tp1-{fifth}"),
    "kv-prefix": Encoder("last", "kv-embedding", plan="causal~kv{two fifths}-{half}"),
    "attention-tap": Encoder("mean", layers="taps:attention"),
    "value-tap": Encoder("mean", layers="taps:value"),
    "nosink-sixth": Encoder("mean", plan=_SIXTH),
    "nosink-third": Encoder("mean", plan=_THIRD),
    "nosink-half": Encoder("mean", plan=_HALF),
    "nosink-third-standardised": Encoder("mean", plan=_THIRD, transform="standardise"),
    "nosink-third-last": Encoder("last", plan=_THIRD),
    "nosink-middle-third": Encoder("mean", plan="nosink-bidirectional@{third}-{two thirds}"),
    "nosink-third-echo": Encoder("echo-mean", "echo", plan=_THIRD),
    "nosink-third-cot": Encoder("last", "pretended-cot", plan=_THIRD),
}
"""Encoders without training, the plain mean first, with which others are compared."""
