"""Fits that a kill cuts short go on: the state of training is written every few minutes, at the end of an epoch."""

import hashlib
import io
import time
import warnings
from pathlib import Path
from typing import Any, BinaryIO

import lightning
import torch
from lightning.fabric.plugins.io import TorchCheckpointIO
from lightning.pytorch.callbacks import Callback

from extract.digest import digest_bytes, digest_json
from extract.errors import IcecoreError
from extract.files import read_file, refuse_links, replacing_file
from probes.fitting.saved import UNFINISHED

PAUSE_SECONDS = 60.0
"""Least time from one state to the next: a fit that is shorter writes none."""
LARGEST_SHARE = 0.02
"""Largest share of a fit's time that writing states takes."""
_OWN = "icecore"
_DIGEST_SIZE = hashlib.sha256().digest_size


class Unfinished(Callback):
    """Keeps the state of a fit beside where its head will be, and takes up the one that a killed fit left there.

    The state is Lightning's checkpoint, with the order of rows (the data module's state) and torch's generators, so
    that a fit that was taken up ends with the same bits. A state of other circumstances is not found, and a damaged one
    is not used. It holds tensors and plain values only, so reading one runs nothing.

    Args:
        folder: Folder of the head.
        fit_id: Digest of everything that decides the fit.
    """

    def __init__(self, folder: Path, fit_id: str) -> None:
        versions = [str(torch.__version__), str(lightning.__version__)]
        self.identity = digest_json([fit_id, versions])
        self.path = folder / UNFINISHED.format(self.identity[:16])
        self.files = _SealedFiles()
        self.seconds_before = 0.0
        """Seconds of training that an earlier process spent on the epochs that are not repeated."""
        self._generators: dict[str, torch.Tensor] = {}
        self._began = self._written = time.monotonic()
        self._cost, self._is_possible = 0.0, True

    def find(self) -> Path | None:
        """Find the state to go on from, if there is one that can be read."""
        if not self.path.exists():
            return None
        try:
            self.files.open(self.path, self.identity)
        except Exception:  # whatever is wrong with it: what is damaged is fitted again
            return None
        return self.path

    def on_load_checkpoint(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Take over the generators and the time."""
        del trainer, pl_module
        self._generators, self.seconds_before = checkpoint[_OWN]["generators"], checkpoint[_OWN]["seconds"]

    def on_save_checkpoint(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Add the generators and the time."""
        del trainer
        generators = {"cpu": torch.get_rng_state()}
        if pl_module.device.type == "cuda":
            generators["cuda"] = torch.cuda.get_rng_state(pl_module.device)
        seconds = self.seconds_before + time.monotonic() - self._began
        checkpoint[_OWN] = {"generators": generators, "seconds": seconds, "identity": self.identity}

    def on_train_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Set torch's generators to where the next epoch begins; the order of rows is the data's own state."""
        del trainer
        self._began = self._written = time.monotonic()
        if self._generators:
            torch.set_rng_state(self._generators["cpu"])
            if "cuda" in self._generators:
                torch.cuda.set_rng_state(self._generators["cuda"], pl_module.device)

    def on_train_epoch_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Write the state, if the last one is old enough and training goes on."""
        del pl_module
        now = time.monotonic()
        is_due = now - self._written >= max(PAUSE_SECONDS, self._cost / LARGEST_SHARE)
        if not (is_due and self._is_possible) or trainer.should_stop:
            return
        try:
            refuse_links(self.path.parent)
            self.path.parent.mkdir(parents=True, exist_ok=True)
            trainer.save_checkpoint(self.path)
        except (IcecoreError, OSError) as error:
            self._is_possible = False
            warnings.warn(f"this fit cannot be taken up if it is killed: {error}", RuntimeWarning, stacklevel=2)
        self._written = time.monotonic()
        self._cost = self._written - now


class _Digesting(io.RawIOBase):
    """Passes bytes on to a file and digests them."""

    def __init__(self, file: BinaryIO) -> None:
        self.file, self.digest = file, hashlib.sha256()

    def write(self, content: Any) -> int:
        """Write bytes."""
        self.digest.update(content)
        return self.file.write(content)


class _SealedFiles(TorchCheckpointIO):
    """Checkpoints that are written whole, end in their digest, and hold tensors and plain values."""

    def __init__(self) -> None:
        self._opened: dict[str, Any] | None = None

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Write a checkpoint in place of the last one."""
        del storage_options
        with replacing_file(Path(path)) as file:
            through: Any = _Digesting(file)
            torch.save(checkpoint, through)
            file.write(through.digest.digest())

    def open(self, path: Path, identity: str) -> None:
        """Read the checkpoint of a fit for `load_checkpoint`; whatever is wrong with it is raised."""
        content = read_file(path)
        body, seal = content[:-_DIGEST_SIZE], content[-_DIGEST_SIZE:]
        if digest_bytes(body) != seal.hex():
            raise ValueError("it is not as it was written")
        checkpoint: dict[str, Any] = torch.load(io.BytesIO(body), map_location="cpu", weights_only=True)
        if checkpoint[_OWN].get("identity") != identity:
            raise ValueError("it is the state of another fit")
        self._opened = checkpoint

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:
        """Give the checkpoint that was opened."""
        del path, map_location, weights_only
        if self._opened is None:
            raise RuntimeError("no checkpoint was opened")
        opened, self._opened = self._opened, None
        return opened
