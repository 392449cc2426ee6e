"""Settings of glibc's heap for training on a CPU, where every batch has tensors of other sizes."""

import ctypes
import os
import resource
import sys
from collections.abc import Callable

import lightning as L

GROWTH = 2 * 2**30  # bytes of resident memory beyond those after the first batch since the heap was trimmed
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


def resident() -> int:
    """Bytes of this process in memory; 0 on a system without /proc."""
    try:
        with open("/proc/self/statm") as numbers:
            return int(numbers.read().split()[1]) * resource.getpagesize()
    except OSError:
        return 0


class Trim(L.Callback):
    """Gives the free pages of the heap back after evaluations and whenever memory has grown by ``GROWTH``.

    Tensors of many sizes leave gaps that none of the next ones fits: without this, memory grows by 3 to 80 MB a step.
    An evaluation of rows of many lengths adds gigabytes, too. What one step needs is kept, or the kernel would clear
    its pages at every step.
    """

    def __init__(self):
        self.trim = _libc("malloc_trim")
        self.needed: int | None = None  # resident after the first batch since the heap was trimmed

    def on_train_batch_end(self, *_) -> None:
        now = resident()
        if self.needed is None:
            self.needed = now
        elif now > self.needed + GROWTH:
            self.on_validation_end()

    on_validation_batch_end = on_test_batch_end = on_train_batch_end

    def on_validation_end(self, *_) -> None:
        if self.trim:
            self.trim(0)
        self.needed = None
