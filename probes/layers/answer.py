"""What was found, in words: which layers matter, with the uncertainty, and what a reader must know."""

from collections.abc import Sequence

import numpy as np

from probes.heads.parts import HeadParts
from probes.heads.result import HeadResult
from probes.layers.findings import HeadFindings, ViewCurve

FEW_UNITS = 100


def answer(found: HeadFindings) -> str:
    """Answer which layers matter: the set that holds the best, what the best alone lacks, and what is lost without it.

    Scores are times 100.
    """
    alone = found.curve("alone")
    if alone is None:
        return ""
    best, n = alone.layers.index(found.best), len(found.layers)
    score = f"{found.metric} {_percent(alone.values[best])}{_ends(alone, best)} on {found.split}"
    if len(found.best_set) == 1:
        first = f"Of {n} layers {found.best} is the best by itself, and no other can be told to be as good: {score}."
    elif len(found.best_set) == n:
        first = f"No layer can be told from the best, {found.best} ({score})."
    else:
        named = f"{describe_layers(found.best_set, found.layers)} ({len(found.best_set)} of {n} layers)"
        first = f"{named} cannot be told from the best, {found.best} ({score})."
    return " ".join(filter(None, [first, _joint(found), _few(found), _lost(found)]))


def _joint(found: HeadFindings) -> str:
    """Compare the readout of all layers with that of the first pick: the same probe, so that only layers differ."""
    greedy, gap = found.curve("greedy"), found.curve("greedy-gap")
    if greedy is None or gap is None:
        return ""
    whole = _percent(greedy.values[0] + gap.values[0])
    ends = f", {_percent(gap.low[0])} to {_percent(gap.high[0])}" if gap.low else ""
    one = f"{greedy.layers[0]} alone {_percent(greedy.values[0])}"
    return f"A readout of all layers has {whole}, one of {one} ({100 * gap.values[0]:+.1f}{ends})."


def _few(found: HeadFindings) -> str:
    gap, greedy = found.curve("greedy-gap"), found.curve("greedy")
    if gap is None or greedy is None:
        return ""
    enough = next((k for k, low in enumerate(gap.low) if low <= 0), None)
    if enough is None:
        return f"{len(gap.layers)} picked layers still lack {100 * gap.values[-1]:.1f} of what all have."
    if enough == 0:
        return f"One layer, {greedy.layers[0]}, cannot be told from all of them in that readout."
    picked = ", ".join(greedy.layers[: enough + 1])
    return f"{enough + 1} layers ({picked}) cannot be told from all of them ({_percent(greedy.values[enough])})."


def _lost(found: HeadFindings) -> str:
    without = found.curve("without") or found.curve("without-imputed")
    if without is None:
        return ""
    how = "refitted" if without.view == "without" else "with its mean in its place"
    worst = int(np.nanargmax(without.values))
    hurts = [layer for layer, low in zip(without.layers, without.low, strict=True) if low > 0]
    lost = f"{100 * without.values[worst]:.1f}{_ends(without, worst)}"
    if not hurts:
        return f"Leaving out any one layer loses nothing that can be told ({how}; at most {lost})."
    return f"Without {without.layers[worst]} it loses most, {lost} ({how})."


def describe_layers(layers: Sequence[str], every: Sequence[str]) -> str:
    """Name layers, runs of three or more by their ends.

    Example:
        >>> describe_layers(["b1", "b3", "b4", "b5"], ["b1", "b2", "b3", "b4", "b5"])
        'b1 and b3 to b5'
    """
    places = sorted(every.index(layer) for layer in layers)
    runs: list[list[int]] = []
    for place in places:
        if runs and place == runs[-1][-1] + 1:
            runs[-1].append(place)
        else:
            runs.append([place])
    names: list[str] = []
    for run in runs:
        names += [f"{every[run[0]]} to {every[run[-1]]}"] if len(run) > 2 else [every[place] for place in run]
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def warnings(parts: HeadParts, split: str, result: HeadResult) -> tuple[str, ...]:
    """Say what a reader of the findings must know, a sentence each."""
    found = []
    if split == "validation":
        found.append("The scored split is validation, which the run made its choices on, so scores are optimistic.")
    if result.is_optimistic:
        found.append(f"The head is optimistic: {result.optimistic_because}.")
    if parts.scorer.n_units < FEW_UNITS:
        found.append(f"Only {parts.scorer.n_units} {parts.scorer.unit} were scored, so the set of layers is wide.")
    unconverged = result.extras.get("convergence", {})
    if unconverged and unconverged["n_converged"] < unconverged["n_problems"]:
        missing = unconverged["n_problems"] - unconverged["n_converged"]
        found.append(f"{missing} of {unconverged['n_problems']} probes of the run did not converge.")
    return tuple(found)


def doubts(found: HeadFindings) -> tuple[str, ...]:
    """Say where the best layer is no better than labels that mean nothing, or than no decoder."""
    said = []
    for curve in (each for each in found.curves if each.view == "selectivity" and each.low):
        place = curve.layers.index(found.best)
        if curve.low[place] <= 0:
            said.append(
                f"At {found.best} the head is not told to be better than on control labels (by {curve.name}): "
                f"{100 * curve.values[place]:+.1f}{_ends(curve, place)}."
            )
    alone, baselines = found.curve("alone"), found.curve("baseline")
    if alone is not None and baselines is not None:
        score = alone.values[alone.layers.index(found.best)]
        for name, value in zip(baselines.layers, baselines.values, strict=True):
            if value >= score:
                said.append(f"The baseline {name}, without a decoder, has {_percent(value)}: no layer alone has more.")
    return tuple(said)


def _ends(curve: ViewCurve, place: int) -> str:
    if not curve.low or not np.isfinite(curve.low[place]):
        return ""
    return f" ({_percent(curve.low[place])} to {_percent(curve.high[place])})"


def _percent(value: float) -> str:
    return f"{100 * value:.1f}"
