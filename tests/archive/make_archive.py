"""Write an archive of what this version writes: python -m tests.archive.make_archive tests/archive/NAME.tar.xz

A tiny decoder; caches (plain, of words, of shards, of a sweep, under a user's own pooling and masks); a run folder of
every kind of task with every head; an encoder that sentence-transformers loads. Paths in it are relative to its folder.
"""

import json
import os
import platform
import sys
import tarfile
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml

import icecore
from probes.cli.main import main
from tests.extract.tiny_decoders import make_texts, save_decoder
from tests.golden.cases import write_labelled
from tests.golden.record import processor

TINY: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
FEW: dict[str, Any] = {"max_epochs": 2, "batch_size": 8}
SIAMESE: dict[str, Any] = {**FEW, "hidden": 8, "loss": "mse"}
TOKENS: dict[str, Any] = {"max_epochs": 2, "epoch_steps": 4, "batch_size": 8, "learning_rate": 1e-2}
LONGER = {**TOKENS, "max_epochs": 3, "epoch_steps": 20}
"""Long enough to find some spans."""
AUTOENCODER = {"bottleneck": "3, upper half 4", "max_epochs": 2, "batch_size": 16}
PARTS = '''"""Parts of a user, which take names of the library from where they were."""

from extract.poolings.poolings import pool_mean
from icecore import pair_head, register_head, register_mask
from probes.fitting.fit import EpochOptions
from probes.networks.pair_networks import CosineLinear

SHARE = 0.5


def half_mean(hidden, index):
    "Half of the mean."
    return pool_mean(hidden, index) * SHARE


@register_mask("near-ones", default=3)
def allow_near(i, j, n, spans):
    return (i - j).abs() < n


class Tempered(CosineLinear):
    "The linear head, tempered."

    def combine(self, similarities):
        return super().combine(similarities) * 1.0


register_head(pair_head("tempered", Tempered, EpochOptions(batch_size=16, max_epochs=3), "my head"))
'''
CONLL = "\n\n".join(
    "\n".join(f"{word}\t{'VERB' if word == 'saw' else 'NOUN'}" for word in f"Ann saw {n} old ships .".split())
    for n in range(24)
)


def pairs(heads: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Configure a run on pairs of texts."""
    return {"task": {"name": "sts-sample", "pairs": 12}, "heads": heads, "seeds": [0, 3], **more}


def bare(task: str, head: str) -> dict[str, Any]:
    """Configure a run of a head without fitting."""
    return {
        "task": {"name": task},
        "heads": {head: {}},
        "extraction": {"poolings": ["mean"], "storage_dtype": "float16"},
    }


CASES: dict[str, dict[str, Any]] = {
    "pairs": pairs(
        {
            "layer-cosine": {},
            "cosine-mlp": {**FEW, "hidden": 8},
            "cosine-linear": {**FEW},
            "siamese-cosine": {**SIAMESE, "start": "pretrained"},
        },
        extraction={"poolings": ["mean", "last"]},
        loggers=["csv"],
        calibration="isotonic",
        pretraining={"corpus": "class-sample", "texts": 30, "autoencoder": AUTOENCODER},
    ),
    "masked": pairs({"layer-cosine": {}, "siamese-cosine": SIAMESE}, extraction={"plan": "nosink-bidirectional:1"}),
    "released": pairs({"cosine-mlp": {"max_epochs": 2}}, protocol="freeze-released"),
    "own": pairs(
        {"layer-cosine": {}, "tempered": {}},
        extraction={
            "poolings": ["my_parts:half_mean"],
            "plan": "my_parts:allow_near:1+near2-ones:1",
            "storage_dtype": "float16",
        },
    ),
    "classes": {
        "task": {"name": "class-sample", "pairs": 60},
        "extraction": {"storage_dtype": "float16"},
        "heads": {
            "logistic-probe": {"Cs": [0.1, 1.0]},
            "nearest-centroid": {},
            "few-shot-probe": {"rows": 2, "draws": 2},
        },
    },
    "labelled": {
        "task": {
            "name": "class-files",
            "options": {
                "files": "labelled.csv",
                "text": "sentence1",
                "text2": "sentence2",
                "split_column": "split",
            },
        },
        "heads": {"logistic-probe": {"Cs": [1.0]}, "cosine-threshold": {}},
        "extraction": {"storage_dtype": "float16"},
    },
    "numbers": {
        "task": {"name": "number-sample"},
        "heads": {"ridge-probe": {"alphas": [1.0, 100.0]}},
        "extraction": {"storage_dtype": "float16"},
    },
    "words": {
        "task": {"name": "words-sample", "pairs": 16, "options": {"tags": "ner"}},
        "heads": {
            "token-classifier": LONGER,
            "token-mix": LONGER,
            "token-normed": LONGER,
            "token-logistic": {},
        },
        "extraction": {"words": {"poolings": ["mean", "last"]}, "storage_dtype": "float16"},
        "seeds": [0, 3],
    },
    "tagged": {
        "task": {
            "name": "word-files",
            "options": {
                "files": "tagged.conll",
                "columns": ["word", "pos"],
                "tags": "pos",
            },
        },
        "heads": {"token-classifier": TOKENS},
        "extraction": {"words": {"poolings": ["mean"]}, "storage_dtype": "float16"},
    },
    "retrieval": bare("retrieval-sample", "layer-search"),
    "reranking": bare("reranking-sample", "layer-rerank"),
    "clustering": bare("clustering-sample", "layer-clusters"),
    "alike": bare("pair-class-sample", "layer-alike"),
    "bitext": bare("bitext-sample", "layer-translate"),
    "odd": bare("odd-sample", "layer-odd"),
    "plans": pairs({"layer-cosine": {}, "cosine-mlp": {**FEW, "hidden": 8}}, seeds=[0]),
}
SWEEP = ("sweep", "plans.yaml", "--plans", "causal;backward:1")
COMMANDS = (
    *(
        ("run", f"{name}.yaml", *(("--allow-code", "my_parts") if name == "own" else ()))
        for name in CASES
        if name != "plans"
    ),
    SWEEP,
    ("extract", "--texts", "texts.txt", "--shards", "caches/shards", "--window", "8", "--decoder.name", "tiny-llama"),
    ("export", "sentence-transformers", "runs/masked", "encoder", "--layer", "1"),
    ("layers", "runs/pairs", "--resamples", "100"),
)
ROWS = {
    "pairs": ["A cat sleeps.\tThe cat is asleep.", "Ice is cold.\tSnow fell."],
    "text": ["A cat sleeps on the sofa.", "The firm paid its debts."],
    "words": ["Ann saw the old ships .", "Snow fell on Greenland ."],
}
SCORED = {
    "pairs": "pairs",
    "masked": "pairs",
    "released": "pairs",
    "own": "pairs",
    "labelled": "pairs",
    "alike": "pairs",
    "classes": "text",
    "numbers": "text",
    "words": "words",
    "tagged": "words",
}
"""Runs to what rows they score."""
LEFT_OUT = (".png", ".html", ".pdf")


def write_files(folder: Path) -> None:
    """Write the decoder, data files and configurations."""
    save_decoder(folder / "tiny-llama", max_position_embeddings=160, **TINY, num_key_value_heads=1)
    write_labelled(folder / "labelled.csv")
    (folder / "tagged.conll").write_text(CONLL + "\n", encoding="utf-8")
    (folder / "texts.txt").write_text("".join(f"{text}\n" for text in make_texts(20)), encoding="utf-8")
    (folder / "my_parts.py").write_text(PARTS, encoding="utf-8")
    for name, settings in CASES.items():
        whole = {"name": name, "decoder": {"name": "tiny-llama", "device": "cpu"}, "bootstrap": 100, **settings}
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(whole), encoding="utf-8")
    for kind, rows in ROWS.items():
        (folder / f"{kind}.txt").write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")


def score(run: str, head: str) -> list[Any]:
    """Score the rows of a run's kind."""
    code = "my_parts" if run == "own" else ()
    loaded = icecore.load_run(f"runs/{run}", allow_code=code)
    rows = ROWS[SCORED[run]]
    if SCORED[run] == "pairs":
        return list(loaded.predict([tuple(row.split("\t")) for row in rows], head=head))
    return list(loaded.predict([row.split() for row in rows] if SCORED[run] == "words" else rows, head=head))


def make(archive: Path) -> None:
    """Run every command in a folder of its own, and pack it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.chdir(folder)
        sys.path.insert(0, str(folder))
        write_files(folder)
        for command in COMMANDS:
            assert main([*command]) == 0, command
        heads = {run: [*json.loads(Path("runs", run, "scores.json").read_text("utf-8"))["heads"]] for run in SCORED}
        contents = {
            "python": platform.python_version(),
            "processor": processor(),
            "commands": COMMANDS,
            "scored": SCORED,
            "versions": {package: version(package) for package in ("torch", "transformers", "icecore")},
            "predictions": {f"{run} {head}": score(run, head) for run in SCORED for head in heads[run]},
        }
        Path("contents.json").write_text(json.dumps(contents, indent=1, default=lambda x: x.tolist()), encoding="utf-8")
        texts = [path for path in folder.rglob("*") if path.is_file() and str(folder).encode() in path.read_bytes()]
        assert not texts, f"files hold the path of this machine: {texts}"
        with tarfile.open(archive, "w:xz", preset=9) as tar:
            for path in sorted(folder.rglob("*")):
                if path.is_file() and path.suffix not in LEFT_OUT and "__pycache__" not in path.parts:
                    info = tar.gettarinfo(path, str(path.relative_to(folder)))
                    info.uid = info.gid = info.mtime = 0
                    info.uname = info.gname = ""
                    with path.open("rb") as file:
                        tar.addfile(info, file)


if __name__ == "__main__":
    make(Path(sys.argv[1]).resolve())
