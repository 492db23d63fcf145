"""`icecore sweep`: one configuration under many plans, or under those of them that a search looks at."""

import sys
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from extract.errors import ConfigError
from extract.masks.grid import parse_counts, plans_over_k, plans_over_k_and_k0, plans_over_windows
from extract.masks.plan import MaskPlan, parse_plan


def sweep_command(found: SimpleNamespace) -> int:
    """Extract a task under many plans, sharing what they have in common, and compare heads on each."""
    plans = choose_plans(vars(found))
    if found.dry_run:
        sys.stdout.write("".join(f"{plan.text}\n" for plan in plans))
        return 0
    # What has been wrong so far is said before torch is loaded.
    from probes.cli.screen import watcher_of
    from probes.plans.searching import run_search
    from probes.plans.sweeping import run_sweep
    from probes.runs.record import command_line

    watcher = watcher_of(found)
    if found.search:
        if found.test != "chosen":
            raise ConfigError(
                f"--test is {found.test!r}, but a search reads test for what it chose and for causal; leave --test or "
                "--search out."
            )
        how = {"strategy": found.search, "budget": found.budget}
        result = run_search(found.config, plans, **how, watcher=watcher, command=command_line())
    else:
        result = run_sweep(found.config, plans, test=found.test, watcher=watcher, command=command_line())
    _show(result)
    return 0


def _show(result: Any) -> None:
    from probes.cli.screen import show

    scores = result.record
    for name, choice in scores.chosen.items():
        found = choice.result
        point = f" ({found.chosen['layer']})" if "layer" in found.chosen else ""
        line = f"{name}: best on validation {choice.plan.text}{point}"
        line += "".join(
            f", {split} {found.metric} {100 * found.mean(split):.1f}"
            for split in ("validation", "test") if split in found.summary
        )  # fmt: skip
        if choice.gain is not None:
            line += f" ({100 * choice.gain.gain:+.1f} over {choice.gain.over})"
        show(line)
    show(f"{result.folder}/report.html holds every plan and the figures, summary.md the same as Markdown.")


def choose_plans(flags: Mapping[str, Any]) -> list[MaskPlan]:
    """Work out the plans, each once, that the flags of the command ask for; refuse flags that do not say which."""
    kinds = [kind.strip() for kind in flags["kinds"].split(",") if kind.strip()]
    if flags["plans"]:
        return list(dict.fromkeys(parse_plan(text) for text in flags["plans"].split(";") if text.strip()))
    if flags["windows"] and flags["read"] and kinds:
        sizes, reads = parse_counts(flags["windows"]), parse_counts(flags["read"])
        found = [plan for kind in kinds for plan in plans_over_windows(kind, sizes, reads)]
    elif flags["k0"] and flags["k"]:
        found = plans_over_k_and_k0(parse_counts(flags["k"]), parse_counts(flags["k0"]))
    elif kinds and flags["k"]:
        found = plans_over_k(kinds, parse_counts(flags["k"]))
    else:
        raise ConfigError(
            "the sweep does not say its plans; allowed: --kinds with --k, --k with --k0, --kinds with --windows and "
            "--read, or --plans 'PLAN;PLAN'."
        )
    if not found:
        raise ConfigError("the sweep has no plan left: every k0 is above k, or every window larger than its block.")
    return found
