"""Mutated configurations: read, or refused with an `IcecoreError`."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from extract.errors import IcecoreError
from probes.cli.arguments import read_command
from probes.cli.commands import COMMANDS
from probes.runs.run_config import RunConfig
from tests.probes.fuzz.settings import VALUES, bounded, damaged

CONFIGS = sorted(Path("configs").rglob("*.yaml"))
KEYS = (
    "name",
    "decoder",
    "decoder.name",
    "decoder.dtype",
    "decoder.device",
    "decoder.revision",
    "extraction",
    "extraction.plan",
    "extraction.poolings",
    "extraction.layers",
    "extraction.template",
    "extraction.words",
    "extraction.template.max_tokens",
    "extraction.template.spans",
    "extraction.words.poolings",
    "extraction.storage_dtype",
    "extraction.batch_tokens",
    "task",
    "task.name",
    "task.options",
    "task.options.files",
    "task.options.columns",
    "task.options.name",
    "task.pairs",
    "task.drop_leaked",
    "heads",
    "heads.layer-cosine",
    "heads.cosine-mlp",
    "heads.cosine-mlp.hidden",
    "heads.cosine-mlp.max_epochs",
    "heads.cosine-mlp.pooling",
    "heads.siamese-cosine",
    "heads.logistic-probe.Cs",
    "seeds",
    "pretraining",
    "pretraining.corpus",
    "pretraining.options",
    "pretraining.texts",
    "pretraining.autoencoder",
    "protocol",
    "calibration",
    "anchor_identical",
    "bootstrap",
    "caches",
    "runs",
)


def read(path: Path, content: bytes) -> None:
    """Read a configuration from a file; only an `IcecoreError` may come of it, of one line."""
    path.write_bytes(content)
    try:
        args = read_command(COMMANDS["run"], [str(path)])
        args.config.check_heads()
    except IcecoreError as error:
        assert str(error)
        return
    assert isinstance(args.config, RunConfig)
    args.config.resolve_heads()
    try:
        if args.config.task.name.endswith("-files"):
            args.config.task.load()
    except IcecoreError as error:
        assert str(error)


@bounded(20)
@given(data=st.data())
def test_a_value_of_any_kind_under_any_key(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    files = {"name": "pair-files", "options": {"files": "x.csv"}}
    config: dict[str, Any] = {"name": "x", "task": files, "heads": {"layer-cosine": {}}, "seeds": [0]}
    for _ in range(data.draw(st.integers(1, 2))):
        *parents, last = data.draw(st.sampled_from(KEYS)).split(".")
        place: Any = config
        for part in parents:
            if not isinstance(place.get(part), dict):
                place[part] = {}
            place = place[part]
        place[last] = data.draw(VALUES)
    text = yaml.safe_dump(config, allow_unicode=data.draw(st.booleans()))
    read(tmp_path_factory.getbasetemp() / "value.yaml", text.encode(errors="surrogatepass"))


@bounded(20)
@given(data=st.data())
def test_damaged_text(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    content = data.draw(st.sampled_from(CONFIGS)).read_bytes()
    read(tmp_path_factory.getbasetemp() / "text.yaml", data.draw(damaged(content)))
