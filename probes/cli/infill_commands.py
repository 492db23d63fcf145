"""The command infill."""

from rich.console import Console

from extract.decoders.decoder_spec import DecoderSpec
from probes.adaptation.abilities import ROWS, SCORES, compare_scores, score_screen, verdicts, write_measured
from probes.adaptation.infilling import DrawnSpans
from probes.adaptation.measuring import AbilityOptions, measure_abilities
from probes.cli.commands import InfillArgs
from probes.cli.screen import open_output, show, show_written, watcher_of
from probes.report.page import PAGE


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
