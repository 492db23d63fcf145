"""`icecore run` and `icecore sweep`: find what is finished without torch, and compute what is missing."""

import sys
from functools import partial
from pathlib import Path

import yaml

from extract.errors import ConfigError
from extract.files import read_file, write_file
from extract.masks.mask_plan import (
    MaskPlan,
    parse_counts,
    parse_plan,
    plans_over_k,
    plans_over_k_and_k0,
    plans_over_windows,
)
from extract.registry import PLACE, allow_code
from probes.cli.commands import RunArgs, SweepArgs
from probes.cli.main import leave_at_once, stop_signals
from probes.cli.screen import show, show_run, show_task, watcher_of
from probes.report.blocks import describe_point
from probes.report.scores import PlansScores, label_of, read_plans
from probes.runs.config_file import dump_config
from probes.runs.folder import command_line, find_finished
from probes.runs.grid import Grid, grid_of, plan_grid, read_search
from probes.runs.run_config import RunConfig, load_run_task


def run_command(args: RunArgs) -> int:
    watcher = watcher_of(args)
    if args.dry_run:
        task = load_run_task(args.config)
        show_task(task)  # before torch and the decoder are loaded
        show(_heads_and_folder(args.config))
        with stop_signals(leave_at_once):
            from probes.cli.run_commands import estimate

        return estimate(args.config.check_heads(), watcher, task=task)
    finished = find_finished(args.config)
    if finished is not None:
        folder, scores = finished.path, finished.scores
        watcher.say(f"{folder} is finished, and nothing that decides it has changed: nothing is computed")
    else:
        with stop_signals(leave_at_once):
            from probes.runs.run import run

        result = run(args.config.check_heads(), watcher=watcher, command=command_line())
        folder, scores = result.folder, result.record
    if args.data is not None:
        path = folder.with_name(f"{args.config.name}.yaml")
        text = dump_config(args.data, path, args.config)
        if path.exists() and not _has_settings(path, text):
            watcher.say(f"{path} differs from this run, and is left as it is")
        elif not path.exists():
            write_file(path, text)
    show_run(folder, scores)
    return 0


def _has_settings(path: Path, text: str) -> bool:
    """Whether a file has the settings of a YAML text, whatever its comments."""
    try:
        return bool(yaml.safe_load(read_file(path)) == yaml.safe_load(text))
    except yaml.YAMLError:
        return False


def _heads_and_folder(config: RunConfig) -> str:
    seeds = f"seed{'s' * (len(config.seeds) > 1)} {', '.join(map(str, config.seeds))}"
    return (
        f"heads     {', '.join(config.heads)}; {seeds}\n"
        f"results   {Path(config.runs) / config.name}, or beside it where that is another run"
    )


def sweep_command(args: SweepArgs) -> int:
    watcher = watcher_of(args)
    grid = choose_grid(args)
    strategy, budget = read_search(args.config, args.search, args.budget)
    if args.dry_run:
        from probes.runs.sweep_caches import foresee_misfits
        from probes.runs.sweep_run import load_checked

        args.config.check_heads()
        misfits = foresee_misfits(grid, load_checked(grid.check_heads(), args.test, strategy, budget))
        for point in grid.points:
            label = point.plan.text if grid.is_of_plans else point.label
            sys.stdout.write(f"{label}: {misfits[point.label]}\n" if point.label in misfits else f"{label}\n")
        return 0
    search = {"search": strategy, "budget": budget} if strategy else {}
    finished = find_finished(args.config, grid, test=args.test, removes=args.remove_decoders, **search)
    if finished is not None:
        watcher.say(f"{finished.path} is finished, and nothing that decides it has changed: nothing is computed")
        _show_plans(finished.path, read_plans(finished.values))
        return 0
    with stop_signals(leave_at_once):
        from probes.runs.sweep_run import run_grid, search_grid

    run = partial(search_grid, strategy=strategy, budget=budget) if strategy else run_grid
    result = run(
        args.config.check_heads(),
        grid.check_heads(),
        test=args.test,
        removes_decoders=args.remove_decoders,
        watcher=watcher,
        command=command_line(),
    )
    _show_plans(result.folder, result.record)
    return 0


def choose_grid(args: SweepArgs) -> Grid:
    """Work out the grid that the flags of the command, or else the section `sweep` of its file, ask for."""
    options = {"reference": args.reference, "choose_on": args.choose_on}
    options |= {"choose_by": args.choose_by} if args.choose_by else {}
    flags = (args.plans, args.kinds, args.k, args.windows)
    if any(flags) or not (args.over or args.ratios or args.config.sweep):
        section = args.config.sweep
        in_file = {"choose_by": str(section["choose_by"])} if "choose_by" in section else {}
        return plan_grid(args.config, choose_plans(args), **{**in_file, **options})
    over = [*args.over, *[f"ratio={args.ratios}"] * bool(args.ratios)]
    with allow_code(PLACE.findall(" ".join(over))):  # code that is typed is the user's own
        return grid_of(args.config, over, **options)


def _show_plans(folder: Path, scores: PlansScores) -> None:
    for name, choice in scores.chosen.items():
        best = choice.result
        point = best.chosen["layer"] if "layer" in best.chosen else describe_point(best.chosen)
        point = f" ({point})" * bool(point)
        line = f"{name}: best on validation {label_of(choice.point) or choice.plan.text}{point}"
        line += "".join(
            f", {split} {best.metric} {100 * best.mean(split):.1f}"
            for split in ("validation", "test")
            if split in best.summary
        )
        if choice.gain is not None:
            line += f" ({100 * choice.gain.gain:+.1f} over {choice.gain.over})"
        show(line)
    for failure in (*scores.failed, *(scores.grid.failed if scores.grid else ())):
        show(f"failed: {label_of(failure.point)}: {failure.why}")
    show(f"{folder}/report.html holds every point and the figures, summary.md the same as Markdown.")


def choose_plans(args: SweepArgs) -> list[MaskPlan]:
    """Work out the plans, each once, that the flags of the command ask for; refuse flags that do not say which."""
    kinds = [kind.strip() for kind in args.kinds.split(",") if kind.strip()]
    if args.plans:
        return list(dict.fromkeys(parse_plan(text) for text in args.plans.split(";") if text.strip()))
    if args.windows and args.read and kinds:
        sizes, reads = parse_counts(args.windows), parse_counts(args.read)
        plans = [plan for kind in kinds for plan in plans_over_windows(kind, sizes, reads)]
    elif args.k0 and args.k:
        plans = plans_over_k_and_k0(parse_counts(args.k), parse_counts(args.k0))
    elif kinds and args.k:
        plans = plans_over_k(kinds, parse_counts(args.k))
    else:
        raise ConfigError(
            "the sweep does not say what to vary; allowed: --over KEY=A,B for any key, as "
            "--over extraction.plan=causal,nosink-bidirectional:10; for plans also --plans 'PLAN;PLAN', --kinds with "
            "--k, --k with --k0, or --kinds with --windows and --read."
        )
    if not plans:
        raise ConfigError("the sweep has no plan left: every k0 is above k, or every window larger than its block.")
    return plans
