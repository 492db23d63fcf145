"""Commands about decoders: verify, attention, fetch, weights."""

from functools import partial
from pathlib import Path

import torch
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from extract.decoders.decoder import compare_weights, load_decoder
from extract.decoders.decoder_spec import DecoderSpec
from extract.errors import UsageError, printable
from extract.files import write_file
from extract.inputs.template import InputTemplate
from extract.masks.mask_rules import draw
from extract.wiring.certificate import check_batch_invariance, check_influence, influence, look_at_blocks
from extract.wiring.plan_wiring import plan_in_force
from extract.wiring.states import attention_maps
from probes.cli.commands import AttentionArgs, VerifyArgs, WeightsArgs
from probes.cli.screen import open_output, read_lines, show, show_written
from probes.report.decoder_figures import NAMES, draw_maps, draw_sink_mass, draw_weights
from probes.report.safe_csv import write_frame
from probes.report.style import Album, on_panel
from probes.runs.run_config import figure_formats

# --- Plans on a decoder ---


TEXTS = (
    "The river froze early that year, and the ferry stayed on the far bank until spring.",
    "She opened the old ledger and found her grandfather's name on the very first page.",
)


def verify_command(args: VerifyArgs) -> int:
    """Certify a mask plan on a decoder and print the mask that was measured at every block."""
    plan, picture = args.plan, Path(args.picture)
    formats = figure_formats(picture.suffix.removeprefix(".")) if args.picture else ()
    decoder = load_decoder(DecoderSpec(args.decoder, device=args.device))
    with plan_in_force(decoder, plan) as wiring:
        check_influence(decoder, plan)
        drift = check_batch_invariance(decoder)
        if wiring is None:  # transformers' own path, which shows what reaches a layer and no mask of a block
            names, masks = list(decoder.layers), list(influence(decoder, n_tokens=args.tokens))
        else:
            calls = look_at_blocks(decoder, wiring, n_tokens=args.tokens)
            names = [decoder.layers[call.block + 1] + " again" * call.is_again for call in calls]
            masks = [call.measured(decoder.description.dtype) for call in calls]
    for name, matrix in zip(names, masks, strict=True):
        show(f"{name}\n{draw(matrix)}")
    proved = "" if wiring is None else f" in {len(masks)} blocks, by themselves and in every head,"
    show(
        f"plan {plan.text} took effect on {decoder.description.name}{proved} at {len(decoder.layers)} layers; "
        f"drift with padding right {drift.right:.1e}, left {drift.left:.1e} (allowed {drift.allowed:g})"
    )
    if args.picture:
        album = Album(open_output(picture.parent), formats)
        title = f"Measured masks, {plan.text} on {decoder.description.name}"
        album.add(picture.stem, partial(draw_maps, label=""), torch.stack(masks), names, title=title)
    return 0


def attention_command(args: AttentionArgs) -> int:
    """Draw mean attention under a plan and print the attention on each of the first four tokens, block by block."""
    plan = args.plan
    texts = [line for line in read_lines(args.texts) if line.strip()] if args.texts else list(TEXTS)
    decoder = load_decoder(DecoderSpec(args.decoder, device=args.device))
    maps = attention_maps(decoder, texts, plan, template=InputTemplate(bos=args.bos))
    album = Album(open_output(Path(args.out)), args.figures)
    title, note = f"{plan.text} on {decoder.description.name}", f"mean over heads and {len(texts):,} texts"
    album.add(
        "attention",
        draw_maps,
        maps.maps,
        maps.blocks,
        title=f"Mean attention, {title}",
        note=f"{note}; one scale for all blocks",
    )
    album.add("sink_mass", draw_sink_mass, maps.sink_mass, note=note, title=f"Attention on the first tokens, {title}")
    for block, masses in zip(maps.blocks, maps.sink_mass.tolist(), strict=True):
        show(f"{block}  {'  '.join(f'{mass:.3f}' for mass in masses)}  {'#' * round(40 * masses[0])}")
    show(f"{album.folder}: {', '.join(file for files in album.drawn.values() for file in files)}")
    return 0


# --- Decoders ---


def weights_command(args: WeightsArgs) -> int:
    """Compare the weights of two checkpoints block by block; print a table, and write a frame and a figure."""
    checkpoints = [(args.decoder, args.adapter), (args.other or args.decoder, args.other_adapter)]
    if not args.other and args.adapter == args.other_adapter:
        raise UsageError(
            "OTHER is missing; give a second checkpoint, or --other-adapter for the first with an adapter."
        )
    one, other = (load_decoder(DecoderSpec(name, adapter=adapter, device="cpu")) for name, adapter in checkpoints)
    frame = compare_weights(one, other)
    described = (decoder.description for decoder in (one, other))
    names = " and ".join(f"{about.name}{'+' * bool(about.adapter)}{about.adapter}" for about in described)
    table = Table(title=printable(f"cosine of the weights of {names}"), box=SIMPLE)
    for column in ("layer", *NAMES.values(), "distance"):
        table.add_column(column, justify="left" if column == "layer" else "right")
    for layer, rows in frame.groupby("layer", sort=False):
        by_part = rows.set_index("part")
        cosines = (f"{by_part['cosine'][part]:.4f}" if part in by_part.index else "-" for part in NAMES)
        table.add_row(str(layer), *cosines, f"{by_part['distance']['block']:.4f}")
    Console(markup=False).print(table)
    show("distance: length of the difference of all weights over that of the first")
    if args.out:
        folder = open_output(args.out)
        write_file(folder / "weights.csv", write_frame(frame))
        album = Album(folder, args.figures)
        n = int(frame.loc[frame["part"] == "block", "n_parameters"].sum())
        album.add(
            "weights",
            on_panel(draw_weights),
            frame,
            title=f"Weights of {names}",
            note=f"{n:,} parameters; a block's matrices as one vector, norms left out",
        )
        show_written(folder, ("weights.csv",), album.drawn)
    return 0
