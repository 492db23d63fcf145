"""Axes that come with the library: `--over encoders` is the list of docs/encoders_compared.md.

Blocks are shares of a decoder's depth, written `{third}` in a plan and filled in for the decoder of each point.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from extract.decoders.decoder_spec import DecoderSpec
from extract.errors import unknown_name
from probes.runs.run_config import RunConfig
from probes.runs.task_kinds import KINDS

SHARES = {"sixth": 1 / 6, "fifth": 1 / 5, "third": 1 / 3, "two fifths": 2 / 5, "half": 1 / 2, "two thirds": 2 / 3}
"""Shares of the depth by name."""
SHARE = re.compile(r"\{([a-z ]+)\}")
OF_WORDS = {"mean": "mean", "echo-mean": "echo", "reba-mean": "reba"}
"""Pooling of a text to that of a word, for tasks of words; a last token is that of a text."""
COSINES = "layer-cosine"


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


def encoder_settings(config: RunConfig) -> dict[str, dict[str, object]]:
    """Return the settings of every encoder that the task and the heads of a configuration can be read with."""
    reads_words = KINDS[config.task.kind].reads_words
    has_cosines = COSINES in config.heads
    settings: dict[str, dict[str, object]] = {}
    for name, encoder in ENCODERS.items():
        if (encoder.transform != "none" and not has_cosines) or (reads_words and encoder.pooling not in OF_WORDS):
            continue
        pooling = OF_WORDS[encoder.pooling] if reads_words else encoder.pooling
        template: dict[str, object] = {"bos": "force"}
        template |= {"name": encoder.template} if encoder.template else {}
        template |= {"repeat": encoder.repeat} if encoder.repeat > 1 else {}
        keys: dict[str, object] = {
            "extraction.words.poolings" if reads_words else "extraction.poolings": [pooling],
            "extraction.template": template,
        }
        keys |= {"extraction.plan": encoder.plan} if encoder.plan else {}
        keys |= {"extraction.layers": encoder.layers} if encoder.layers else {}
        keys |= {f"heads.{COSINES}.transform": encoder.transform} if has_cosines else {}
        settings[name] = keys
    return settings


PRESETS: dict[str, tuple[str, Callable[[RunConfig], Mapping[str, Mapping[str, object]]]]] = {
    "encoders": ("encoder", encoder_settings),
}
"""What may be typed after `--over`: the name of the axis, and what gives the settings of its values."""


def names_shares(settings: Mapping[str, object]) -> bool:
    """Whether some setting names a share of the depth."""
    return any(isinstance(value, str) and SHARE.search(value) for value in settings.values())


def fill_shares(settings: Mapping[str, object], decoder: DecoderSpec) -> dict[str, object]:
    """Write shares of the depth in texts, as `{third}`, as numbers of blocks of a decoder; no weights are read."""
    from extract.decoders.decoder import read_n_blocks

    n_blocks = read_n_blocks(decoder)

    def fill(match: re.Match[str]) -> str:
        if match[1] not in SHARES:
            raise unknown_name("share of the depth", match[1], SHARES)
        return str(round(SHARES[match[1]] * n_blocks))

    return {key: SHARE.sub(fill, value) if isinstance(value, str) else value for key, value in settings.items()}
