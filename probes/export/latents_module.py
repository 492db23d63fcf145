"""Latents of layers as a module of sentence-transformers. Importing this needs the extra."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sentence_transformers.base.modules import InputModule

from extract.decoders.decoder import Decoder
from extract.run.embed import embed_readings
from extract.wiring.states import layer_widths
from probes.export.sentence_transformers import Recipe, save_decoder_files


class DecoderLatents(InputModule):
    """Reads a layer of a decoder under any plan, template and pooling, as an extraction does, or several side by side.

    A prompt of sentence-transformers takes the place of the template's instruction: it is put before the text and left
    out of mean pooling.
    """

    def __init__(self, decoder: Decoder, recipe: Recipe) -> None:
        super().__init__()
        self.decoder, self.recipe, self.tokenizer = decoder, recipe, decoder.tokenizer
        self.body = decoder.module  # so that `device`, `to` and `parameters` find the weights

    @property
    def max_seq_length(self) -> int:
        """Longest row in tokens."""
        window = self.decoder.description.window
        return min(min(window, spec.template.max_tokens or window) for spec in self.recipe.readings.values())

    def preprocess(self, inputs: Sequence[object], prompt: str | None = None, **kwargs: object) -> dict[str, Any]:  # noqa: ARG002
        """Keep the texts, and say how they are read."""
        readings = self.recipe.readings
        if prompt:
            readings = {
                name: replace(spec, template=replace(spec.template, name="", instruction=prompt))
                for name, spec in readings.items()
            }
        return {"texts": [str(text) for text in inputs], "readings": readings}

    def forward(self, features: dict[str, Any], **kwargs: object) -> dict[str, Any]:  # noqa: ARG002
        """Add `sentence_embedding`, `(B, D)` float32; raises as an extraction does."""
        latents = embed_readings(self.decoder, features["texts"], readings=features["readings"])
        return {**features, "sentence_embedding": self.recipe.vectors(latents).to(self.decoder.device)}

    def get_embedding_dimension(self) -> int:
        """Return the width of the layers, that of the decoder or of taps; or of what they are transformed into."""
        total = 0
        for name, spec in self.recipe.readings.items():
            read_out = self.recipe.read_outs.get(name)
            if read_out is not None and read_out.name == "whiten":
                total += int(read_out.basis.shape[2])
            else:
                widths = layer_widths(self.decoder, spec.mask_plan, spec.layers)
                total += widths.get(spec.layers[0], self.decoder.description.width)
        return total

    def save(self, output_path: str, *args: object, safe_serialization: bool = True, **kwargs: object) -> None:  # noqa: ARG002
        """Write decoder, tokenizer and recipe to a folder; always as safetensors."""
        save_decoder_files(self.decoder, Path(output_path))
        self.recipe.save(Path(output_path))

    def _input_length(self, text: object) -> int:
        return len(str(text))
