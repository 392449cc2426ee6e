"""Time and peak memory of a callable; out of memory is a status, not a crash."""

import statistics
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """ms: median of n timed calls, with the smallest and largest; peak_bytes: most that was allocated at once above
    what lay there before; status: ``ok`` | ``out of memory``, with None for what was not measured."""

    ms: float | None
    ms_min: float | None
    ms_max: float | None
    n: int
    peak_bytes: int | None
    status: str = "ok"


def measure(
    steps: Mapping[str, Callable[[], object]], *, repeats: int, warmup: int = 1, device: str = "cpu"
) -> dict[str, Measurement]:
    """Each step in turn, round by round, so that a drift of the machine's speed falls on all alike.

    Warm-up and the memory pass come first and are not timed. On a GPU each call is timed to its end.
    """
    peaks: dict[str, int] = {}
    times: dict[str, list[float]] = {name: [] for name in steps}
    for name, step in steps.items():
        try:
            for _ in range(warmup):
                step()
            peaks[name] = peak_bytes(step, device)
        except (torch.OutOfMemoryError, MemoryError):
            if device == "cuda":
                torch.cuda.empty_cache()
    for _ in range(repeats):
        for name in peaks:
            times[name].append(_milliseconds(steps[name], device))
    return {name: _summary(times[name], peaks.get(name)) for name in steps}


def _summary(ms: list[float], peak: int | None) -> Measurement:
    if not ms:
        return Measurement(ms=None, ms_min=None, ms_max=None, n=0, peak_bytes=None, status="out of memory")
    return Measurement(ms=statistics.median(ms), ms_min=min(ms), ms_max=max(ms), n=len(ms), peak_bytes=peak)


def _milliseconds(step: Callable[[], object], device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    step()
    if device == "cuda":
        torch.cuda.synchronize()
    return 1000 * (time.perf_counter() - start)


def peak_bytes(step: Callable[[], object], device: str = "cpu") -> int:
    """Most bytes of tensors alive at once during step(), above those before it.

    On a GPU the allocator's own count; on a CPU the storages that operators return, without the scratch space inside
    an operator.
    """
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    with _LiveBytes() as live:
        step()
    return live.peak


class _LiveBytes(TorchDispatchMode):
    """Adds a storage up when an operator first returns it and takes it off when it is freed."""

    def __init__(self):
        super().__init__()
        self.now = self.peak = 0
        self.known = weakref.WeakSet()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        given = {id(x.untyped_storage()) for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)}
        out = func(*args, **(kwargs or {}))
        for x in tree_leaves(out):
            if isinstance(x, torch.Tensor):
                storage = x.untyped_storage()
                if id(storage) not in given and storage not in self.known:
                    self.known.add(storage)
                    weakref.finalize(storage, self._free, storage.nbytes())
                    self.now += storage.nbytes()
                    self.peak = max(self.peak, self.now)
        return out

    def _free(self, size: int) -> None:
        self.now -= size
