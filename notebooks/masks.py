# mypy: disable-error-code=no-untyped-call
# (IPython.display has no annotations; lines above the first cell are not part of the notebook)

# %% [markdown]
# # What another attention mask changes
#
# A decoder reads from left to right: a token sees itself and what stands before it, and a large share of attention goes
# to the very first token, the *attention sink*. No weight has to be touched to let the top blocks see the whole text.
# This notebook shows what each kind of mask does to attention, and what that does to sentence similarity. About seven
# minutes on two cores; the sample is no benchmark.
#
# This notebook is built from `masks.py` by `make notebook`; edit the script, not the notebook.

# %%
import os
import tempfile
import warnings
from dataclasses import replace
from pathlib import Path

from IPython.display import Image, Markdown, display

warnings.filterwarnings("ignore", "IProgress not found")  # tqdm asks for ipywidgets; none of its bars is shown here

import icecore
from extract.wiring.states import attention_maps
from icecore import InputTemplate, TaskSpec, parse_plan
from probes.report.comparison_figures import draw_maps, draw_sink_mass
from probes.report.style import Album

folder = Path(tempfile.mkdtemp(prefix="icecore-"))
name = os.environ.get("ICECORE_DEMO_DECODER", "smollm2-135m-instruct")
decoder = icecore.load_decoder(name)
n_top = min(10, decoder.description.n_layers - 1)
plans = ["causal", f"backward:{n_top}", f"bidirectional:{n_top}", f"nosink-bidirectional:{n_top}"]
print(f"{decoder.description.name}, {decoder.description.n_layers} blocks; plans: {', '.join(plans)}")

# %% [markdown]
# ## Where attention goes
#
# Each square is one block: a row is a token that looks, a column a token that is looked at, mean over heads. Under
# *causal* everything above the diagonal is empty and the first column is dark, the sink. *Backward* looks ahead only,
# *bidirectional* both ways, and *nosink-bidirectional* both ways but not at the first token.

# %%
texts = ["The old ferry crossed the icy bay."]
album = Album(folder / "attention")
for plan in plans:
    maps = attention_maps(decoder, texts, parse_plan(plan), template=InputTemplate())
    figure = f"attention_{plan.partition(':')[0]}"
    album.add(
        figure, draw_maps, maps.maps, maps.blocks, title=f"Attention under {plan}", note="one sentence, mean over heads"
    )
    display(Image(album.folder / f"{figure}.png", width=620))

# %% [markdown]
# How much of the attention the first tokens get, block by block, under the causal mask:

# %%
maps = attention_maps(decoder, texts, parse_plan("causal"), template=InputTemplate())
album.add("sink_mass", draw_sink_mass, maps.sink_mass, title="Attention on the first tokens", note="one sentence")
display(Image(album.folder / "sink_mass.png", width=560))

# %% [markdown]
# ## What that does to similarity
#
# Every text is extracted under each plan; a certificate measured the mask at every block before anything was computed.
# `layer-cosine` has no weights, `cosine-mlp` combines the cosines of all layers. Layer and epoch are chosen on
# validation, test is read once.

# %%
config = icecore.RunConfig(
    name="masks",
    decoder=icecore.DecoderSpec(name),
    task=TaskSpec("sts-sample"),
    heads={"layer-cosine": {}, "cosine-mlp": {"batch_size": 32}},
    caches=str(folder / "caches"),
    runs=str(folder / "runs"),
)
runs = [
    icecore.run(replace(config, name=plan.partition(":")[0], extraction=icecore.ExtractionSpec(plan=plan)))
    for plan in plans
]
comparison = icecore.compare([run.folder for run in runs], head="layer-cosine")
display(Markdown(comparison.to_markdown()))
[curves] = comparison.draw(folder / "compared")
display(Image(curves, width=600))

# %% [markdown]
# The differences are paired: the same rows, the same resamples. With several plans the p-values are corrected for the
# number of tests, so a plan that wins by luck is not called better.

# %%
tests = icecore.paired_tests([run.folder for run in runs], by="plan")
display(tests.round(3))

# %% [markdown]
# ## Training for the mask
#
# In its pre-training the decoder saw no state that holds what comes later. `icecore.adapt` trains low-rank updates to
# use such states: here it predicts hidden words from both sides, for 20 steps on the same sentences. That takes two
# minutes and shows the way only; [docs/adapt.md](../docs/adapt.md) has trainings that are worth the name.

# %%
adapted = icecore.adapt(
    {
        "decoder": {"name": name},
        "plan": "bidirectional",
        "corpus": [{"corpus": "sts-sample"}],
        "phases": [{"steps": 20, "weights": {"mntp": 1}}],
        "training": {"length": 32, "check_every": 5, "held_out": 32},
        "adapters": str(folder / "adapters"),
    }
)
print(adapted.verdict)
display(adapted.held_out.round(3))

# %% [markdown]
# An adapter is named where a decoder is, so it can be probed like any other:

# %%
both_sides = replace(config, extraction=icecore.ExtractionSpec(plan="bidirectional"), heads={"layer-cosine": {}})
with_adapter = icecore.DecoderSpec(name, adapter=str(adapted.folder))
before = icecore.run(replace(both_sides, name="before"))
after = icecore.run(replace(both_sides, name="after", decoder=with_adapter))
display(Markdown(icecore.compare([before.folder, after.folder], head="layer-cosine").to_markdown()))

# %% [markdown]
# ## What to try
#
# - other numbers of converted blocks: `icecore sweep configs/demo.yaml --kinds nosink-bidirectional --k 0-30`
# - windows below the top: `--kinds backward --windows 4,8 --read 12-20`
# - the same for words, where looking ahead matters more: `configs/words-sample.yaml`
# - what a plan is, and how it is proved: [docs/masks.md](../docs/masks.md)
