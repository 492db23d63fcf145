"""The commands `icecore adapt` and `icecore infill`."""

import time
from collections.abc import Callable

from rich.console import Console

from extract.decoders.decoder_spec import DecoderSpec
from extract.errors import printable
from extract.masks.mask_plan import parse_plan
from probes.adaptation.abilities import ROWS, SCORES, compare_scores, score_screen, verdicts, write_measured
from probes.adaptation.adapt import adapt
from probes.adaptation.infilling import DrawnSpans
from probes.adaptation.measuring import AbilityOptions, measure_abilities
from probes.adaptation.training import StepReport, ignore_step
from probes.cli.commands import AdaptArgs, InfillArgs
from probes.cli.screen import fit_line, open_output, show, show_written, watcher_of
from probes.report.page import PAGE
from probes.runs.watcher import short_time

SECONDS = 30.0
"""Between two lines on a screen that is no terminal."""


def adapt_command(args: AdaptArgs) -> int:
    """Adapt a decoder, and say where the adapter is and how to probe it."""
    report = ignore_step if args.quiet else _report(Console(stderr=True), is_verbose=args.verbose)
    adapted = adapt(args.config, say=watcher_of(args).say, report=report)
    show_written(adapted.folder, ("adapter_model.safetensors", "adaptation.json", "losses.csv", "held_out.csv"))
    show(adapted.verdict)
    adapters = ",".join((*args.config.decoder.adapters, str(adapted.folder)))  # those that it was trained upon first
    needs_spans = any(segment.kind.needs_spans for segment in parse_plan(args.config.plan).segments)
    plan = "bidirectional" if needs_spans else args.config.plan  # which hybrid is where there are no spans
    show(f"probe it with: icecore run CONFIG --decoder.adapter {adapters} --extraction.plan {plan}")
    return 0


def _report(console: Console, *, is_verbose: bool) -> Callable[[StepReport], None]:
    shown = 0.0
    is_line = console.is_terminal and not is_verbose

    def report(step: StepReport) -> None:
        nonlocal shown
        now = time.monotonic()
        parts = [f"step {step.step} of {step.steps}", *(f"{name} {loss:.3f}" for name, loss in step.losses.items())]
        parts += [f"held-out {step.held_out:.3f}"] * (step.held_out == step.held_out)
        parts += [f"{step.tokens_per_second:,.0f} tokens/s", f"{short_time(step.seconds_left)} left"]
        text = ", ".join(parts)
        if is_line:
            console.print(
                fit_line(text, max(console.width, 40) - 1), end="\r", highlight=False, soft_wrap=True, markup=False
            )
        elif is_verbose or step.step in (1, step.steps) or now - shown > SECONDS:
            console.print(printable(text), highlight=False, soft_wrap=True, markup=False)
            shown = now

    return report


# The command infill.


def infill_command(args: InfillArgs) -> int:
    """Measure what a decoder can do with text, print it, and write it where a folder is named."""
    shortest, longest = map(int, args.span_tokens.split("-"))
    options = AbilityOptions(
        plans=args.plans,
        texts=args.texts,
        column=args.column or "text",
        split=args.split,
        rows=args.rows,
        spans=DrawnSpans(args.spans, shortest, longest, args.seed),
        choices=args.choices,
        infillings=args.infillings,
        window=args.window,
        continuations=args.continuations,
        new_tokens=args.new_tokens,
        bos=args.bos,
        max_tokens=args.max_tokens,
    )
    folder = open_output(args.out) if args.out else None
    decoder = DecoderSpec(args.decoder, adapter=args.adapter or None, device=args.device)
    measured = measure_abilities(decoder, options, watcher=watcher_of(args))
    compared = compare_scores([measured.scores], [measured.scores.name])
    Console(markup=False).print(score_screen(compared))
    show("\n".join([*measured.scores.notes, *(f"{sentence}." for sentence in verdicts(compared))]))
    if folder is not None:
        drawn = write_measured(folder, measured, formats=args.figures)
        show_written(folder, (PAGE, "summary.md", SCORES, ROWS), drawn)
    return 0
