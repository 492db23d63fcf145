"""The caches of the points of a sweep: what points share is computed once, and a decoder is loaded once."""

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TypeVar

from extract.decoders.decoder import Decoder, load_decoder, read_n_blocks
from extract.decoders.decoder_spec import DecoderSpec, plain_decoder, select_layers
from extract.decoders.fetch import icecore_home, is_fetched, list_decoder_files, remove_fetched
from extract.errors import CacheIncompleteError, ConfigError, IcecoreError, first_line
from extract.files import digest_json, read_file, remove_file, write_file
from extract.inputs.joined_text import JoinedText
from extract.masks.mask_plan import MaskPlan
from extract.poolings.pooling_table import AUTO
from extract.records import to_plain, with_values
from extract.run.extraction import describe_extraction, extract_latents, unique_texts
from extract.run.extraction_spec import ExtractionProgress, ExtractionSpec
from extract.run.shards import (
    CachePart,
    compose_cache,
    extract_readings,
    reading_routes,
    sweep_cost,
    sweep_latents,
)
from extract.store.cache import LatentCache, cache_path, find_cache, passing_over
from extract.store.items import remove_cache
from extract.store.manifest import Manifest
from extract.wiring.states import count_blocks
from probes.data.task import Task
from probes.data.task_table import task_title
from probes.runs.grid import Grid, Point
from probes.runs.run_caches import show_as
from probes.runs.task_kinds import KINDS
from probes.runs.watcher import Watcher

Item = TypeVar("Item")
FETCHED = "fetched.txt"
"""File, in icecore's own folder, of the decoders that a sweep is to remove again, also where one was killed."""
GROWING = "growing"
"""Folder, among the caches, of texts that are new in a round, until they are composed with those that were there."""


@dataclass
class PointCaches:
    """The caches of points by label, and what they cost."""

    of: dict[str, LatentCache] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    """Label to why there is no cache, or no head could be fitted on it."""
    block_passes: int = 0
    """Blocks that texts pass when what points share is computed once; in a sweep over plans, of one text."""
    apart: int = 0
    """Of separate extractions of all points."""

    def fail(self, labels: Sequence[str], why: str, watcher: Watcher) -> None:
        """Go on without some points, and say why."""
        self.failed |= dict.fromkeys(labels, why)
        for label in labels:
            self.of.pop(label, None)
        watcher.say(f"{', '.join(labels)} failed, and the sweep goes on: {why}")

    def fail_or_raise(self, points: Sequence[Point], error: Exception, grid: Grid, watcher: Watcher) -> None:
        """Go on without some points after an error; raise it where no other is left."""
        if len(self.failed) + len(points) == len(grid.points):
            raise error
        self.fail([point.label for point in points], first_line(error), watcher)


def group(items: Sequence[Item], key: Callable[[Item], str]) -> list[list[Item]]:
    """Group items by a key, in the order first seen."""
    groups: dict[str, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return list(groups.values())


def find_families(grid: Grid, tasks: Mapping[str, Task]) -> Iterator[tuple[str, list[list[Point]]]]:
    """Give the digest of every decoder, and the families of its points: of the same passes but for plans.

    Points with views are one family for each task, as they may share any of their views.
    """

    def key(point: Point) -> str:
        spec, task = point.config.extraction, tasks[point.label]
        if spec.views:
            return digest_json([task.digest(), task.name, point.config.caches, "views"])
        alone = [spec.plan] if _is_alone(spec) else []
        words = spec.words.poolings
        # `auto` stands for another pooling under each plan, and a mean of several templates is stored as it is.
        apart = [KINDS[task.kind].reads_words and AUTO in words, len(spec.members) > 1]
        held = [list(words), list(spec.poolings), list(spec.layers)] if any(apart) else []
        rest = [spec.template.to_dict(), spec.storage_dtype, spec.batch_tokens, spec.store_texts, spec.looks_inside]
        words_rest = [spec.words.shift, spec.words.on_lost, to_plain(spec.reba)]
        return digest_json([task.digest(), task.name, point.config.caches, alone, held, rest, words_rest])

    usable = [point for point in grid.points if not point.why_not]
    for points in group(usable, lambda point: digest_json(plain_decoder(point.config.decoder))):
        yield digest_json(plain_decoder(points[0].config.decoder)), group(points, key)


def keeps_rows(spec: ExtractionSpec, task: Task) -> bool:
    """Whether latents of some texts serve for more of them.

    A text with words is one unit with its windows, and what several templates or views read has no cache of its own.
    """
    return not (KINDS[task.kind].reads_words or len(spec.members) > 1 or spec.views)


@dataclass
class Grown:
    """What a search keeps between rounds on more and more rows: caches, decoders, and what a family of points holds."""

    latest: dict[str, CachePart] = field(default_factory=dict)
    """The last cache of every point, with its texts."""
    specs: dict[str, ExtractionSpec] = field(default_factory=dict)
    """What is extracted for the family of a point, in every round alike."""
    loaded: dict[str, Decoder] = field(default_factory=dict)
    """The decoder that was run last, by the digest of what it is."""
    fetched: list[DecoderSpec] = field(default_factory=list)
    """Decoders that had to be fetched."""


def obtain_point_caches(
    grid: Grid,
    tasks: Mapping[str, Task],
    *,
    watcher: Watcher,
    removes: bool = False,
    grown: Grown | None = None,
) -> PointCaches:
    """Find or extract the cache of every point, which holds all texts of its task.

    A decoder that cannot be loaded, or a text that cannot be read under a template, costs the points that need it
    alone. With `removes`, decoders that had to be fetched are removed once their points are extracted; those of a
    search, whose earlier rounds are in `grown`, stay, and are listed in it.
    """
    caches = PointCaches()
    for label, why in grid.unread.items():
        caches.fail([label], why, watcher)
    for name, families in find_families(grid, tasks):
        spec = families[0][0].config.decoder
        was_there = not (removes and must_be_fetched(spec))
        loaded = grown.loaded.pop(name, None) if grown else None
        if grown:
            grown.loaded.clear()  # frees its memory before the next one
        try:
            loaded = loaded or load_decoder(spec, report=watcher.say)
        except (IcecoreError, OSError, RuntimeError) as error:
            caches.fail_or_raise([point for family in families for point in family], error, grid, watcher)
        if loaded is not None:
            misfits = find_misfits(families, len(loaded.blocks), is_only=grid.has_one_decoder)
            for label, why in misfits.items():
                caches.fail([label], why, watcher)
            fitting = [[point for point in family if point.label not in misfits] for family in families]
            _extract_families(loaded, list(filter(None, fitting)), grid, tasks, caches, watcher, grown)
        if grown and loaded is not None:
            grown.loaded[name] = loaded
        loaded = None  # frees its memory before the next one
        if not was_there:  # also where it could not be loaded
            if not grown:
                remove_again(spec, watcher)
            elif spec not in grown.fetched:
                grown.fetched.append(spec)
    return caches


def must_be_fetched(spec: DecoderSpec) -> bool:
    """Whether a decoder is not on this computer, or only since a sweep that was killed; noted until it is removed."""
    noted, entry = _noted(), _entry(spec)
    if Path(spec.name).expanduser().exists() or (entry not in noted and is_fetched(spec.name, spec.revision)):
        return False
    _note({*noted, entry})
    return True


def remove_again(spec: DecoderSpec, watcher: Watcher) -> None:
    """Remove a decoder that had to be fetched, if it could be; it stays noted where the hub does not answer."""
    if is_fetched(spec.name, spec.revision):
        watcher.say(remove_fetched(spec.name, spec.revision))
    if not is_fetched(spec.name, spec.revision):
        _note(_noted() - {_entry(spec)})


def _entry(spec: DecoderSpec) -> str:
    return f"{spec.name} at {spec.revision or 'main'}"


def _noted() -> set[str]:
    path = icecore_home() / FETCHED
    return set(read_file(path).decode("utf-8", "replace").splitlines()) if path.exists() else set()


def _note(entries: Set[str]) -> None:
    path = icecore_home() / FETCHED
    if entries:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, "".join(f"{entry}\n" for entry in sorted(entries)))
    else:
        remove_file(path)


def _extract_families(
    decoder: Decoder,
    families: Sequence[Sequence[Point]],
    grid: Grid,
    tasks: Mapping[str, Task],
    caches: PointCaches,
    watcher: Watcher,
    grown: Grown | None,
) -> None:
    """Find or extract the caches of the points of a decoder, and add them; what fails costs its own family alone."""
    for points in families:
        task = tasks[points[0].label]
        try:
            _extract(decoder, points, task, caches, watcher, is_of_plans=grid.is_of_plans, grown=grown)
        except (IcecoreError, OSError, RuntimeError) as error:
            if len(points) == 1 or not points[0].config.views:
                caches.fail_or_raise(points, error, grid, watcher)
                continue
            for point in points:  # what one view of a point cannot read is no reason to lose the others
                try:
                    _read_views(decoder, [point], task, caches, watcher)
                except (IcecoreError, OSError, RuntimeError) as cause:
                    caches.fail_or_raise([point], cause, grid, watcher)


def _read_views(decoder: Decoder, points: Sequence[Point], task: Task, caches: PointCaches, watcher: Watcher) -> None:
    """Find or extract the caches of points with views, and add them."""
    specs, folder = [point.config.extraction for point in points], points[0].config.caches
    progress = watcher.extraction(f"sweeping {task_title(task.name)}")
    read = extract_readings(decoder, unique_texts(task.texts()), specs, folder=folder, progress=progress)
    caches.of |= {point.label: cache for point, cache in zip(points, read, strict=True)}


def find_misfits(families: Sequence[Sequence[Point]], n_blocks: int, *, is_only: bool) -> dict[str, str]:
    """Say by label why plans or layers do not fit a decoder; of the only one it is a mistake (`ConfigError`)."""
    misfits: dict[str, str] = {}
    for point in (point for family in families for point in family):
        try:
            for spec in point.config.extraction.readings.values():
                spec.mask_plan.kinds(n_blocks)
                select_layers(spec.layers, n_blocks)
        except IcecoreError as error:
            if is_only:
                raise ConfigError(f"the point {point.label} of the sweep: {error}") from error
            misfits[point.label] = first_line(error)
    return misfits


def foresee_misfits(grid: Grid, tasks: Mapping[str, Task]) -> dict[str, str]:
    """Say by label what cannot be computed, as far as configurations of decoders on this computer tell."""
    misfits = grid.unread
    for _, families in find_families(grid, tasks):
        spec = families[0][0].config.decoder
        try:
            if list_decoder_files(spec.merge[0].name if spec.merge else spec.name):
                misfits |= find_misfits(families, read_n_blocks(spec), is_only=grid.has_one_decoder)
        except (IcecoreError, OSError, RuntimeError) as error:
            if grid.has_one_decoder:
                raise
            misfits |= {point.label: first_line(error) for family in families for point in family}
    return misfits


def _is_alone(spec: ExtractionSpec) -> bool:
    """Whether an extraction cannot be part of a sweep over plans."""
    return spec.mask_plan.has_tail or bool(spec.reba_poolings)


def join_specs(specs: Sequence[ExtractionSpec], n_blocks: int) -> ExtractionSpec:
    """Return the extraction that holds the poolings and layers of all, which differ in these and in their plans."""
    first = specs[0]
    poolings = tuple(dict.fromkeys(name for spec in specs for name in spec.poolings))
    words = tuple(dict.fromkeys(name for spec in specs for name in spec.words.poolings))
    layers = first.layers
    if any(spec.layers != layers for spec in specs):
        chosen = {name for spec in specs for name in select_layers(spec.layers, n_blocks)}
        layers = tuple(select_layers(tuple(chosen), n_blocks))
    changes: dict[str, object] = {"poolings": poolings, "layers": layers}
    changes = {name: value for name, value in changes.items() if getattr(first, name) != value}
    if words != first.words.poolings:
        changes["words"] = with_values(first.words, poolings=words)
    return with_values(first, **changes) if changes else first


def _extract(
    decoder: Decoder,
    points: Sequence[Point],
    task: Task,
    caches: PointCaches,
    watcher: Watcher,
    *,
    is_of_plans: bool,
    grown: Grown | None,
) -> None:
    """Find or extract the caches of points that share passes, and add them."""
    texts, n_blocks, folder = unique_texts(task.texts()), len(decoder.blocks), points[0].config.caches
    plans = list({point.plan: None for point in points})
    if is_of_plans:
        sweep_cost(plans, n_blocks)  # refuses those with tails
    routes = reading_routes({point.label: point.config.extraction for point in points}, n_blocks)
    passes, apart = count_blocks([*chain(*routes.values())]), sum(map(count_blocks, routes.values()))
    n_texts = 1 if is_of_plans else len(texts)
    caches.block_passes += passes * n_texts
    caches.apart += apart * n_texts
    progress = watcher.extraction(f"sweeping {task_title(task.name)}")
    has_views = bool(points[0].config.views)
    if grown is not None and not has_views:
        _show(_grow(decoder, points, task, grown, progress), points, caches)
        return
    if is_of_plans and grown is None:
        watcher.say(
            f"{len(plans)} plan{'s' * (len(plans) > 1)} over {len(texts):,} texts: {passes} block passes per batch "
            f"instead of {apart} "
            f"({passes / apart:.2f} of separate extractions)"
        )
    if has_views:
        _read_views(decoder, points, task, caches, watcher)
        return
    held: dict[str, LatentCache | None] = {}
    for point in points if not is_of_plans else ():
        identity = describe_extraction(decoder, texts, point.config.extraction).identity
        held[point.label] = find_cache(Path(point.config.caches), identity)
    caches.of |= {label: cache for label, cache in held.items() if cache is not None}
    missing = [point for point in points if held.get(point.label) is None]
    if not missing:
        return
    spec = join_specs([point.config.extraction for point in points], n_blocks)  # whatever a killed sweep has left
    plans = list({point.plan: None for point in missing})
    _show(_compute(decoder, texts, plans, spec, folder=folder, progress=progress), missing, caches)


def _show(made: Mapping[MaskPlan, LatentCache], points: Sequence[Point], caches: PointCaches) -> None:
    """Add what points read of the caches of their plans."""
    for point in points:
        cache, own = made[point.plan], point.config.extraction
        caches.of[point.label] = cache if len(own.members) > 1 else show_as(cache, own) or cache


@dataclass
class _Growth:
    """The caches of points that share passes, over more texts than before."""

    decoder: Decoder
    spec: ExtractionSpec
    texts: list[str]
    folder: Path
    progress: ExtractionProgress | None
    latest: dict[MaskPlan, CachePart]
    """The last cache of every plan."""

    def grow(self, plans: Sequence[MaskPlan]) -> None:
        """Extract what is missing, together for plans that miss the same texts, and compose it with what is there."""
        alike: dict[int, list[MaskPlan]] = {}
        for plan in plans:
            if (path := cache_path(self.folder, self._describe(plan, self.texts))).exists():
                with passing_over(path), suppress(CacheIncompleteError):
                    whole = CachePart(LatentCache(path), self.texts)
                    whole.cache.verify_latents()
                    had = set(self._held(plan))
                    if missing := [text for text in self.texts if text not in had]:  # composed before a kill
                        remove_cache(cache_path(self.folder / GROWING, self._describe(plan, missing)))
                    self.latest[plan] = whole
            alike.setdefault(len(self._held(plan)), []).append(plan)
        for same in alike.values():
            had = set(self._held(same[0]))
            if missing := [text for text in self.texts if text not in had]:
                self._add(same, missing)

    def _held(self, plan: MaskPlan) -> list[str]:
        """List the texts that the last cache of a plan holds."""
        had = set(self.latest[plan].texts) if plan in self.latest else set()
        return [text for text in self.texts if text in had]

    def _add(self, plans: Sequence[MaskPlan], missing: Sequence[str]) -> None:
        held = self._held(plans[0])
        folder = self.folder / GROWING if held else self.folder
        made = _compute(self.decoder, missing, plans, self.spec, folder=str(folder), progress=self.progress)
        for plan, cache in made.items():
            whole = cache
            if held:
                parts = [CachePart(self.latest[plan].cache, held), CachePart(cache, missing)]
                whole = compose_cache(parts, manifest=self._describe(plan, self.texts), folder=self.folder)
            self.latest[plan] = CachePart(whole, self.texts)
        if held:
            for cache in made.values():
                remove_cache(cache.path)  # its rows are in the composed one
            with suppress(OSError):  # another search may be at work there
                folder.rmdir()

    def _describe(self, plan: MaskPlan, texts: Sequence[str]) -> Manifest:
        return describe_extraction(self.decoder, texts, self.spec.with_plan(plan))


def _grow(
    decoder: Decoder, points: Sequence[Point], task: Task, grown: Grown, progress: ExtractionProgress | None
) -> dict[MaskPlan, LatentCache]:
    """Find or extract caches of all texts of a task, usually more than before, for points that share passes."""
    texts, folder = unique_texts(task.texts()), points[0].config.caches
    joined = join_specs([point.config.extraction for point in points], len(decoder.blocks))
    spec = grown.specs.get(points[0].label, joined)  # of all points of the first round, also of those that are dropped
    grown.specs |= {point.label: spec for point in points}
    plans = list({point.plan: None for point in points})
    if not keeps_rows(spec, task):
        return _compute(decoder, texts, plans, spec, folder=folder, progress=progress)
    growth = _Growth(decoder, spec, [text for text in texts if isinstance(text, str)], Path(folder), progress, {})
    held = [(point.plan, grown.latest[point.label]) for point in points if point.label in grown.latest]
    growth.latest |= dict(sorted(held, key=lambda item: len(item[1].texts)))  # the longest of a plan
    growth.grow(plans)
    grown.latest |= {point.label: growth.latest[point.plan] for point in points}
    return {plan: part.cache for plan, part in growth.latest.items()}


def _compute(
    decoder: Decoder,
    texts: Sequence[str | JoinedText],
    plans: Sequence[MaskPlan],
    spec: ExtractionSpec,
    *,
    folder: str,
    progress: ExtractionProgress | None,
) -> dict[MaskPlan, LatentCache]:
    """Extract texts under plans, together where they can be."""
    if len(plans) == 1 and _is_alone(spec.with_plan(plans[0])):
        alone = spec.with_plan(plans[0])
        return {plans[0]: extract_latents(decoder, texts, spec=alone, folder=folder, progress=progress)}
    swept = sweep_latents(decoder, texts, plans, spec=spec, folder=folder, progress=progress)
    return dict(zip(plans, swept, strict=True))
