"""The device of a run: which one it is, its name in a record, its memory and the heap of a CPU."""

import ctypes
import os
import platform
import resource
import sys

import lightning as L
import torch

from ..runs.checkpoint import disk_bytes

THREADS = torch.get_num_threads()  # of this process before any run
GROWTH = 2 * 2**30  # bytes of resident memory beyond those after the first batch since the heap was trimmed
_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # of mallopt(3)
# Texts of errors without memory: torch's CPU allocator, and operator new in C++.
_CPU_ALLOCATOR_ERRORS = ("can't allocate memory", "not enough memory", "std::bad_alloc")
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


def chosen(wanted: str, option: str = "device") -> str:
    """Return cpu or cuda.

    Args:
        wanted: ``auto``, ``cpu`` or ``cuda``.
        option: name of the option, for the message.

    Raises:
        ValueError: this machine has no GPU.
    """
    if wanted == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"{option}=cuda, but torch sees no GPU; use {option}=cpu")
    return wanted if wanted != "auto" else "cuda" if torch.cuda.is_available() else "cpu"


def check_memory(params: int) -> None:
    """Raise ValueError for a model whose weights, gradients and two moments are more than this machine's memory."""
    needed, there = disk_bytes(params) / 2**30, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    if needed > there:
        raise ValueError(f"{params:,} parameters take {needed:,.0f} GB to train, this machine has {there:,.0f}")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error is an allocator's: CUDA's has a class of its own, the CPU's is a plain RuntimeError."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _CPU_ALLOCATOR_ERRORS)


def multiplies_bf16() -> bool:
    """Whether the processor has instructions for products of 16-bit numbers, by AMX or AVX-512."""
    return torch.cpu._is_amx_tile_supported() or torch.cpu._is_avx512_bf16_supported()


def prepare(device: str, threads: int | None) -> None:
    """Settle this process before a run: count the device's memory from zero, keep the heap's pages, set threads."""
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    else:
        keep_pages()
    if (threads or THREADS) != torch.get_num_threads():
        torch.set_num_threads(threads or THREADS)


def peak_bytes(device: str) -> int:
    """Most memory that was allocated on a GPU since ``prepare``, or by this process since its start."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated()
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def device_name(device: str, number: int = 1) -> str:
    """The ``device`` of a record: "x86_64 CPU, 2 threads", or "2 x NVIDIA A100" of several processes."""
    cpu = f"{platform.machine()} CPU, {torch.get_num_threads()} threads"
    name = torch.cuda.get_device_name() if device == "cuda" else cpu
    return f"{number} x {name}" if number > 1 else name


def keep_pages() -> None:
    """Serve large tensors from glibc's heap and keep what they leave there, for batches of tensors of many sizes.

    By default glibc maps each of them anew, and the kernel clears its pages at every step. What
    ``MALLOC_MMAP_MAX_`` or ``MALLOC_TRIM_THRESHOLD_`` say in the environment stays. Without glibc nothing happens.
    """
    if mallopt := getattr(_LIBC, "mallopt", None):
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
        self.trim = getattr(_LIBC, "malloc_trim", None)
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
