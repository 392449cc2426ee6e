"""Time and peak memory of callables; out of memory is a status, not a crash."""

import math
import statistics
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ..config import failure

LEFT_OUT = "left out: no time"


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """samples: milliseconds a call, each the mean of ``calls`` calls in a row; peak_bytes: most that was allocated at
    once above what lay there before; status: ``ok`` or why nothing was measured."""

    samples: tuple[float, ...] = ()
    calls: int = 1
    peak_bytes: int | None = None
    status: str = "ok"

    @property
    def n(self) -> int:
        return len(self.samples)

    @property
    def ms(self) -> float | None:
        """The median, None without a sample."""
        return statistics.median(self.samples) if self.samples else None


def measure(
    steps: Mapping[str, Callable[[], object]],
    *,
    repeats: int,
    warmup: int = 1,
    device: str = "cpu",
    sample_ms: float = 0.0,
    deadline: float = math.inf,
) -> dict[str, Measurement]:
    """Each step in turn, round by round, so that a drift of the machine's speed falls on all alike.

    Warm-up and the memory pass come first and are not timed, nor is a GPU's first round, in which its allocator finds
    blocks for all. A sample lasts ``sample_ms`` or one call, whichever is more; on a GPU it is the time between two
    events. Nothing is begun after ``deadline`` (of ``time.monotonic``) but the first sample of what is warm. Whatever a
    step raises is its status, and the others go on.
    """
    found: dict[str, Measurement] = {}
    for name, step in steps.items():
        if time.monotonic() >= deadline:
            found[name] = Measurement(status=LEFT_OUT)
            continue
        try:
            for _ in range(warmup):
                step()
            peak = peak_bytes(step, device)
            calls = math.ceil(sample_ms / max(_milliseconds(step, 1, device), 1e-3)) if sample_ms else 1
            found[name] = Measurement(calls=max(1, calls), peak_bytes=peak)
        except Exception as error:
            found[name] = Measurement(status=failure(error))
            _release(device)
    samples: dict[str, list[float]] = {name: [] for name, m in found.items() if m.status == "ok"}
    for turn in range(-1 if device == "cuda" else 0, repeats):
        if turn > 0 and time.monotonic() >= deadline:
            break
        for name in list(samples):
            try:
                ms = _milliseconds(steps[name], found[name].calls, device)
                if turn >= 0:
                    samples[name].append(ms)
            except Exception as error:
                del samples[name]
                found[name] = Measurement(status=failure(error))
                _release(device)
    for name, times in samples.items():
        m = found[name]
        found[name] = Measurement(samples=tuple(times), calls=m.calls, peak_bytes=m.peak_bytes)
    return found


def _release(device: str) -> None:
    if device == "cuda":
        torch.cuda.empty_cache()


def _milliseconds(step: Callable[[], object], calls: int, device: str) -> float:
    if device == "cuda":
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        first.record()
        for _ in range(calls):
            step()
        last.record()
        torch.cuda.synchronize()
        return first.elapsed_time(last) / calls
    start = time.perf_counter()
    for _ in range(calls):
        step()
    return 1000 * (time.perf_counter() - start) / calls


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
