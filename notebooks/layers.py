# mypy: disable-error-code=no-untyped-call
# (IPython.display has no annotations; lines above the first cell are not part of the notebook)

# %% [markdown]
# # Which layers matter? Sentences against words
#
# The best layer by itself is a poor answer: its neighbours are often as good, and what one layer knows others know
# too. This notebook asks in several ways, for the topic of a sentence and for the parts of speech of its words. About
# five minutes on two cores; the samples are no benchmark.
#
# This notebook is built from `layers.py` by `make notebook`; edit the script, not the notebook.

# %%
import os
import tempfile
import warnings
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from IPython.display import Markdown, display

warnings.filterwarnings("ignore", "IProgress not found")  # tqdm asks for ipywidgets; none of its bars is shown here

import icecore
from icecore import TaskSpec, draw_alone, draw_view
from probes.layers.findings import load_findings

folder = Path(tempfile.mkdtemp(prefix="icecore-"))
decoder = icecore.DecoderSpec(os.environ.get("ICECORE_DEMO_DECODER", "smollm2-135m-instruct"))
where: dict[str, Any] = {"decoder": decoder, "caches": str(folder / "caches"), "runs": str(folder / "runs")}

# %% [markdown]
# ## Two runs
#
# The topic of a sentence by a logistic regression on the mean of its tokens, and the part of speech of each word by one
# on the word's last token; every layer has a probe of its own.

# %%
sentences = icecore.run(
    icecore.RunConfig(name="topics", task=TaskSpec("class-sample"), heads={"logistic-probe": {}}, **where)
)
words = icecore.run(
    icecore.RunConfig(
        name="words", task=TaskSpec("words-sample", {"tags": "pos"}), heads={"token-logistic": {}}, **where
    )
)
for run in (sentences, words):
    display(run.table())

# %% [markdown]
# ## Every layer alone, and the set that holds the best
#
# The shade marks the layers that are statistically tied with the best, by one paired bootstrap for all layers,
# so that the best layer is in it 95 times of 100, however many layers there are. `selectivity` is what is left of a
# score when the same probe is fitted on labels that mean nothing.

# %%
options = icecore.StudyOptions(controls=("type",), n_resamples=500, orders=40)
frame = icecore.compare_layers([sentences.folder, words.folder], options=options)
figure, panels = plt.subplots(2, 1, figsize=(7, 6.4), layout="constrained")
for axes, (name, rows) in zip(panels, frame.groupby("run", sort=False), strict=True):
    draw_alone(axes, rows).set_title(name, loc="left")
plt.show()
for run in (sentences, words):
    display(Markdown(load_findings(run.folder)[0].answer))

# %% [markdown]
# On this sample, words are read from nearly any block below the last five, topics from blocks 5 to 9 and again
# from the top.
#
# ## Left out, added, in bits
#
# A layer that can be left out is not useless: others hold the same. *Without* is what is lost when a readout of all
# layers is fitted without one; *new information* is what a layer tells that the best one does not.

# %%
views = ("shapley", "without", "v-information", "new-information")
figure, panels = plt.subplots(len(views), 2, figsize=(9, 9), layout="constrained")
for column, (name, rows) in zip(panels.T, frame.groupby("run", sort=False), strict=True):
    column[0].set_title(name, loc="left")
    for axes, view in zip(column, views, strict=True):
        draw_view(axes, rows, view)
plt.show()

# %% [markdown]
# ## How few layers suffice?
#
# Layers are picked one by one by the error on rows of train that a fold leaves out.

# %%
picks = frame[frame["view"] == "greedy"][["run", "layer", "value", "low", "high"]]
display(picks.round(3))

# %% [markdown]
# ## What to try
#
# - your own finished run: `icecore layers runs/NAME`
# - the same under another plan, and both side by side: `icecore report runs/a runs/b`
# - what each view means, with sources: [docs/guide.md](../docs/guide.md#which-layers-matter)
