"""The cases of the golden record: a configuration and the commands that are run on it."""

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probes.data.task_table import load_task

ROWS = {"train": 48, "validation": 32, "test": 36}
FEW: dict[str, Any] = {"max_epochs": 3, "batch_size": 16}
SIAMESE: dict[str, Any] = {**FEW, "hidden": 8, "bottleneck": 4}
TOKENS: dict[str, Any] = {"max_epochs": 3, "epoch_steps": 4, "batch_size": 8, "learning_rate": 1e-2}
LONGER = {**TOKENS, "epoch_steps": 20}
"""Long enough to find some spans."""
BOTH = {"poolings": ["mean", "last"]}
RUN = (("run",),)


@dataclass(frozen=True)
class Case:
    """One case.

    Attributes:
        settings: Its configuration, but for name, folders and the path of the decoder.
        commands: The commands, each with the arguments behind the configuration.
        suffix: What the folder of results is called, behind the name of the run.
        scores_with: Heads that score new pairs at the end.
    """

    settings: Mapping[str, Any]
    commands: tuple[tuple[str, ...], ...] = RUN
    suffix: str = ""
    scores_with: tuple[str, ...] = ()


def pairs(heads: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """Configure a run on the sample of pairs."""
    return {"task": {"name": "sts-sample", "pairs": 36}, "extraction": BOTH, "heads": heads, "seeds": [0, 3], **more}


def pretrained(start: str, **options: Any) -> dict[str, Any]:
    """Configure a run whose head starts from autoencoders."""
    autoencoder = {"bottleneck": "3, upper half 4", "max_epochs": 3, "batch_size": 16}
    return pairs(
        {"siamese-cosine": {**FEW, "hidden": 8, "start": start, **options}},
        pretraining={"corpus": "class-sample", "texts": 60, "autoencoder": autoencoder},
    )


def started_as_freeze(**options: Any) -> dict[str, Any]:
    """Configure a run of FREEZE's third or fourth rung."""
    return pairs(
        {"siamese-cosine": {"start": "pretrained", "batch_size": 16, "max_epochs": 20, **options}},
        pretraining={"corpus": "class-sample", "texts": 60, "autoencoder": {"max_epochs": 3, "batch_size": 16}},
        extraction={},
        protocol="freeze-released",
    )


def classes(heads: Mapping[str, Any], *, data: str = "", **more: Any) -> dict[str, Any]:
    """Configure a run on the sample of classes, or on labelled pairs of texts."""
    columns = {"text": "sentence1", "text2": "sentence2", "split_column": "split"}
    files = {"name": "class-files", "options": {"files": data, **columns}}
    return {"task": files if data else {"name": "class-sample", "pairs": 40}, "heads": heads, **more}


def words(tags: str, heads: Mapping[str, Any], *, n: int = 24, **more: Any) -> dict[str, Any]:
    """Configure a run on the sample of sentences."""
    return {"task": {"name": "words-sample", "pairs": n, "options": {"tags": tags}}, "heads": heads, **more}


def _pair_cases() -> dict[str, Case]:
    return {
        "pairs-log-variance": Case(
            pairs(
                {
                    "layer-cosine": {"pooling": "last"},
                    "cosine-mlp": {**FEW, "hidden": 8},
                    "siamese-cosine": {**SIAMESE, "loss": "log-variance"},
                }
            ),
            scores_with=("layer-cosine", "cosine-mlp", "siamese-cosine"),
        ),
        "pairs-mse": Case(
            pairs(
                {
                    "layer-cosine": {"pooling": "mean+last"},
                    "cosine-mlp": {**FEW, "hidden": 8, "loss": "cosent", "standardises_latents": False},
                    "siamese-cosine": {
                        **SIAMESE,
                        "loss": "mse",
                        "encoder": "mlp",
                        "pooling": "mean+last",
                        "dropout": 0.3,
                    },
                },
                calibration="isotonic",
            ),
            scores_with=("siamese-cosine",),
        ),
        "pairs-cosent": Case(
            pairs(
                {
                    "cosine-mlp": {**FEW, "hidden": 8, "loss": "log-variance", "pooling": "last", "layers": ["blocks"]},
                    "siamese-cosine": {
                        **SIAMESE,
                        "loss": "cosent",
                        "bottleneck": "3, upper half 5",
                        "network_dropout": 0.2,
                        "weight_decay": 0.01,
                        "layers": ["blocks", "final_norm"],
                    },
                },
                anchor_identical=True,
            ),
            (("extract",), ("fit",)),
        ),
        "pairs-features": Case(
            pairs(
                {"siamese-cosine": {**SIAMESE, "pair_features": 2, "loss": "mse"}},
                task={"name": "sts-sample", "pairs": 40, "drop_leaked": "sentences"},
                extraction={**BOTH, "plan": "nosink-bidirectional:2", "storage_dtype": "float16"},
            ),
        ),
        "pairs-pretrained": Case(pretrained("pretrained", loss="mse", encoder_learning_rate=1e-4, pooling="last")),
        "pairs-frozen": Case(pretrained("frozen", loss="log-variance")),
        "pairs-freeze-released": Case(
            pairs(
                {
                    "layer-cosine": {},
                    "cosine-mlp": {"max_epochs": 4},
                    "siamese-cosine": {"max_epochs": 4, "learning_rate": 1e-3},
                },
                extraction={},
                protocol="freeze-released",
            ),
            scores_with=("cosine-mlp", "siamese-cosine"),
        ),
        "freeze-autoencoder": Case(started_as_freeze(loss="mse")),
        "freeze-log-variance": Case(started_as_freeze(), scores_with=("siamese-cosine",)),
        "pretraining": Case(pretrained("pretrained"), (("extract",), ("fit", "--head", "autoencoder")), "-autoencoder"),
    }


def _class_cases(labelled: str, unsplit: str) -> dict[str, Case]:
    both: dict[str, Any] = {"logistic-probe": {"Cs": [0.1, 1.0]}, "cosine-threshold": {}}
    return {
        "classes": Case(classes({"logistic-probe": {"Cs": [0.1, 1.0, 10.0], "pooling": "mean+last"}}, extraction=BOTH)),
        "classes-smote": Case(
            classes({"logistic-probe": {"oversampling": "balance", "Cs": [1.0], "precision": "float64"}}),
        ),
        "classes-pairs": Case(classes(both, data=labelled)),
        "classes-cross-validation": Case(
            classes({"logistic-probe": {"Cs": [0.1, 1.0], "folds": 3, "is_standardised": False}}, data=unsplit),
        ),
        "classes-look-both-ways": Case(
            classes({"logistic-probe": {}, "cosine-threshold": {}}, data=labelled, protocol="look-both-ways"),
        ),
    }


def _word_cases() -> dict[str, Case]:
    poolings = {"words": {"poolings": ["mean", "last"]}}
    return {
        "words-ner": Case(
            words(
                "ner",
                {
                    "token-classifier": {**LONGER, "class_weights": "balanced"},
                    "token-mix": {**LONGER, "pooling": "last"},
                },
                extraction=poolings,
                seeds=[0, 3],
                n=40,
            ),
        ),
        "words-pos": Case(
            words(
                "pos",
                {
                    "token-classifier": {**TOKENS, "start": "random", "layers": ["blocks"]},
                    "token-mix": {**TOKENS, "dropout": 0.3, "schedule": "linear", "pooling": "mean+last"},
                },
                extraction=poolings,
            ),
            (("extract",), ("fit",)),
        ),
        "words-magnet": Case(
            words("ner", {"token-classifier": {"steps": 20}, "token-mix": {"steps": 20}}, protocol="magnet"),
        ),
        "words-look-both-ways": Case(
            words("chunk", {"token-classifier": {}, "token-mix": {"keep": "best"}}, protocol="look-both-ways"),
        ),
    }


def _plan_cases() -> dict[str, Case]:
    plans = ("sweep", "--plans", "causal;backward:1;bidirectional", "--task.pairs", "16")
    grid = ("sweep", "--k", "0-2", "--k0", "0-2", "--budget", "0.9", "--search")
    four = ("sweep", "--plans", "causal;backward:1;backward:2;bidirectional", "--budget", "1", "--search")
    probe = {"logistic-probe": {"Cs": [0.1, 1.0]}}
    tagger = {"token-classifier": {**TOKENS, "max_epochs": 2}}
    network = {"cosine-mlp": {**FEW, "hidden": 8}, "siamese-cosine": {**SIAMESE, "loss": "mse"}}
    return {
        "sweep-pairs": Case(pairs(network), (plans,), "-sweep"),
        "sweep-pairs-all": Case(pairs({"layer-cosine": {}}), ((*plans, "--test", "all"),), "-sweep"),
        "sweep-classes": Case(classes(probe), (plans,), "-sweep"),
        "sweep-words": Case(words("ner", tagger), (plans,), "-sweep"),
        "search-pairs": Case(
            pairs({"cosine-mlp": network["cosine-mlp"]}, seeds=[0]),
            ((*grid, "coordinate", "--task.pairs", "40"),),
            "-search",
        ),
        "search-classes": Case(classes(probe), ((*four, "halving", "--task.pairs", "80"),), "-search"),
        "search-words": Case(words("ner", tagger), ((*grid, "halving", "--task.pairs", "28"),), "-search"),
    }


def write_labelled(path: Path, *, with_validation: bool = True) -> Path:
    """Write the sample of pairs as a task of two classes: whether the gold is above its middle."""
    sample = load_task("sts-sample")
    with path.open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["split", "sentence1", "sentence2", "label"])
        for split, n in ROWS.items():
            part = sample.splits[split].select(range(n))
            for a, b, score in zip(part["sentence1"], part["sentence2"], part["score"], strict=True):
                if with_validation or split != "validation":
                    rows.writerow([split, a, b, "similar" if score > 2.5 else "different"])
    return path


def make_cases(*, labelled: str = "", unsplit: str = "") -> dict[str, Case]:
    """Return every case by its name.

    Args:
        labelled: A file of labelled pairs of texts.
        unsplit: The same without a validation split.
    """
    return {**_pair_cases(), **_class_cases(labelled, unsplit), **_word_cases(), **_plan_cases()}
