"""`icecore verify` and `icecore attention`: proof and pictures of a mask plan on a decoder."""

from functools import partial
from pathlib import Path
from types import SimpleNamespace

import torch

from extract.decoders.loading import load_decoder
from extract.decoders.spec import DecoderSpec
from extract.errors import ConfigError
from extract.inputs.template import InputTemplate
from extract.masks.matrices import draw
from extract.proofs.certificate import check_batch_invariance, check_influence, influence
from extract.proofs.isolation import measured_masks
from extract.wiring.applied import plan_in_force
from extract.wiring.attention_maps import attention_maps
from probes.cli.commands.score import read_lines
from probes.cli.screen import show
from probes.report.decoder_figures import draw_maps, draw_sink_mass
from probes.report.formats import figure_formats
from probes.report.style import Album

TEXTS = (
    "The river froze early that year, and the ferry stayed on the far bank until spring.",
    "She opened the old ledger and found her grandfather's name on the very first page.",
)


def verify_command(found: SimpleNamespace) -> int:
    """Certify a mask plan on a decoder and print the mask that was measured at every block."""
    plan, picture = found.plan, Path(found.picture)
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


def attention_command(found: SimpleNamespace) -> int:
    """Draw mean attention under a plan and print the attention on each of the first four tokens, block by block."""
    plan = found.plan
    texts = [line for line in read_lines(found.texts) if line.strip()] if found.texts else list(TEXTS)
    decoder = load_decoder(DecoderSpec(found.decoder, device=found.device))
    maps = attention_maps(decoder, texts, plan, template=InputTemplate(bos=found.bos))
    album = Album(_writable(Path(found.out)), found.figures)
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


def _writable(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"folder {str(folder)!r} of figures cannot be written ({error.strerror}); name another."
        ) from error
    return folder
