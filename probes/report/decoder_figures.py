"""Figures of the geometry of latents: measures over depth, and how alike layers are."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float, Shaped
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter
from torch import Tensor

from probes.layers.geometry import MEASURES
from probes.report import style
from probes.report.blocks import metric_label

if TYPE_CHECKING:
    import pandas as pd

SERIES = ("decoder", "plan", "pooling", "cache")
"""Columns that tell lines apart, those that readers know first."""
SHOWN = ("mean-cosine", "norm-median", "massive-share", "effective-rank", "participation-ratio", "intrinsic-dimension")
"""Measures of `draw_geometry`, a panel each."""
SPARE = "participation-ratio"
"""Left out where it would take a row of panels for itself."""
GEOMETRY_NOTE = (
    "bands: 95 % intervals (jackknife over ten groups of texts), for norms the 5 to 95 % quantiles of rows; "
    "massive: mean magnitude above 10 times the median dimension's"
)


def split_series(frame: "pd.DataFrame") -> "dict[str, pd.DataFrame]":
    """Divide a frame by what its rows are of; each part is named by the columns that tell it from the others."""
    keys = frame[list(SERIES)].drop_duplicates()
    telling = [name for name in SERIES[:-1] if keys[name].nunique() > 1]
    if len(keys) > 1 and (not telling or keys.duplicated(telling).any()):
        telling.append(SERIES[-1])
    if not telling:
        return {str(frame["plan"].iloc[0]): frame}
    return {
        " ".join(style.shorten(str(value)) for value in key): part for key, part in frame.groupby(telling, sort=False)
    }


def draw_measure(axes: Axes, frame: "pd.DataFrame", measure: str, *, is_labelled: bool = True) -> Axes:
    """Draw one measure over the layers, a line per decoder, plan and pooling, with intervals as bands.

    For `norm-median` the band holds nine rows in ten. Layers of different decoders are drawn by relative depth.
    """
    parts = split_series(frame)
    lists = {tuple(dict.fromkeys(part["layer"])) for part in parts.values()}
    for (label, part), colour in style.coloured(parts.items()):
        rows = part[part["measure"] == measure]
        x = np.arange(len(rows)) if len(lists) == 1 else rows["depth"].to_numpy()
        values, low, high = (rows[name].to_numpy(np.float64) for name in ("value", "low", "high"))
        if measure == "norm-median" and {"norm-q05", "norm-q95"} <= set(part["measure"]):
            low, high = (part.loc[part["measure"] == name, "value"] for name in ("norm-q05", "norm-q95"))
        style.draw_band(axes, x, low, high, colour=colour)
        style.draw_line(axes, x, values, colour=colour, label=label if is_labelled and len(parts) > 1 else "")
    name, unit, is_log = _describe(measure)
    if is_log:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_title(name, loc="left", fontsize=style.SMALL)
    axes.set_ylabel(unit)
    style.mark_depth(axes, lists)
    return axes


def draw_geometry(figure: Figure, frame: "pd.DataFrame") -> None:
    """Draw the measures `SHOWN` that a frame has, and correlations with gold, in two columns."""
    every = list(dict.fromkeys(frame["measure"]))
    measures = [name for name in every if name in SHOWN or name not in MEASURES] or every
    if len(measures) % 2 and SPARE in measures:
        measures.remove(SPARE)
    n_columns = min(2, len(measures))
    n_rows = -(-len(measures) // n_columns)
    figure.set_size_inches(style.WIDE[0], 1.1 + 1.65 * n_rows)
    all_axes = style.panels(figure, n_rows, n_columns, sharex=True)
    for index, (axes, measure) in enumerate(zip(all_axes, measures, strict=False)):
        draw_measure(axes, frame, measure, is_labelled=index == n_columns - 1)
        is_lowest = index + n_columns >= len(measures)
        axes.tick_params(labelbottom=is_lowest)
        axes.set_xlabel(axes.get_xlabel() * is_lowest)
    for axes in all_axes[len(measures) :]:
        axes.remove()


def draw_similarity(axes: Axes, frame: "pd.DataFrame", *, has_key: bool = True) -> Axes:
    """Draw debiased linear CKA of every two layers as a heat map from 0 to 1; grey where a layer does not vary."""
    sides = [tuple(dict.fromkeys(frame[name])) for name in ("layer", "other_layer")]
    table = frame.pivot(index="layer", columns="other_layer", values="value").loc[list(sides[0]), list(sides[1])]
    image = axes.imshow(
        table.to_numpy(np.float64),
        origin="lower",
        vmin=0,
        vmax=1,
        cmap=colormaps[style.SCALE].with_extremes(bad=style.PALE),
    )
    axes.grid(visible=False)
    for which, layers, name in zip("yx", sides, _apart(frame), strict=True):
        style.mark_layers(axes, layers, which=which)
        axes.set(**{f"{which}label": ", ".join(filter(None, [name, getattr(axes, f"get_{which}label")()]))})
    if has_key and axes.figure is not None:
        axes.figure.colorbar(image, ax=axes, label="debiased linear CKA", shrink=0.9)
    return axes


def _apart(frame: "pd.DataFrame") -> tuple[str, str]:
    """Say in which of the columns `SERIES` the two sides of a comparison differ; empty where they do not."""
    first = frame.iloc[0]
    telling = [name for name in SERIES[:-1] if first[name] != first[f"other_{name}"]]
    telling = telling or [name for name in SERIES[-1:] if first[name] != first[f"other_{name}"]]
    one, other = (" ".join(style.shorten(str(first[prefix + name])) for name in telling) for prefix in ("", "other_"))
    return one, other


def _describe(measure: str) -> tuple[str, str, bool]:
    """Return what a measure is called, its unit, and whether its scale is logarithmic."""
    if measure not in MEASURES:
        metric = metric_label(measure.removeprefix("gold-"))
        return "cosine of pairs against gold", f"{metric} correlation", False
    about = MEASURES[measure]
    return about.label, about.unit, about.is_log


MOST_PANELS = 12  # panels at most


def draw_maps(
    figure: Figure,
    maps: Shaped[Tensor, "N T T"],
    names: Sequence[str],
    *,
    label: str = "attention, shade by square root",
) -> None:
    """Draw a panel per block (LBW Figures 3 and 8), all on one scale from 0 to 1, on which 0.25 is half dark.

    Without a label they are influence matrices: dark where output i moves with input j.
    """
    picks = np.unique(np.linspace(0, len(names) - 1, MOST_PANELS).round().astype(int)).tolist()
    n_columns, n_tokens = min(4, len(picks)), maps.shape[-1]
    n_rows = -(-len(picks) // n_columns)
    figure.set_size_inches(1.4 * n_columns + 1.2, 1.5 * n_rows + 0.9)
    all_axes = style.panels(figure, n_rows, n_columns, sharex=True, sharey=True)
    extent = (0.5, n_tokens + 0.5, n_tokens + 0.5, 0.5)  # tokens count from 1
    for axes, pick in zip(all_axes, picks, strict=False):
        values, norm = maps[pick].float().cpu().numpy(), PowerNorm(0.5, vmin=0, vmax=1)
        image = axes.imshow(values, cmap=style.SHADES, norm=norm, extent=extent)
        axes.set_title(names[pick].replace("_", " "), fontsize=style.SMALL)
        axes.grid(visible=False)
        style.count_in_whole_numbers(axes, "xy")
    for axes in all_axes[len(picks) :]:
        axes.remove()
    all_axes[0].set_ylabel("token")
    all_axes[(n_rows - 1) * n_columns].set_xlabel("attends to" if label else "depends on")
    if label:
        figure.colorbar(
            image, ax=all_axes[: len(picks)], label=label, ticks=[0, 0.05, 0.25, 0.5, 1], aspect=30, shrink=0.9
        )


def draw_sink_mass(figure: Figure, sink_mass: Float[Tensor, "L 4"]) -> None:
    """Draw the attention on each of the first four tokens, block by block (LBW Figure 9)."""
    axes = style.panel(figure)
    for position, (mass, colour) in enumerate(zip(sink_mass.T.tolist(), style.COLOURS, strict=False), start=1):
        style.draw_line(axes, range(1, len(mass) + 1), mass, colour=colour, label=f"token {position}")
    axes.set_ylim(0, 1)
    style.count_in_whole_numbers(axes)
    axes.set_xlabel("block")
    axes.set_ylabel("attention of the tokens after it")


NAMES = {"block": "both", "attention": "attention", "mlp": "MLP"}
"""Parts of a block, and what the figure calls them."""


def draw_weights(axes: Axes, frame: "pd.DataFrame") -> None:
    """Draw the cosine of two checkpoints over the blocks, a line for attention, MLP, and both together."""
    blocks = frame[frame["layer"] != "embedding"]
    layers = list(dict.fromkeys(blocks["layer"]))
    for (part, name), colour in style.coloured(NAMES.items()):
        values = blocks[blocks["part"] == part].set_index("layer")["cosine"].reindex(layers)
        style.draw_line(axes, range(len(layers)), values.to_numpy(), colour=colour, label=name)
    style.mark_layers(axes, layers)
    axes.set_ylabel("cosine of the weights")


def draw_scores(figure: Figure, frame: "pd.DataFrame") -> None:
    """Draw the score of every layer, a line per task, split, plan and pooling; names only what tells them apart."""
    axes = style.panel(figure)
    keys = ["task", "split", "plan", "pooling"]
    telling = [key for key in keys if frame[key].nunique() > 1]
    layers = list(dict.fromkeys(frame["layer"]))
    for (key, rows), colour in style.coloured(list(frame.groupby(keys, sort=False))):
        label = " ".join(str(value) for name, value in zip(keys, key, strict=True) if name in telling)
        scores = 100 * rows.set_index("layer")["score"].reindex(layers)
        style.draw_line(axes, range(len(layers)), scores.to_numpy(), colour=colour, label=label)
    style.mark_layers(axes, layers)
    metrics = ", ".join(dict.fromkeys(frame["metric"]))
    axes.set_ylabel(f"{metrics} x 100")
