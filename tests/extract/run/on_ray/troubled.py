"""Decoders that die or dawdle in the processes that make them, for tests of many workers."""

import os
import shutil
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook

from extract.decoders.decoder import Decoder
from extract.run.shards import DRAFTS
from tests.extract.tiny_decoders import make_decoder


@dataclass(frozen=True)
class Troubled:
    """Makes a tiny decoder; the first ones made kill their process, the next are slow.

    Attributes:
        notes: Folder in which every decoder leaves a file, named `made-` and its number.
        shards: Folder of the shards. The killed process copies the drafts to `notes/killed-` and its number first.
        n_killed: How many of the first decoders kill their process.
        n_slow: How many of the next ones wait before each batch.
        after: Passes of the first block after which a process is killed.
    """

    notes: Path
    shards: Path
    n_killed: int = 1
    n_slow: int = 0
    after: int = 12

    def __call__(self) -> Decoder:
        """Make a decoder in this process, which from now on has one thread."""
        torch.set_num_threads(1)
        decoder = make_decoder(adds_bos=True)
        number = self._take_number()
        n_passes = 0

        def act(module: nn.Module, *_: Any) -> None:
            nonlocal n_passes
            if module is not decoder.blocks[0]:
                return
            n_passes += 1
            if number < self.n_killed and n_passes > self.after:
                shutil.copytree(self.shards / DRAFTS, self.notes / f"killed-{number}")
                os.kill(os.getpid(), signal.SIGKILL)
            if self.n_killed <= number < self.n_killed + self.n_slow:
                time.sleep(0.2)

        # On every module of this process: a hook of the decoder itself would be part of what its cache holds.
        register_module_forward_hook(act)
        return decoder

    def _take_number(self) -> int:
        number = 0
        while True:
            try:
                (self.notes / f"made-{number}").open("x").close()
            except FileExistsError:
                number += 1
            else:
                return number
