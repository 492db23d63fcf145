"""The caches of a search: grown with its rows, so that the latents of fewer rows are never computed twice."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from extract.decoders.decoder import Decoder
from extract.errors import CacheIncompleteError
from extract.inputs.joined import JoinedText
from extract.masks.plan import MaskPlan
from extract.run.runner import describe_extraction, unique_texts
from extract.run.sweep import sweep_latents
from extract.store.cache import LatentCache
from extract.store.compose import CachePart, compose_cache
from extract.store.manifest import Manifest
from extract.store.reuse import cache_path
from probes.runs.config import RunConfig
from probes.runs.kinds import KINDS
from probes.runs.obtain import Watcher
from probes.tasks.base import Task


@dataclass
class GrowingCaches:
    """Caches of plans over more and more texts; the plan of the configuration does not count."""

    decoder: Decoder
    config: RunConfig
    watcher: Watcher
    latest: dict[MaskPlan, CachePart] = field(default_factory=dict)
    """The last cache of every plan, with its texts."""

    def obtain(self, plans: tuple[MaskPlan, ...], task: Task) -> list[LatentCache]:
        """Find or extract the caches of plans that hold every text of a task, usually more than before.

        What is missing is swept together by the plans that miss the same texts. Words are extracted again, for a text
        with words is one unit with its windows; so is what several templates read, whose mean is no cache of its own.
        """
        if KINDS[self.config.task.kind].reads_words or len(self.config.extraction.members) > 1:
            return self._sweep(list(plans), unique_texts(task.texts()))
        texts = [text for text in unique_texts(task.texts()) if isinstance(text, str)]
        alike: dict[int, list[MaskPlan]] = {}
        for plan in plans:
            alike.setdefault(self._find(plan, texts), []).append(plan)
        for group in alike.values():
            self._grow(group, texts)
        return [self.latest[plan].cache for plan in plans]

    def _find(self, plan: MaskPlan, texts: list[str]) -> int:
        """Look for a whole cache of the texts, and tell how many of them the plan's latest cache holds."""
        path = self._path(plan, texts)
        if path.exists():
            with suppress(CacheIncompleteError):
                self.latest[plan] = CachePart(LatentCache(path), texts)
        known = self.latest.get(plan)
        return 0 if known is None else len(set(known.texts) & set(texts))

    def _grow(self, plans: list[MaskPlan], texts: list[str]) -> None:
        known = self.latest.get(plans[0])
        had = set(known.texts) if known else set()
        missing = [text for text in texts if text not in had]
        if not missing:
            return
        made = {path for plan in plans if not (path := self._path(plan, missing)).exists()}
        for plan, cache in zip(plans, self._sweep(plans, missing), strict=True):
            before = self.latest.get(plan)
            self.latest[plan] = CachePart(cache, texts)
            if before is not None:
                parts = [CachePart(before.cache, [text for text in texts if text in had]), CachePart(cache, missing)]
                manifest = self._describe(plan, texts)
                grown = compose_cache(parts, manifest=manifest, folder=Path(self.config.caches))
                self.latest[plan] = CachePart(grown, texts)
                if cache.path in made:
                    cache.path.unlink()  # its rows stand in the grown one

    def _describe(self, plan: MaskPlan, texts: list[str]) -> Manifest:
        return describe_extraction(self.decoder, texts, self.config.extraction.with_plan(plan))

    def _path(self, plan: MaskPlan, texts: list[str]) -> Path:
        return cache_path(Path(self.config.caches), self._describe(plan, texts))

    def _sweep(self, plans: list[MaskPlan], texts: Sequence[str | JoinedText]) -> list[LatentCache]:
        progress = self.watcher.extraction(f"sweeping {len(plans)} plans over {len(texts):,} texts")
        return sweep_latents(
            self.decoder, texts, plans, spec=self.config.extraction, folder=self.config.caches, progress=progress
        )
