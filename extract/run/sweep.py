"""A sweep: many plans over the same texts, one cache per plan, the lower blocks they share computed once."""

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from extract.decoders.decoder import Decoder
from extract.errors import ConfigError
from extract.inputs.batches import Batch
from extract.inputs.joined_text import JoinedText
from extract.masks.mask_plan import MaskPlan, parse_plan
from extract.poolings.pooling_table import REBA
from extract.run.extraction import (
    Extraction,
    check_texts,
    count_rows,
    describe_extraction,
    extract_latents,
    open_store,
    unique_texts,
    warn_truncated,
)
from extract.run.extraction_spec import ExtractionSpec, join_readings
from extract.run.progress import ExtractionProgress
from extract.run.session import Put, Session
from extract.store.cache import LatentCache, MeanCache, ViewCache, cache_path, find_cache
from extract.store.kept_texts import keep_texts
from extract.wiring.attention import Wiring
from extract.wiring.plan_wiring import masks_in_force, rest_in_force
from extract.wiring.tree import Route, count_blocks, route_of, walk_plans


@dataclass(frozen=True)
class SweepCost:
    """Block passes of a sweep, and those of separate extractions."""

    n_plans: int
    n_blocks: int
    n_blocks_apart: int

    @property
    def ratio(self) -> float:
        """Share of the separate extractions' block passes."""
        return self.n_blocks / self.n_blocks_apart


def sweep_cost(plans: Sequence[MaskPlan], n_blocks: int) -> SweepCost:
    """Predict the cost of a sweep from its tree; a plan with a tail cannot share blocks (`ConfigError`)."""
    for plan in plans:
        if plan.has_tail:
            raise ConfigError(
                f"the plan {plan.text!r} cannot be part of a sweep; allowed: plans of masks and architectures, without "
                "~skip, ~tp and ~kv. Extract it by itself with extraction.plan."
            )
    routes = [route_of(plan, n_blocks) for plan in plans]
    return SweepCost(len(plans), count_blocks(routes), sum(map(len, routes)))


@dataclass(frozen=True, eq=False)
class _Branch:
    extraction: Extraction
    plan: MaskPlan
    route: Route
    was_done: NDArray[np.bool_]

    def prove(self, wiring: Wiring, *, is_closing: bool) -> None:
        """Prove batches, computed again without what plans share; as `BatchProof.prove`."""
        proof = self.extraction.proof
        if is_closing or proof.is_due:
            wiring.plan.kinds = list(self.plan.kinds(len(wiring.plan.kinds)))
            with rest_in_force(proof.decoder, wiring, self.plan):
                proof.prove()


def sweep_latents(
    decoder: Decoder,
    texts: Iterable[str | JoinedText],
    plans: Sequence[MaskPlan],
    *,
    spec: ExtractionSpec,
    folder: str | Path = "caches",
    progress: ExtractionProgress | None = None,
) -> list[LatentCache]:
    """Extract the same texts under many plans, into one cache per plan.

    Whole caches are reused and half-done ones resumed, as by `extract_latents`, whose latents are the same up to
    rounding. Plans with the same bottom blocks share that work. The plan of `spec` is not used. Progress counts a row
    for each text and plan. The caches are in the order of the plans.
    """
    if not plans:
        raise ConfigError("no plan was given to sweep over; give at least one.")
    n_blocks = len(decoder.blocks)
    sweep_cost(plans, n_blocks)
    unique = unique_texts(texts)
    if spec.views:
        return _sweep_views(decoder, unique, plans, spec=spec, folder=folder, progress=progress)
    if len(spec.members) > 1:
        swept = [
            sweep_latents(decoder, unique, plans, spec=member, folder=folder, progress=progress)
            for member in spec.members
        ]
        means = [describe_extraction(decoder, unique, spec.with_plan(plan)).identity for plan in plans]
        return [MeanCache(parts, identity=mean) for parts, mean in zip(zip(*swept, strict=True), means, strict=True)]
    specs = {plan: spec.with_plan(plan) for plan in plans}
    if any(name in REBA for name in (*spec.poolings, *spec.words.poolings)):
        raise ConfigError("ReBA poolings need the causal plan alone; extract them by themselves, not in a sweep.")
    n_rows = count_rows(decoder, unique, spec)
    manifests = {plan: describe_extraction(decoder, unique, specs[plan], n_rows=n_rows) for plan in specs}
    missing = [plan for plan in specs if find_cache(Path(folder), manifests[plan].identity) is None]
    with ExitStack() as stack:
        branches, session = [], Session(decoder, progress)
        for plan in missing:
            path = cache_path(Path(folder), manifests[plan])
            if plan is missing[0]:
                check_texts(decoder, unique, specs[plan], path=path)
            writer = stack.enter_context(open_store(path, manifests[plan]))
            extraction = Extraction(decoder, unique, specs[plan], writer, session)
            branches.append(_Branch(extraction, plan, route_of(plan, n_blocks), writer.done_rows()))
        # A store that was started with another batching is finished by itself below.
        branches = [branch for branch in branches if branch.extraction.batching == branches[0].extraction.batching]
        if branches:
            wiring = stack.enter_context(masks_in_force(decoder, branches[0].plan.kinds(n_blocks)))
            _fill(decoder, wiring, branches)
    caches = [
        find_cache(Path(folder), manifests[plan].identity)
        or extract_latents(decoder, unique, spec=specs[plan], folder=folder)
        for plan in plans
    ]
    if spec.store_texts:
        for cache in caches:
            keep_texts(cache.path, unique)
    warn_truncated(caches[0])
    return caches


def extract_views(
    decoder: Decoder,
    texts: Iterable[str | JoinedText],
    *,
    spec: ExtractionSpec,
    folder: str | Path = "caches",
    progress: ExtractionProgress | None = None,
) -> LatentCache:
    """Extract views as `extract_latents` does, in one process; those that differ in their plans alone are swept."""
    texts = list(texts)
    unique = unique_texts(texts)
    identities = {name: describe_extraction(decoder, unique, view).identity for name, view in spec.readings.items()}
    missing = {name: spec.readings[name] for name in spec.views if find_cache(Path(folder), identities[name]) is None}
    under: dict[ExtractionSpec, list[MaskPlan]] = {}
    for one, _ in join_readings(missing):
        under.setdefault(one.with_plan(parse_plan("causal")), []).append(one.mask_plan)
    for one, plans in under.items():
        has_reba = any(name in REBA for name in (*one.poolings, *one.words.poolings))
        if len(plans) > 1 and not has_reba and not any(plan.has_tail for plan in plans):
            sweep_latents(decoder, unique, plans, spec=one, folder=folder, progress=progress)
    return extract_latents(decoder, texts, spec=spec, folder=folder, progress=progress)


def _sweep_views(
    decoder: Decoder,
    texts: Sequence[str | JoinedText],
    plans: Sequence[MaskPlan],
    *,
    spec: ExtractionSpec,
    folder: str | Path,
    progress: ExtractionProgress | None,
) -> list[LatentCache]:
    """Sweep each view over the plans; one that has a plan of its own is extracted once for all of them."""
    points = [spec.with_plan(plan).readings for plan in plans]
    swept: dict[str, list[LatentCache]] = {}
    for name, view in spec.readings.items():
        if any(point[name].plan != plan.text for point, plan in zip(points, plans, strict=True)):
            one = extract_latents(decoder, texts, spec=points[0][name], folder=folder, progress=progress)
            swept[name] = [one] * len(plans)
        else:
            swept[name] = sweep_latents(decoder, texts, plans, spec=view, folder=folder, progress=progress)
    return [ViewCache({name: caches[k] for name, caches in swept.items()}) for k in range(len(plans))]


def _fill(decoder: Decoder, wiring: Wiring, branches: list[_Branch]) -> None:
    certificates = []
    for branch in branches:
        wiring.plan.kinds = list(branch.plan.kinds(len(decoder.blocks)))
        with rest_in_force(decoder, wiring, branch.plan):
            certificates.append(branch.extraction.certify())
    first = branches[0].extraction
    was_done = np.stack([branch.was_done for branch in branches])
    # The word pooling that `auto` stands for differs between plans, so all are computed and each plan stores its own.
    poolings = list(dict.fromkeys(name for branch in branches for name in branch.extraction.manifest.poolings))

    def compute(batch: Batch, put: Put) -> None:
        needed: dict[Route, list[Extraction]] = {}
        for branch in branches:
            if not branch.was_done[batch.rows].all():
                needed.setdefault(branch.route, []).append(branch.extraction)

        def emit(route: Route, latents: Tensor) -> None:
            for extraction in needed[route]:
                chosen = [latents[:, poolings.index(name)] for name in extraction.manifest.poolings]
                extraction.take(batch, torch.stack(chosen, dim=1), put)  # a copy

        walk_plans(decoder, wiring, batch, list(needed), poolings=poolings, layers=first.manifest.layers, emit=emit)

    session = first.session
    session.proofs += [partial(branch.prove, wiring) for branch in branches]
    frozen = session.fill(
        first.batches(np.asarray(was_done.all(axis=0))), compute, n_rows=was_done.size, n_done=int(was_done.sum())
    )
    for branch, certificate in zip(branches, certificates, strict=True):
        proved = {"frozen": frozen, "batches": branch.extraction.proof.result, "swept_with": len(branches)}
        branch.extraction.writer.write_certificate(certificate | proved)
