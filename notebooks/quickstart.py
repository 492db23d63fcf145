# mypy: disable-error-code=no-untyped-call
# (IPython.display has no annotations; lines above the first cell are not part of the notebook)

# %% [markdown]
# # Quickstart
#
# One decoder, its latents at every layer, heads on them, and what another attention mask changes: on pairs of texts and
# on words. About three minutes on two cores. The decoder (SmolLM2-135M-Instruct) is fetched once, into your cache
# folder; everything else goes to a temporary one.
#
# This notebook is built from `quickstart.py` by `make notebook`; edit the script, not the notebook.

# %%
import os
import tempfile
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from IPython.display import Image, Markdown, display

warnings.filterwarnings("ignore", "IProgress not found")  # tqdm asks for ipywidgets; none of its bars is shown here

import icecore
from extract.wiring.states import attention_maps
from icecore import InputTemplate, Probe, TaskSpec, parse_plan
from probes.report.comparison_figures import draw_sink_mass
from probes.report.style import Album

folder = Path(tempfile.mkdtemp(prefix="icecore-"))
name = os.environ.get("ICECORE_DEMO_DECODER", "smollm2-135m-instruct")

# %% [markdown]
# ## Three lines
#
# Texts and labels in, what every layer knows about them out. The texts are samples that come with icecore; a list, a
# column of a frame or an array of yours will do.

# %%
topics: Any = icecore.load_task("class-sample")
examples = [row for split in topics.splits.values() for row in split]
texts, labels = [row["text"] for row in examples], [topics.class_names[row["label"]] for row in examples]
probe = Probe(name, caches=str(folder / "caches"), runs=str(folder / "runs"), verbose=False).fit(texts, labels)
probe.layers()

# %%
print(probe.predict(["The keeper saved a penalty.", "The central bank raised interest rates."]))

# %% [markdown]
# Behind these lines splits are drawn, latents extracted, a classifier fitted on every layer, one of them chosen on
# validation and scored once on test. The rest of this notebook takes such steps one by one.

# %%
decoder = icecore.load_decoder(name)
about = decoder.description
print(f"{about.name}: {about.family}, {about.n_layers} blocks, width {about.width}, {about.dtype}")

# %% [markdown]
# ## A task
#
# Pairs of texts with a gold similarity from 0 to 5, in three splits. `sts-sample` was written for icecore and is **no
# benchmark**: the numbers below show how things work. For real numbers use `stsb`.

# %%
task = icecore.load_task("sts-sample")
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
causal = icecore.ExtractionSpec(poolings=("mean",))
cache = icecore.extract_latents(decoder, task.texts(), spec=causal, folder=folder / "caches")
print(f"{len(cache)} texts x {len(cache.layers)} layers x {len(cache.poolings)} poolings, width {cache.width}")
print(f"{cache.path.stat().st_size / 1e6:.1f} MB, identity {cache.manifest.short_id}, complete: {cache.is_complete}")
print(" ".join(cache.layers))

# %% [markdown]
# The layers are named bottom up. Block outputs are taken before the final norm; the normed output of the last block is
# a layer of its own. A layer is a view of the file: nothing is read before it is touched. Rows are found by text.

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
# many layers (look at the norms above), so it is also taken of latents standardised by the training texts. `cosine-mlp`
# combines the cosines of all layers in a small network; its epoch is chosen on validation, never on test
# (`docs/protocol.md`).

# %%
config = icecore.RunConfig(
    name="causal",
    task=TaskSpec("sts-sample"),
    extraction=causal,
    heads={"layer-cosine": {}, "cosine-mlp": {"batch_size": 32}},
    seeds=(0, 1),
    runs=str(folder / "runs"),
)
plain = icecore.run(config, cache=cache)
display(plain.table())
display(Image(plain.folder / "figures" / "layer_cosine_curve.png", width=560))

# %% [markdown]
# ## Another mask
#
# A decoder was trained to look back only. A *mask plan* changes what its tokens may attend to and touches no weight:
# here the top blocks see the whole text, but not its first token, the *attention sink*. Before anything is computed, a
# certificate shows that the plan took effect, block by block.

# %%
n_top = min(10, about.n_layers - 1)
plan = f"nosink-bidirectional:{n_top}"
nosink = icecore.run(
    replace(config, name="no-sink", extraction=replace(causal, plan=plan)),
    cache=icecore.extract_latents(decoder, task.texts(), spec=replace(causal, plan=plan), folder=folder / "caches"),
)
comparison = icecore.compare([plain.folder, nosink.folder])
display(Markdown(comparison.to_markdown()))
[curves] = comparison.draw(folder / "compared")
display(Image(curves, width=560))

# %% [markdown]
# Differences are paired: both runs predict the same rows, and are scored on the same resamples. So their interval says
# more than a look at the two intervals of the runs.
#
# How much attention goes to the first tokens, block by block, when every token looks back:

# %%
shown = [str(text) for text in task.texts()[:8]]
maps = attention_maps(decoder, shown, parse_plan("causal"), template=InputTemplate())
album = Album(folder / "attention")
album.add("sink_mass", draw_sink_mass, maps.sink_mass, title="Attention on the first tokens", note="eight texts")
display(Image(album.folder / "sink_mass.png", width=560))

# %% [markdown]
# ## Words
#
# The same for the words of a sentence: here their parts of speech, by a logistic regression on each layer. A word takes
# the latent of its last token where attention is causal.

# %%
words = icecore.run(
    icecore.RunConfig(
        name="words",
        decoder=icecore.DecoderSpec(name),
        task=TaskSpec("words-sample", {"tags": "pos"}),
        heads={"token-logistic": {}},
        caches=str(folder / "caches"),
        runs=str(folder / "runs"),
    )
)
display(words.table())
display(Image(words.folder / "figures" / "token_logistic_layers.png", width=560))

# %% [markdown]
# ## Predict
#
# A finished run predicts rows it has never seen: the mean over seeds in the units of the gold for pairs, a tag for each
# word. Only the layers that its head reads are computed.

# %%
pairs = [
    ("A man is playing a guitar.", "Someone plays the guitar."),
    ("A man is playing a guitar.", "The share price fell on Monday."),
]
loaded = icecore.load_run(nosink.folder, decoder=decoder)
for score, (left, right) in zip(loaded.predict(pairs), pairs, strict=True):
    print(f"{score:.2f} | {left} | {right}")
sentence = ["The", "old", "ferry", "crossed", "the", "icy", "bay", "."]
[tags] = icecore.load_run(words.folder, decoder=decoder).tag([sentence])
print(" ".join(f"{word}/{tag}" for word, tag in zip(sentence, tags, strict=True)))

# %% [markdown]
# ## All numbers as data

# %%
frame = icecore.results([plain.folder, nosink.folder, words.folder])
scores = frame[(frame["record"] == "score") & (frame["split"] == "test")]
display(scores[["run", "plan", "head", "layer", "metric", "value", "low", "high"]].round(3))

# %% [markdown]
# ## Next
#
# - the same from the command line: `make demo`, or `icecore run configs/demo.yaml`
# - what is chosen on which split, and what the intervals mean: [docs/protocol.md](../docs/protocol.md)
# - masks and plans, and how they are certified: [docs/masks.md](../docs/masks.md)
# - how to read a cache without icecore: [docs/cache_format.md](../docs/cache_format.md)
