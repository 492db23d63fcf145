"""The encoder that a run, sweep or search ends with: the plan, template, pooling, layer and transform it chose."""

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from extract import registry as gate
from extract.decoders.decoder import Decoder
from extract.decoders.decoder_spec import DecoderSpec
from extract.errors import HeadError, unknown_name
from extract.inputs.template import DEFAULTS, InputTemplate
from extract.masks.mask_plan import parse_plan
from extract.records import with_values
from extract.registry import import_own, require_recorded
from extract.run.embed import embed_texts
from extract.run.extraction_spec import ExtractionSpec
from probes.heads.layer_head import load_head, only_chosen, saved_channels
from probes.latents.text_latents import Transform
from probes.report.scores import label_of, read_plans
from probes.runs.config_file import with_settings
from probes.runs.folder import UNREADABLE, RunFolder, no_run
from probes.runs.grid import digest_fit
from probes.runs.predict import list_code, read_run_folder
from probes.runs.task_kinds import KINDS

if TYPE_CHECKING:
    from probes.fitting.saved_fits import FittedModule, SavedHead
    from probes.heads.result import HeadResult


@dataclass(frozen=True, eq=False)
class ChosenEncoder:
    """How texts become vectors.

    Attributes:
        head: The head whose choice it is.
        decoder: The decoder.
        spec: The extraction, of one layer and one pooling; of the view that was chosen where there are views.
        read_out: What is done to the latents, fitted on train; None where nothing is.
    """

    head: str
    decoder: DecoderSpec
    spec: ExtractionSpec
    read_out: Transform | None

    @property
    def layer(self) -> str:
        """The layer."""
        return self.spec.layers[0]

    @classmethod
    def of(cls, folder: str | Path, *, head: str = "", allow_code: str | Iterable[str] = ()) -> "ChosenEncoder":
        """Read what a head of a finished run, sweep or search chose; the best of those that read one layer if empty.

        Raises:
            HeadError: No such folder, a run on words, or a head that reads several layers together.
            UnknownNameError: No such head in it.
        """
        with gate.allow_code(allow_code):
            run = RunFolder(Path(folder))
            if run.values["what"] == "run":
                read_run_folder(run)
            else:
                _import_code(run)
            try:
                return cls._read(run, head)
            except UNREADABLE as error:
                raise no_run(run.path, error) from error

    @classmethod
    def _read(cls, run: RunFolder, head: str) -> "ChosenEncoder":
        if KINDS[run.values["kind"]].reads_words:
            raise HeadError(
                f"{str(run.path)!r} is on words, and an encoder reads whole texts; give a run or sweep on those."
            )
        choices = dict(_choices(run))
        if head and head not in choices:
            raise unknown_name("head", head, choices)
        of_one = {name: choice for name, choice in choices.items() if choice[1].chosen.get("layer")}
        name = head or max(of_one, key=lambda name: of_one[name][1].selection_score, default="")
        if name not in of_one:
            allowed = ", ".join(of_one) or "none of its heads; run one that chooses a layer, as layer-cosine"
            raise HeadError(
                f"head {name or next(iter(choices))!r} of {str(run.path)!r} reads several layers together, which are "
                f"no vector of a text; allowed: {allowed}."
            )
        place, result = of_one[name]
        spec, decoder, fitted = _find_point(run, place)
        saved = only_chosen(_find_head(run, result, place, spec, fitted), result.chosen)
        [(pooling, layer)] = saved_channels(saved.record)
        if spec.views:
            spec = spec.readings[pooling]
            pooling = spec.poolings[0]
        spec = replace(spec, layers=(layer,), poolings=(pooling,), batch_tokens=None)
        give = getattr(saved.head, "read_out", None)  # what compares texts transforms them first
        read_out: Transform | None = None if give is None else give()
        return cls(name, decoder, spec, None if read_out is None or read_out.name == "none" else read_out)


COST_TEXTS = tuple("The river rose above the lower bridge overnight. " * n for n in (1, 2, 3))
COST_TRIALS = 3


def relative_cost(decoder: Decoder, spec: ExtractionSpec) -> float:
    """Measure how much longer texts take than as the plain mean of the final norm: the best of a few trials each."""
    seconds = []
    for one in (ExtractionSpec(layers=("final_norm",)), spec):
        times = []
        for _ in range(COST_TRIALS + 1):  # the first one warms up
            started = time.perf_counter()
            embed_texts(decoder, COST_TEXTS, spec=one)
            times.append(time.perf_counter() - started)
        seconds.append(min(times[1:]))
    return seconds[1] / seconds[0]


@dataclass(frozen=True)
class _Place:
    """Where a choice was made: a plan, and of a sweep over axes the whole point."""

    plan: str
    point: Mapping[str, str] = field(default_factory=dict)


def _choices(run: RunFolder) -> "Iterable[tuple[str, tuple[_Place, HeadResult]]]":
    """Give the place and the result of every head, where it was chosen."""
    if run.values["what"] == "run":
        return [(result.name, (_Place(plan), result)) for plan, result in run.results]
    chosen = read_plans(run.values).chosen
    return [(slot, (_Place(choice.plan.text, choice.point), choice.result)) for slot, choice in chosen.items()]


def _find_point(run: RunFolder, place: _Place) -> tuple[ExtractionSpec, DecoderSpec, str]:
    """Find what was extracted at a place, of which decoder, and of a sweep over axes the digest of what was fitted."""
    if run.values["what"] == "run":
        return run.spec, run.decoder, ""
    if not place.point:
        return run.spec.with_plan(parse_plan(place.plan)), run.decoder, ""
    config = run.config  # what is on record as its default was not given, so that the point's template decides it
    told = {key: value for key, value in config.extraction.template.settings().items() if value != DEFAULTS[key]}
    told |= run.settings["sweep"].get("typed", {})
    config = replace(config, extraction=with_values(config.extraction, template=InputTemplate(**told)))
    over = run.settings["sweep"]["over"]
    settings = {key: value for axis, name in place.point.items() for key, value in over[axis][name].items()}
    at = with_settings(config, settings, "sweep")
    return at.extraction, at.decoder, digest_fit(at.check_heads(), run.values["task"]["digest"])


def _find_head(
    run: RunFolder, result: "HeadResult", place: _Place, spec: ExtractionSpec, fitted: str
) -> "SavedHead[FittedModule]":
    """Load the saved head of a run, or of a place of a sweep: of several, as a search fits on parts, the last one.

    Points of a sweep over axes may differ in what is fitted alone, which the name of the folder of their heads tells.
    """
    if run.values["what"] == "run":
        return load_head(run.heads[result.name][0])
    at = f"*-{fitted}" if fitted else "*"
    paths = sorted((run.path / "heads").glob(f"{at}/{result.name}/**/head.json"), key=lambda path: path.stat().st_mtime)
    heads = [load_head(path.parent) for path in paths]
    matches = [saved for saved in heads if saved.record.latents.get("plan") == place.plan]
    if place.point:
        matches = [saved for saved in matches if saved.record.pooling == result.pooling and _reads(saved, spec)]
    if not matches:
        where = f"at the point {label_of(place.point)!r}" if place.point else f"under the plan {place.plan!r}"
        raise HeadError(
            f"head {result.name!r} {where} is not among the saved heads of {str(run.path)!r}; run it again."
        )
    return matches[-1]


def _reads(saved: "SavedHead[FittedModule]", spec: ExtractionSpec) -> bool:
    """Whether a head was fitted on latents of the template of an extraction."""
    recorded = {key: value for key, value in saved.record.latents["template"].items() if key != "window"}
    return bool(recorded == json.loads(json.dumps(spec.template.to_dict())))


def _import_code(run: RunFolder) -> None:
    """Import the custom code that a sweep or search recorded, and no other that it names."""
    try:
        custom = run.values.get("own", {})
        require_recorded(custom, list_code(run))
        import_own(custom, folder=run.path)
    except UNREADABLE as error:
        raise no_run(run.path, error) from error
