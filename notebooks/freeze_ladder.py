# mypy: disable-error-code=no-untyped-call
# (IPython.display has no annotations; lines above the first cell are not part of the notebook)

# %% [markdown]
# # The ladder of FREEZE
#
# How much must be trained on top of a frozen decoder? FREEZE climbs a ladder: the cosine of one layer, a small network
# on the cosines of all layers, an encoder for each layer, and encoders that begin as autoencoders. Here it is climbed
# on the shipped sample, with the epoch chosen on validation. About four minutes on two cores; the sample is no
# benchmark, and its rungs need not come in the order of the paper's.
#
# This notebook is built from `freeze_ladder.py` by `make notebook`; edit the script, not the notebook.

# %%
import os
import tempfile
import warnings
from pathlib import Path
from typing import Any

from IPython.display import Image, Markdown, display

warnings.filterwarnings("ignore", "IProgress not found")  # tqdm asks for ipywidgets; none of its bars is shown here

import icecore
from icecore import PretrainingSpec, TaskSpec

folder = Path(tempfile.mkdtemp(prefix="icecore-"))
decoder = icecore.DecoderSpec(os.environ.get("ICECORE_DEMO_DECODER", "smollm2-135m-instruct"))
fit: dict[str, Any] = {"batch_size": 32, "max_epochs": 30, "patience": 8}
where: dict[str, Any] = {
    "decoder": decoder,
    "task": TaskSpec("sts-sample"),
    "seeds": (0, 1),
    "caches": str(folder / "caches"),
    "runs": str(folder / "runs"),
}

# %% [markdown]
# ## Rungs 1 to 3: one layer, all layers, an encoder for each
#
# The cosine of a layer needs no training but the choice of the layer. The network sees as many numbers of a pair as
# there are layers. The siamese head encodes every layer first, with the log-variance loss.

# %%
rungs = icecore.run(
    icecore.RunConfig(
        name="fresh",
        heads={
            "layer-cosine": {},
            "cosine-mlp": {"batch_size": 32},
            "siamese-cosine": {"encoder": "linear", "bottleneck": 64, "loss": "log-variance", **fit},
        },
        **where,
    )
)
display(rungs.table())
display(Image(rungs.folder / "figures" / "layer_cosine_curve.png", width=560))

# %% [markdown]
# ## Rung 4: encoders that begin as autoencoders
#
# One autoencoder per layer learns to give back the latents of a corpus, without any gold; the siamese head then starts
# from their encoders. Here the corpus is the task's own texts, a few hundred; FREEZE takes a large one.

# %%
started = icecore.run(
    icecore.RunConfig(
        name="pretrained",
        heads={"siamese-cosine": {"start": "pretrained", "loss": "log-variance", **fit}},
        pretraining=PretrainingSpec(
            corpus="sts-sample", autoencoder={"encoder": "linear", "bottleneck": 64, "max_epochs": 20}
        ),
        **where,
    )
)
display(started.table())

# %% [markdown]
# ## Is a rung really higher?
#
# Scores of a few dozen rows differ by luck. The differences below are paired; their intervals say which steps can be
# told from nothing.

# %%
tests = icecore.paired_tests([rungs.folder], by="head")
display(tests.round(3))
comparison = icecore.compare([rungs.folder, started.folder], head="siamese-cosine")
display(Markdown(comparison.to_markdown()))

# %% [markdown]
# ## What to try
#
# - the ladder on STS-B, as the paper climbs it: `configs/ladder` and `configs/freeze`
# - what each rung reaches there: [docs/results.md](../docs/results.md)
# - which layers the heads use: [layers.ipynb](layers.ipynb)
