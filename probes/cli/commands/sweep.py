"""`icecore sweep`: one configuration under many plans, or under those of them that a search looks at."""

from collections.abc import Sequence

from rich.console import Console

from extract.errors import ConfigError
from extract.masks.grid import parse_counts, plans_over_k, plans_over_k_and_k0, plans_over_windows
from extract.masks.plan import MaskPlan, parse_plan
from probes.cli.parsing import Flags, read_arguments
from probes.cli.screen import screen_watcher, show
from probes.plans.searching import run_search
from probes.plans.sweeping import run_sweep
from probes.report.scores import PlansScores
from probes.runs.record import command_line
from probes.runs.run import RunResult

FLAGS: Flags = {
    "plans": (str, "", "plans themselves, with ';' between them"),
    "kinds": (str, "", "mask kinds with ',' between them, each swept over --k"),
    "k": (str, "", "converted blocks from the top, as 0-30 or 2,4,8"),
    "k0": (str, "", "with --k: of those, the top k0 nosink-bidirectional, the others bidirectional"),
    "windows": (str, "", "window sizes; with --kinds and --read: blocks (r - size, r] converted"),
    "read": (str, "", "blocks r at which windows end"),
    "search": (str, "", "do not score every plan on all rows: halving, or coordinate (with --k and --k0)"),
    "budget": (float, 0.25, "with --search: most that choosing may compute, as a share of the whole sweep"),
    "test": (str, "chosen", "plans that test is read for: chosen (and causal beside it), after choosing; or all"),
    "dry_run": (bool, False, "list the plans and what they cost; compute nothing"),
}


def sweep_command(argv: Sequence[str]) -> int:
    """Extract a task under many plans, sharing what they have in common, and compare heads on each."""
    parsed = read_arguments("sweep", argv, description=sweep_command.__doc__ or "", flags=FLAGS)
    plans = choose_plans(parsed.flags)
    if parsed.flags["dry_run"]:
        show("\n".join(plan.text for plan in plans))
        return 0
    watcher = screen_watcher(Console(stderr=True))
    if parsed.flags["search"]:
        if parsed.flags["test"] != "chosen":
            raise ConfigError(
                f"--test is {parsed.flags['test']!r}, but a search reads test for what it chose and for causal; leave "
                "--test or --search out."
            )
        how = {"strategy": parsed.flags["search"], "budget": parsed.flags["budget"]}
        result = run_search(parsed.config, plans, **how, watcher=watcher, command=command_line())
    else:
        result = run_sweep(parsed.config, plans, test=parsed.flags["test"], watcher=watcher, command=command_line())
    _show(result)
    return 0


def _show(result: RunResult) -> None:
    scores: PlansScores = result.record
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
    show(f"{result.folder}/summary.md holds every plan and the figures.")


def choose_plans(flags: dict[str, str]) -> list[MaskPlan]:
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
