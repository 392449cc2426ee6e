"""The device of a run: its choice, its name in a record, its memory, and the heap of the process on a CPU."""

import ctypes
import gc
import os
import platform
import resource
import sys

import lightning as L
import torch

# Trim the heap when resident memory has grown by this many bytes since the first batch after the last trim.
GROWTH = 2 * 2**30
# Parameters of mallopt(3).
_TRIM_THRESHOLD = -1
_MMAP_MAX = -4
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


def select_device(name: str, option: str = "device") -> str:
    """Return ``cpu`` or ``cuda``.

    Args:
        name: ``auto``, ``cpu`` or ``cuda``.
        option: name of the option, for the message.

    Raises:
        ValueError: ``name`` is ``cuda`` and this machine has no GPU.
    """
    has_gpu = torch.cuda.is_available()
    if name == "cuda" and not has_gpu:
        remedy = f"use {option}=cpu, or {option}=auto, which takes a GPU on machines that have one"
        raise ValueError(f"{option}=cuda, but torch sees no GPU; {remedy}")
    if name == "auto":
        return "cuda" if has_gpu else "cpu"
    return name


def check_memory(params: int) -> None:
    """Raise ValueError for a model whose weights, gradients and moments exceed main memory, also for a GPU run."""
    # Weights, gradients and the two moments of AdamW, all in float32.
    required = 16 * params / 2**30
    available = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    if required > available:
        raise ValueError(f"{params:,} parameters take {required:,.0f} GB to train, this machine has {available:,.0f}")


def prepare_process(device: str, threads: int | None) -> None:
    """Prepare this process for a run: set the threads, and reset a GPU's peak memory or, on a CPU, keep heap pages."""
    # The model and the data of an earlier seed are in reference cycles with its trainer.
    gc.collect()
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    else:
        keep_pages()
    if threads:
        torch.set_num_threads(threads)


def peak_bytes(device: str) -> int:
    """Return the peak memory on a GPU since ``prepare_process``, or of this process since its start."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated()
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def device_name(device: str, count: int = 1) -> str:
    """Name the device for a record: "x86_64 CPU, 2 threads", or "2 x NVIDIA A100" for several processes."""
    if device == "cuda":
        name = torch.cuda.get_device_name()
    else:
        name = f"{platform.machine()} CPU, {torch.get_num_threads()} threads"
    return f"{count} x {name}" if count > 1 else name


def keep_pages() -> None:
    """Let glibc serve large tensors from its heap and keep their pages when they are freed.

    By default glibc maps the memory of each large tensor again, and the kernel clears its pages at every step. The
    environment variables ``MALLOC_MMAP_MAX_`` and ``MALLOC_TRIM_THRESHOLD_`` take precedence. Without glibc nothing
    happens.
    """
    mallopt = getattr(_LIBC, "mallopt", None)
    if mallopt is None:
        return
    if "MALLOC_MMAP_MAX_" not in os.environ:
        mallopt(_MMAP_MAX, 0)
    if "MALLOC_TRIM_THRESHOLD_" not in os.environ:
        mallopt(_TRIM_THRESHOLD, -1)


def resident_bytes() -> int:
    """Return the resident memory of this process; 0 on a system without /proc."""
    try:
        with open("/proc/self/statm") as file:
            pages = int(file.read().split()[1])
    except OSError:
        return 0
    return pages * resource.getpagesize()


class TrimHeap(L.Callback):
    """Returns the free pages of the heap after validations, and whenever memory has grown by ``GROWTH``.

    Tensors of many sizes leave gaps that the next ones do not fit; without trimming, memory grows by 3 to 80 MB per
    step, and by gigabytes in an evaluation. The pages of a single step stay, because the kernel would otherwise clear
    them at every step.
    """

    def __init__(self) -> None:
        # None without glibc.
        self.malloc_trim = getattr(_LIBC, "malloc_trim", None)
        # Resident memory after the first batch since the heap was trimmed.
        self.baseline: int | None = None

    def on_train_batch_end(self, *_) -> None:
        self._trim_if_grown()

    def on_validation_batch_end(self, *_) -> None:
        self._trim_if_grown()

    def on_test_batch_end(self, *_) -> None:
        self._trim_if_grown()

    def on_validation_end(self, *_) -> None:
        self._trim()

    def _trim_if_grown(self) -> None:
        current = resident_bytes()
        if self.baseline is None:
            self.baseline = current
        elif current > self.baseline + GROWTH:
            self._trim()

    def _trim(self) -> None:
        if self.malloc_trim:
            self.malloc_trim(0)
        self.baseline = None
