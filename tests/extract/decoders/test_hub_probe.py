import time

import pytest

from extract.decoders.hub_probe import ask_commit, hub_endpoint, is_offline


def test_a_commit_is_handed_back() -> None:
    assert ask_commit(lambda _hub, _seconds: "abc123") == "abc123"


def test_whatever_goes_wrong_is_handed_back_and_not_raised() -> None:
    def refuse(_hub: object, _seconds: float) -> str:
        raise ConnectionRefusedError("port 9 is closed")

    answer = ask_commit(refuse)
    assert isinstance(answer, ConnectionRefusedError)
    assert str(answer) == "port 9 is closed"


def test_an_answer_without_a_commit_is_no_answer() -> None:
    assert isinstance(ask_commit(lambda _hub, _seconds: None), ValueError)


def test_a_hub_that_does_not_answer_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("extract.decoders.hub_probe.PROBE_SECONDS", 0.05)
    monkeypatch.setattr("extract.decoders.hub_probe.GRACE_SECONDS", 0.05)
    answer = ask_commit(lambda _hub, _seconds: time.sleep(30) or "late")  # type: ignore[func-returns-value]
    assert isinstance(answer, TimeoutError)  # who waits gets "late"


@pytest.mark.parametrize("switch", ["HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"])
def test_a_switch_forbids_the_hub(switch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    assert not is_offline("HF_DATASETS_OFFLINE")
    monkeypatch.setenv(switch, "1")
    assert is_offline("HF_DATASETS_OFFLINE")


def test_the_endpoint_is_read_when_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9/")
    assert hub_endpoint() == "http://127.0.0.1:9"
