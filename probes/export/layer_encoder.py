"""A layer of a decoder as an encoder of mteb. Importing this needs the extra."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from mteb.models.abs_encoder import AbsEncoder
from mteb.models.model_meta import ModelMeta, ScoringFunction

from extract.decoders.decoder import Decoder
from extract.files import digest_json, digest_rows
from extract.inputs.joined_text import digest_texts
from extract.inputs.template import InputTemplate
from extract.masks.mask_plan import MaskPlan
from extract.poolings.pooling_table import split_poolings
from extract.run.extraction import describe_extraction, extract_latents, unique_texts
from extract.run.extraction_spec import ExtractionProgress, ExtractionSpec
from extract.run.shards import sweep_latents
from extract.store.cache import LatentCache
from extract.wiring.states import layer_widths

BLANK = "."
"""Read in place of a text without a visible character, of which some corpora of mteb have a few."""
OF_TEXTS = ("n_rows", "text_digest", "layers", "poolings")
"""Fields of an identity that do not say how a text is encoded."""
DOCUMENT = "document"


class TextCaches:
    """The cache of every layer for each set of texts, extracted when it is first asked for and shared by all layers.

    With several `plans`, the texts are extracted under all of them at once, the lower blocks that they share once;
    `under` says which of them is read.
    """

    def __init__(
        self,
        decoder: Decoder,
        spec: ExtractionSpec,
        *,
        folder: str | Path = "caches",
        progress: ExtractionProgress | None = None,
        plans: Sequence[MaskPlan] = (),
    ) -> None:
        self.decoder, self.spec, self.folder, self.progress = decoder, spec, Path(folder), progress
        self.plans = tuple(plans)
        self._caches: dict[tuple[str, tuple[InputTemplate, ...]], dict[MaskPlan, LatentCache]] = {}

    def under(self, plan: MaskPlan) -> "TextCaches":
        """Return the same caches, of which those of a plan are read."""
        caches = copy(self)
        caches.spec = self.spec.with_plan(plan)
        return caches

    def __call__(self, texts: Sequence[str], change: Callable[[InputTemplate], InputTemplate]) -> LatentCache:
        """Return the cache of texts as they are read with a changed template, or those of every view."""
        unique, plan, spec = unique_texts(texts), self.spec.mask_plan, self.spec.with_templates(change)
        templates = tuple(view.template for view in spec.readings.values())
        caches = self._caches.setdefault((digest_rows(digest_texts(unique)), templates), {})
        if plan not in caches:
            options: dict[str, Any] = {"spec": spec, "folder": self.folder, "progress": self.progress}
            shared = [other for other in self.plans if not other.has_tail]
            if len(shared) > 1 and plan in shared:
                caches.update(zip(shared, sweep_latents(self.decoder, unique, shared, **options), strict=True))
            else:
                caches[plan] = extract_latents(self.decoder, unique, **options)
        return caches[plan]

    def plan_of(self, pooling: str) -> str:
        """Name the plan of a view, or those of several with `, ` between them; without views that of all poolings."""
        names = split_poolings(pooling) if self.spec.views else ("",)
        plans = [self.spec.readings[name].mask_plan.text for name in names]
        return ", ".join(plans if len({*plans}) > 1 else plans[:1])

    def revision(self, layer: str, pooling: str, instructions: Mapping[str, str]) -> str:
        """Name what decides the vectors: plan, layer and pooling in words, and a digest of all of it."""
        identity = describe_extraction(self.decoder, [BLANK], self.spec).identity
        encoding = {key: value for key, value in identity.to_plain().items() if key not in OF_TEXTS}
        templates: Any = [view.template.settings() for view in self.spec.readings.values()]
        templates = templates if self.spec.views else templates[0]
        digest = digest_json([encoding, templates, layer, pooling, dict(instructions)])[:12]
        return re.sub(r"[^A-Za-z0-9.-]+", "_", f"{self.plan_of(pooling)}.{layer}.{pooling}.{digest}")


class LayerEncoder(AbsEncoder):
    """Serves one layer to mteb, of one pooling, or of several, or of views, side by side.

    Plan, layer and pooling are in the revision of the model, by which mteb stores its results.
    """

    def __init__(
        self, caches: TextCaches, *, layer: str, pooling: str, instructions: Mapping[str, str] | None = None
    ) -> None:
        self.model, self.caches, self.layer, self.pooling = None, caches, layer, pooling
        self.instructions = dict(instructions or {})
        described = caches.decoder.description
        self.poolings = split_poolings(pooling)
        widths = layer_widths(caches.decoder, caches.spec.mask_plan, [layer])
        self.mteb_model_meta = ModelMeta.create_empty(
            overwrites={
                "name": f"icecore/{described.name.replace('/', '--')}",
                "revision": caches.revision(layer, pooling, self.instructions),
                "similarity_fn_name": ScoringFunction.COSINE,
                "embed_dim": widths.get(layer, described.width) * len(self.poolings),
                "n_parameters": described.n_parameters,
                "max_tokens": described.window,
            }
        )

    def encode(
        self,
        inputs: Iterable[Mapping[str, list[str]]],
        *,
        task_metadata: Any,
        hf_split: str,
        hf_subset: str,
        prompt_type: object = None,
        **kwargs: object,
    ) -> Float[np.ndarray, "N D"]:
        """Return the latents of the texts of batches, in their order, float32; documents are read as the template says.

        The instruction of a task is put before its texts, or before its queries alone where documents have none.
        """
        del hf_split, hf_subset, kwargs
        texts = [text if text.strip() else BLANK for batch in inputs for text in batch["text"]]
        instruction = self.instructions.get(task_metadata.name)

        def change(template: InputTemplate) -> InputTemplate:
            if getattr(prompt_type, "value", prompt_type) == DOCUMENT:
                return template.for_documents()
            return template if instruction is None else replace(template, name="", instruction=instruction)

        cache = self.caches(texts, change)
        rows = cache.rows_of(texts)
        return torch.cat([cache.gather(rows, name, layers=[self.layer])[0] for name in self.poolings], dim=-1).numpy()
