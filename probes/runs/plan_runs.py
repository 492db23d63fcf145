"""A search for a mask plan, and what it shares with sweeps: fitting the heads of a configuration on one plan."""

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from extract.decoders.decoder import Decoder, load_decoder
from extract.errors import CacheIncompleteError, ConfigError, HeadError
from extract.inputs.joined_text import JoinedText
from extract.masks.mask_plan import CAUSAL, MaskPlan
from extract.run.extraction import describe_extraction, unique_texts
from extract.run.shards import CachePart, compose_cache, sweep_cost, sweep_latents
from extract.store.cache import LatentCache, cache_path
from extract.store.manifest import Manifest
from probes.data.task import Task
from probes.fitting.fit_options import find_protocol
from probes.heads.result import HeadResult
from probes.report.scores import (
    BaselineScores,
    PlanChoice,
    PlanGain,
    PlanScores,
    PlansScores,
    SearchCost,
    SearchTrial,
)
from probes.report.write import write_plans
from probes.runs.folder import name_sweep, open_folder
from probes.runs.plan_search import PlanSpace, Search, Trial, draw_rows, require_search, search_plans, space_of
from probes.runs.run import (
    RunResult,
    check_heads,
    evaluate_heads,
    lead_over_plan,
    make_context,
    make_header,
    score_baselines,
)
from probes.runs.run_config import RunConfig, describe_sources, load_run_task
from probes.runs.task_kinds import KINDS
from probes.runs.watcher import SILENT, Watcher


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
        with words is one unit with its windows; so is what several templates or views read: no cache of its own.
        """
        spec = self.config.extraction
        if KINDS[self.config.task.kind].reads_words or len(spec.members) > 1 or spec.views:
            return self._sweep(list(plans), unique_texts(task.texts()))
        texts = [text for text in unique_texts(task.texts()) if isinstance(text, str)]
        alike: dict[int, list[MaskPlan]] = {}
        for plan in plans:
            alike.setdefault(self._find(plan, texts), []).append(plan)
        for group in alike.values():
            self._grow(group, texts)
        return [self.latest[plan].cache for plan in plans]

    def _find(self, plan: MaskPlan, texts: list[str]) -> int:
        """Look for a whole cache of the texts, and count those that the plan's latest cache holds."""
        path = self._path(plan, texts)
        if path.exists():
            with suppress(CacheIncompleteError):
                self.latest[plan] = CachePart(LatentCache(path), texts)
        latest = self.latest.get(plan)
        return 0 if latest is None else len(set(latest.texts) & set(texts))

    def _grow(self, plans: list[MaskPlan], texts: list[str]) -> None:
        latest = self.latest.get(plans[0])
        had = set(latest.texts) if latest else set()
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
                    cache.path.unlink()  # its rows are in the grown one

    def _describe(self, plan: MaskPlan, texts: list[str]) -> Manifest:
        return describe_extraction(self.decoder, texts, self.config.extraction.with_plan(plan))

    def _path(self, plan: MaskPlan, texts: list[str]) -> Path:
        return cache_path(Path(self.config.caches), self._describe(plan, texts))

    def _sweep(self, plans: list[MaskPlan], texts: Sequence[str | JoinedText]) -> list[LatentCache]:
        progress = self.watcher.extraction(f"sweeping {len(plans)} plans over {len(texts):,} texts")
        return sweep_latents(
            self.decoder, texts, plans, spec=self.config.extraction, folder=self.config.caches, progress=progress
        )


def load_for_plans(config: RunConfig) -> Task:
    """Load the task of a configuration, cut as the protocol says, that is to be scored under many plans."""
    refuse_random_decoder(config)
    task = load_run_task(config)
    check_heads(config, task, chooses_plan=True)
    return task


def refuse_random_decoder(config: RunConfig) -> None:
    """Refuse the baseline that only runs have."""
    if config.random_decoder:
        raise ConfigError(
            "random_decoder is true, but a sweep has no such baseline; leave it out, and run the best plan with it."
        )


def require_unread_test(config: RunConfig) -> None:
    """Refuse a protocol that fits no head without test, where plans are to be chosen before test is read."""
    if find_protocol(config.protocol).selection == "test":
        raise ConfigError(
            f"protocol {config.protocol!r} chooses epochs on test, which is read for chosen plans alone; use protocol "
            "icecore, or `icecore sweep --test all`, which reads test for every plan."
        )


def evaluate_plan(
    config: RunConfig, task: Task, plan: MaskPlan, cache: LatentCache, folder: Path, *, adds_zero_shot: bool = True
) -> PlanScores:
    """Fit the heads of a configuration on the cache of one plan, which holds every text of the task, or a part of it.

    The fitted heads stay in `folder`. Unless `adds_zero_shot` is false, the head of the kind that needs no training is
    fitted beside them.
    """
    kind = KINDS[config.task.kind]
    beside = kind.zero_shot_head if adds_zero_shot else ""
    if beside:
        config = replace(config, heads={**{beside: config.heads.get(beside)}, **config.heads})
    heads = evaluate_heads(config, make_context(config, task, cache, folder, has_details=False))
    zero_shot = kind.zero_shot(heads[beside]) if beside else {}
    return PlanScores(plan, cache.path.name, cache.certificate, heads, zero_shot)


def heads_folder(folder: Path, cache: LatentCache) -> Path:
    """Name the folder of the heads that are fitted on a cache."""
    return folder / "heads" / cache.manifest.short_id


def finite_score(row: PlanScores, head: str) -> float:
    """Return the validation score of a plan; refuse one by which plans cannot be compared.

    It is no number where there was nothing to choose on, or where the head predicts one constant.
    """
    score = row.heads[head].selection_score
    if not math.isfinite(score):
        raise HeadError(
            f"the score of head {head!r} under plan {row.plan.text!r} is {score}, by which no plan can be chosen; give "
            "the task a validation split or the head several layers or Cs; leave the plan out if it alone has no score."
        )
    return score


def causal_row(rows: Iterable[PlanScores]) -> PlanScores | None:
    """Find the causal plan, if it is among them."""
    return next((row for row in rows if row.plan.text == CAUSAL), None)


def describe_choices(chosen: Mapping[str, PlanScores], default: PlanScores | None) -> dict[str, PlanChoice]:
    """Describe what was chosen for every head, and what it gained on test over the default; test decides nothing."""
    return {
        head: PlanChoice(row.plan, row.heads[head], _gain(row.heads[head], head, default))
        for head, row in chosen.items()
    }


def with_leads(
    choices: Mapping[str, PlanChoice], default: PlanScores | None, *, task: Task, config: RunConfig
) -> dict[str, PlanChoice]:
    """Add the paired interval of every gain over another plan."""
    compare = partial(lead_over_plan, task=task, report=KINDS[config.task.kind].report, n_resamples=config.bootstrap)
    return {
        name: choice
        if default is None or choice.gain is None or choice.plan == default.plan
        else replace(choice, lead=compare(choice.result, default.heads[name]))
        for name, choice in choices.items()
    }


def _gain(result: HeadResult, head: str, default: PlanScores | None) -> PlanGain | None:
    if default is None or "test" not in result.summary:
        return None
    before = default.heads[head].mean("test", result.metric)
    return PlanGain(result.metric, default.plan.text, before, result.mean("test"))


def headline(row: PlanScores) -> str:
    """Return the validation scores of a plan in one line."""
    parts = [f"{name} {100 * result.selection_score:.1f}" for name, result in row.heads.items()]
    if row.zero_shot:
        parts.insert(0, f"zero-shot validation Spearman {100 * row.zero_shot['validation']['spearman']:.1f}")
    return ", ".join(parts)


def run_search(
    config: RunConfig,
    plans: Sequence[MaskPlan],
    *,
    strategy: str,
    budget: float = 0.25,
    watcher: Watcher = SILENT,
    command: str = "",
) -> RunResult[PlansScores]:
    """Search plans for the one that the first head of a configuration is best with, then fit every head on it.

    `budget` is the most that choosing may compute, as a share of sweeping all plans over train and validation. The
    scores hold every trial with its cost, the chosen plan on the whole task, and the causal plan beside it where it was
    tried. What is cached or fitted stays after an error.
    """
    require_search(strategy, budget)
    require_unread_test(config)
    task = load_for_plans(config)
    decoder = load_decoder(config.decoder, report=watcher.say)
    sweep_cost(plans, len(decoder.blocks))  # refuses plans that cannot share blocks
    judged = task.without_test()
    folds = int((next(iter(config.heads.values())) or {}).get("folds", 5))
    fewest = KINDS[config.task.kind].fewest_rows(judged, folds)
    space = space_of(judged, tuple(plans), n_blocks=len(decoder.blocks), fewest=fewest)
    settings = {"search": strategy, "budget": budget, "plans": [plan.text for plan in plans]}
    name, values = name_sweep(config, "search", settings)
    folder = open_folder(config.runs, name, values, sources=describe_sources(config))
    caches = GrowingCaches(decoder, config, watcher)
    scorer = _TrialScores(config, judged, space, caches, folder)
    search = search_plans(strategy, space, scorer, budget=budget)
    watcher.say(f"{search.chosen.text} was found for {search.share:.2f} of what all {len(plans)} plans would cost")
    rows = _on_everything(config, task, search, caches, folder)
    default = causal_row(rows)
    choices = describe_choices(dict.fromkeys(config.heads, rows[0]), default)
    chosen = with_leads(choices, default, task=task, config=config)
    baselines = score_plan_baselines(config, task, chosen, watcher)
    described = decoder.description.to_dict()
    scores = PlansScores(
        make_header(config, "search", folder, command=command, decoder=described, task=task.describe()),
        test_read=" and ".join(row.plan.text for row in rows) if "test" in task.splits else "no plan",
        plans=tuple(rows),
        chosen=chosen,
        search=describe_search(search, space, strategy=strategy, budget=budget, by=scorer.head),
        baselines=baselines,
    )
    write_plans(folder, scores, KINDS[config.task.kind].report, formats=config.figures)
    return RunResult(folder, scores)


def score_plan_baselines(
    config: RunConfig, task: Task, chosen: Mapping[str, PlanChoice], watcher: Watcher
) -> dict[str, BaselineScores]:
    """Score the baselines of a task, and the leads of the heads on their chosen plans."""
    watcher.say("baselines, which need no decoder")
    kind, heads = KINDS[task.kind], {name: choice.result for name, choice in chosen.items()}
    return score_baselines(kind.baselines(task), heads, task=task, report=kind.report, n_resamples=config.bootstrap)


class _TrialScores:
    """Scores the plans of a trial with the first head, on rows of train and validation."""

    def __init__(self, config: RunConfig, judged: Task, space: PlanSpace, caches: GrowingCaches, folder: Path) -> None:
        self.head, options = next(iter(config.heads.items()))
        self.config = replace(config, heads={self.head: options})
        self.judged, self.space, self.caches, self.folder = judged, space, caches, folder

    def __call__(self, trial: Trial) -> list[float]:
        part = draw_rows(self.judged, trial.n_rows)
        say, n_texts = self.caches.watcher.say, self.space.n_texts(trial.n_rows)
        say(f"{len(trial.plans)} plans on at most {trial.n_rows:,} rows per split ({n_texts:,} texts)")
        scores = []
        for plan, cache in zip(trial.plans, self.caches.obtain(trial.plans, part), strict=True):
            row = evaluate_plan(self.config, part, plan, cache, heads_folder(self.folder, cache))
            scores.append(row.heads[self.head].selection_score)
            say(f"{plan.text}: {self.head} {100 * scores[-1]:.1f}")
        if not any(map(math.isfinite, scores)):  # a search ranks a plan without a score last, but must have one score
            finite_score(row, self.head)
        return scores


def _on_everything(
    config: RunConfig, task: Task, search: Search, caches: GrowingCaches, folder: Path
) -> list[PlanScores]:
    """Fit every head on the chosen plan, and on the causal one beside it: the only look at test."""
    causal = [plan for step in search.steps for plan in step.trial.plans if plan.text == CAUSAL]
    plans = tuple(dict.fromkeys([search.chosen, *causal]))
    rows = []
    for plan, cache in zip(plans, caches.obtain(plans, task), strict=True):
        rows.append(evaluate_plan(config, task, plan, cache, heads_folder(folder, cache)))
        caches.watcher.say(f"{plan.text} on all rows: {headline(rows[-1])}")
    return rows


def describe_search(search: Search, space: PlanSpace, *, strategy: str, budget: float, by: str) -> SearchCost:
    """Describe a search, for a record of results."""
    trials = [
        SearchTrial(
            step.trial.n_rows,
            space.n_texts(step.trial.n_rows),
            step.cost,
            {plan.text: score for plan, score in zip(step.trial.plans, step.scores, strict=True)},
        )
        for step in search.steps
    ]
    return SearchCost(
        strategy,
        budget,
        by,
        len(space.plans),
        space.n_texts(space.n_rows),
        search.cost,
        search.full_cost,
        search.share,
        tuple(trials),
    )
