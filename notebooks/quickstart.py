# mypy: disable-error-code=no-untyped-call
# (IPython.display has no annotations; lines above the first cell are not part of the notebook)

# %% [markdown]
# # Quickstart
#
# One decoder, its latents at every layer, and two heads on them. About a minute on two cores; the decoder
# (SmolLM2-135M-Instruct) is fetched once, into your cache folder. Everything else goes to a temporary folder.
#
# This notebook is built from `quickstart.py` by `make notebook`; edit the script, not the notebook.

# %%
import os
import tempfile
import warnings
from dataclasses import replace
from pathlib import Path

import torch
from IPython.display import Image, Markdown, display

warnings.filterwarnings("ignore", "IProgress not found")  # tqdm asks for ipywidgets; none of its bars is shown here

from extract import ExtractionSpec, extract_latents, load_decoder
from probes import RunConfig, load_scorer, load_task
from probes.runs.config import TaskSpec
from probes.runs.run import run

folder = Path(tempfile.mkdtemp(prefix="icecore-"))
decoder = load_decoder(os.environ.get("ICECORE_DEMO_DECODER", "smollm2-135m-instruct"))
about = decoder.description
print(f"{about.name}: {about.family}, {about.n_layers} blocks, width {about.width}, {about.dtype}")

# %% [markdown]
# ## A task
#
# Pairs of texts with a gold similarity from 0 to 5, in three splits. `sts-sample` was written for icecore. It is **no
# benchmark**, and we take only 40 pairs of each split to save time: the numbers below show how things work and
# nothing else. For real numbers use the whole of `stsb`.

# %%
task = load_task("sts-sample").subset(40)
print({split: len(rows) for split, rows in task.splits.items()}, f"{len(task.texts())} different texts")
for row in task.splits["train"].select(range(3)):
    print(row["score"], "|", row["sentence1"], "|", row["sentence2"])

# %% [markdown]
# ## Extract once
#
# Every text goes through the frozen decoder once. At every layer its tokens are pooled into one vector, a *latent*, and
# only latents are kept. If this cell is stopped, running it again goes on where it stopped; if the cache is there
# already, it is found and nothing is computed.

# %%
cache = extract_latents(decoder, task.texts(), spec=ExtractionSpec(poolings=("mean", "last")), folder=folder / "caches")
print(f"{len(cache)} texts x {len(cache.layers)} layers x {len(cache.poolings)} poolings, width {cache.width}")
print(f"{cache.path.stat().st_size / 1e6:.1f} MB, identity {cache.manifest.short_id}, complete: {cache.is_complete}")

# %% [markdown]
# ## Look at the cache
#
# The layers, bottom up. Block outputs are taken before the final norm; the normed output of the last block is a layer
# of its own.

# %%
print(" ".join(cache.layers))

# %% [markdown]
# The certificate says what was checked: that perturbing a token moved exactly the positions that the mask plan lets it
# reach, how far a latent drifts between a text alone and in a padded batch, and that the weights are bit-identical
# afterwards.

# %%
for check, result in cache.certificate.items():
    if check != "seconds":
        print(f"{check}: {result}")

# %% [markdown]
# A layer is a view of the file: nothing is read before it is touched. Rows are found by text.

# %%
first = task.splits["test"][0]
rows = cache.rows_of([first["sentence1"], first["sentence2"]])
latents = cache.gather(rows, "mean")
print("latents of one pair, (L, B, D):", tuple(latents.shape))
for layer, (a, b) in zip(cache.layers, latents, strict=True):
    if layer in ("embedding", cache.layers[len(cache.layers) // 2], "final_norm"):
        print(f"{layer:12} norms {a.norm():8.1f} {b.norm():8.1f}   cosine {torch.cosine_similarity(a, b, dim=0):.3f}")

# %% [markdown]
# ## What does each layer know?
#
# A run takes a config, fits its heads on the cache and writes a report into a folder. The head `layer-cosine` has no
# weights: it correlates the cosine of each layer with the gold. A few very large dimensions dominate the raw cosine of
# many layers (look at the norms above), so it is also taken of latents standardised by the training texts.
#
# The subset is written to files, so that the run can read it by the task `pair-files`, as it would read yours.

# %%
files = {}
for split, table in task.splits.items():
    files[split] = str(folder / f"{split}.csv")
    table.to_pandas().to_csv(files[split], index=False)

config = RunConfig(
    name="curve",
    task=TaskSpec("pair-files", {"files": files, "name": "subset of sts-sample"}),
    extraction=ExtractionSpec(poolings=("mean", "last")),
    heads={"layer-cosine": {"pooling": "mean"}},
    runs=str(folder / "runs"),
)
curve = run(config, cache=cache)
print("chosen on validation:", curve.scores["heads"]["layer-cosine"]["chosen"])
display(Image(curve.folder / "figures" / "layer_cosine_curve.png", width=720))

# %% [markdown]
# ## Fit a head
#
# The siamese head encodes all layers at once, takes a cosine per layer and combines them in a small network. Two seeds,
# a few epochs. The epoch is chosen on validation, never on test (`docs/protocol.md`).

# %%
siamese = {"bottleneck": 64, "hidden": 128, "batch_size": 32, "max_epochs": 30, "patience": 10}
fitted = run(
    replace(config, name="siamese", heads={"layer-cosine": {}, "siamese-cosine": siamese}, seeds=(0, 1)), cache=cache
)
display(Markdown(fitted.table()))

# %% [markdown]
# The intervals are wide: 40 pairs say little. What each layer contributes, alone and by what is lost without it:

# %%
display(Image(fitted.folder / "figures" / "siamese_cosine_layers.png", width=720))

# %% [markdown]
# ## Score new pairs
#
# A finished run scores pairs it has never seen, in the units of the gold: the mean over seeds, calibrated on
# validation.

# %%
scorer = load_scorer(fitted.folder, head="siamese-cosine", decoder=decoder)
pairs = [
    ("A man is playing a guitar.", "Someone plays the guitar."),
    ("A man is playing a guitar.", "The share price fell on Monday."),
]
for score, (left, right) in zip(scorer.score(pairs), pairs, strict=True):
    print(f"{score:.2f} | {left} | {right}")

# %% [markdown]
# ## Next
#
# - the same from the command line: `icecore run configs/demo.yaml`
# - what is chosen on which split, and what the intervals mean: [docs/protocol.md](../docs/protocol.md)
# - how to read a cache without icecore: [docs/cache_format.md](../docs/cache_format.md)
