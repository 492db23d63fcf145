"""`icecore verify` and `icecore attention`: proof and pictures of a mask plan on a decoder."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch
from jsonargparse import ArgumentParser

from extract.decoders.loading import load_decoder
from extract.decoders.spec import DecoderSpec
from extract.errors import ConfigError
from extract.inputs.template import InputTemplate
from extract.masks.kinds import draw
from extract.masks.plan import parse_plan
from extract.wiring.applied import plan_in_force
from extract.wiring.attention_maps import attention_maps
from extract.wiring.certificate import check_batch_invariance, check_influence, influence
from extract.wiring.isolation import N_TOKENS, measured_masks
from probes.cli.commands.score import read_lines
from probes.cli.parsing import make_parser, parse_command
from probes.cli.screen import show
from probes.report.figures.attention import draw_maps, draw_sink_mass
from probes.report.figures.formats import FORMATS, figure_formats
from probes.report.figures.style import Album

TEXTS = (
    "The river froze early that year, and the ferry stayed on the far bank until spring.",
    "She opened the old ledger and found her grandfather's name on the very first page.",
)


def verify_command(argv: Sequence[str]) -> int:
    """Certify a mask plan on a decoder and print the mask that was measured at every block."""
    parser = _parser("verify", verify_command.__doc__)
    parser.add_argument("--tokens", type=int, default=N_TOKENS, help="length of the row, in tokens")
    parser.add_argument("--picture", type=str, default="", help=f"file for the matrices: .{', .'.join(FORMATS)}")
    found = parse_command(parser, argv, usage="DECODER PLAN")
    plan, picture = parse_plan(found.plan), Path(found.picture)
    formats = figure_formats(picture.suffix.removeprefix(".")) if found.picture else ()
    decoder = load_decoder(DecoderSpec(found.decoder, device=found.device))
    with plan_in_force(decoder, plan) as wiring:
        certificate = {**check_influence(decoder, plan), **check_batch_invariance(decoder)}
        if wiring is None:  # transformers' own path, which shows what reaches a layer and no mask of a block
            names, masks = list(decoder.layers), list(influence(decoder, n_tokens=found.tokens))
        else:
            measured = measured_masks(decoder, wiring, n_tokens=found.tokens)
            names, masks = (
                [decoder.layers[call.block + 1] + " again" * call.is_again for call, _ in measured],
                [mask for _, mask in measured],
            )
    for name, matrix in zip(names, masks, strict=True):
        show(f"{name}\n{draw(matrix)}")
    proved = "" if wiring is None else f" in {certificate['n_calls']} blocks, by themselves and in every head,"
    show(
        f"plan {plan.text} took effect on {decoder.description.name}{proved} at {len(decoder.layers)} layers; "
        f"drift with padding right {certificate['right']:.1e}, left {certificate['left']:.1e} "
        f"(allowed {certificate['allowed']:g})"
    )
    if found.picture:
        album = Album(_writable(picture.parent), formats)
        title = f"Measured masks, {plan.text} on {decoder.description.name}"
        album.add(picture.stem, partial(draw_maps, label=""), torch.stack(masks), names, title=title)
    return 0


def attention_command(argv: Sequence[str]) -> int:
    """Draw mean attention under a plan and print the attention on each of the first four tokens, block by block."""
    parser = _parser("attention", attention_command.__doc__)
    parser.add_argument("--texts", type=str, default="", help="text file, a text a line; two sentences when absent")
    parser.add_argument("--bos", type=str, default="auto", help="BOS policy: auto, force or none")
    parser.add_argument("--out", type=str, default="attention", help="folder for the figures attention and sink_mass")
    parser.add_argument("--figures", type=str, default="png", help=f"formats, with ',' between: {', '.join(FORMATS)}")
    found = parse_command(parser, argv, usage="DECODER PLAN")
    plan, formats = parse_plan(found.plan), figure_formats(found.figures)
    texts = [line for line in read_lines(found.texts) if line.strip()] if found.texts else list(TEXTS)
    decoder = load_decoder(DecoderSpec(found.decoder, device=found.device))
    maps = attention_maps(decoder, texts, plan, template=InputTemplate(bos=found.bos))
    album = Album(_writable(Path(found.out)), formats)
    title, note = f"{plan.text} on {decoder.description.name}", f"mean over heads and {len(texts):,} texts"
    album.add(
        "attention", draw_maps, maps.maps, maps.blocks, title=f"Mean attention, {title}",
        note=f"{note}; one scale for all blocks",
    )  # fmt: skip
    album.add(
        "sink_mass", draw_sink_mass, maps.sink_mass, note=note,
        title=f"Attention on the first tokens, {title}",
    )  # fmt: skip
    for block, masses in zip(maps.blocks, maps.sink_mass.tolist(), strict=True):
        show(f"{block}  {'  '.join(f'{mass:.3f}' for mass in masses)}  {'#' * round(40 * masses[0])}")
    show(f"{album.folder}: {', '.join(file for files in album.drawn.values() for file in files)}")
    return 0


def _parser(name: str, text: str | None) -> ArgumentParser:
    parser = make_parser(name, text)
    parser.add_argument("decoder", type=str, help="known name, hub id, local folder or .gguf file")
    parser.add_argument("plan", type=str, help="mask plan (icecore list plans)")
    parser.add_argument("--device", type=str, default="auto", help="torch device, or auto")
    return parser


def _writable(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"folder {str(folder)!r} of figures cannot be written ({error.strerror}); name another."
        ) from error
    return folder
