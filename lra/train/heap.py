"""Settings of glibc's heap for training on a CPU, where every batch has tensors of other sizes."""

import ctypes
import os
import sys
from collections.abc import Callable

import lightning as L

TRIM_EVERY = 50  # optimiser steps; a call takes 25 ms, which is 0.5 ms a step
_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # of mallopt(3)


def _libc(name: str) -> Callable[..., int] | None:
    return getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None


def keep_pages() -> None:
    """Serve large tensors from the heap and keep what they leave there.

    By default glibc maps each of them anew, and the kernel clears its pages at every step. What
    ``MALLOC_MMAP_MAX_`` or ``MALLOC_TRIM_THRESHOLD_`` say in the environment stays. Without glibc nothing happens.
    """
    if mallopt := _libc("mallopt"):
        for name, parameter, value in (("MMAP_MAX_", _MMAP_MAX, 0), ("TRIM_THRESHOLD_", _TRIM_THRESHOLD, -1)):
            if f"MALLOC_{name}" not in os.environ:
                mallopt(parameter, value)


class Trim(L.Callback):
    """Gives the free pages of the heap back every ``TRIM_EVERY`` steps and after evaluations.

    Tensors of many sizes leave gaps that none of the next ones fits: without this, memory grows by about 3 MB a step.
    """

    def __init__(self):
        self.trim = _libc("malloc_trim")

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx) -> None:
        if self.trim and trainer.global_step % TRIM_EVERY == 0:
            self.trim(0)

    def on_validation_end(self, trainer, module) -> None:
        if self.trim:
            self.trim(0)
