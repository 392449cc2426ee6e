"""Time and peak memory of callables; a step that raises gets its error as its status."""

import math
import statistics
import time
import weakref
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ..config.errors import error_status
from ..ops.untraced import FUNCTIONS

# Status of a step for which no time is left.
LEFT_OUT = "left out: no time"
Clock = Literal["wall", "cpu"]
# Name or number of a step.
Name = TypeVar("Name", bound=Hashable)


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """The measurement of a step.

    Args:
        samples: milliseconds per call, each the mean of ``calls`` consecutive calls.
        calls: number of calls per sample.
        peak_bytes: most bytes allocated at once during a call, above the bytes allocated before it.
        status: ``ok``, or the reason why nothing was measured.
    """

    samples: tuple[float, ...] = ()
    calls: int = 1
    peak_bytes: int | None = None
    status: str = "ok"

    @property
    def ms(self) -> float | None:
        """The median, None without a sample."""
        return statistics.median(self.samples) if self.samples else None


def measure(
    steps: Mapping[Name, Callable[[], object]],
    *,
    repeats: int,
    warmup: int = 1,
    device: str = "cpu",
    sample_ms: float = 0.0,
    deadline: float = math.inf,
    clock: Clock = "wall",
) -> dict[Name, Measurement]:
    """Time the steps in rounds, one sample of each step per round, so that a drift of the machine affects all alike.

    Before the first round each step is warmed up, its peak memory is measured, and with ``sample_ms`` one more call
    chooses the calls per sample. On a GPU another round precedes the first one, in which the allocator finds blocks for
    all steps; it is not counted. A sample is the time between two CUDA events there.

    Args:
        steps: functions by name.
        repeats: number of rounds.
        warmup: calls of each step before the one whose peak memory is measured. On a GPU all of these calls but the
            first are measured, and the highest peak counts.
        device: ``cpu`` or ``cuda``.
        sample_ms: least duration of a sample, which is at least one call.
        deadline: time on the clock of ``time.monotonic``. Steps whose warm-up has not begun by then are left out, and
            no round but the first one starts later.
        clock: clock of a CPU: ``wall``, or ``cpu``, the time that all threads of this process computed, which other
            processes of a busy machine change less.

    Returns:
        The measurements by name. A step that raises has no samples and its error as status; the others continue.
    """
    measurements: dict[Name, Measurement] = {}

    @contextmanager
    def recorded(name: Name) -> Iterator[None]:
        """Record an error in the block as the status of a step."""
        try:
            yield
        except Exception as error:
            measurements[name] = Measurement(status=error_status(error))
            if device == "cuda":
                torch.cuda.empty_cache()

    # Warm up, measure the memory, and choose the number of calls that last at least ``sample_ms``.
    for name, step in steps.items():
        if time.monotonic() >= deadline:
            measurements[name] = Measurement(status=LEFT_OUT)
            continue
        with recorded(name):
            # On a GPU all calls but the first count: recording a CUDA graph allocates its memory, a replay none.
            num_measured = max(1, warmup) if device == "cuda" else 1
            num_unmeasured = warmup + 1 - num_measured
            for _ in range(num_unmeasured):
                step()
            peak = max(peak_bytes(step, device) for _ in range(num_measured))
            calls = 1
            if sample_ms:
                call_ms = max(_milliseconds(step, 1, device, clock), 1e-3)
                calls = max(1, math.ceil(sample_ms / call_ms))
            measurements[name] = Measurement(calls=calls, peak_bytes=peak)

    # Time all steps in rounds. On a GPU round -1 is not counted.
    first_round = -1 if device == "cuda" else 0
    for round_number in range(first_round, repeats):
        if round_number > 0 and time.monotonic() >= deadline:
            break
        for name, m in list(measurements.items()):
            if m.status == "ok":
                with recorded(name):
                    ms = _milliseconds(steps[name], m.calls, device, clock)
                    if round_number >= 0:
                        measurements[name] = replace(m, samples=(*m.samples, ms))
    return measurements


def _milliseconds(step: Callable[[], object], calls: int, device: str, clock: Clock) -> float:
    """Milliseconds of one call, the mean of several calls in a row."""
    # On a GPU the time between two events on its stream.
    if device == "cuda":
        first = torch.cuda.Event(enable_timing=True)
        last = torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        first.record()
        for _ in range(calls):
            step()
        last.record()
        torch.cuda.synchronize()
        return first.elapsed_time(last) / calls
    # On a CPU the difference of two readings of the clock.
    now = time.process_time if clock == "cpu" else time.perf_counter
    start = now()
    for _ in range(calls):
        step()
    return 1000 * (now() - start) / calls


def peak_bytes(step: Callable[[], object], device: str = "cpu") -> int:
    """Measure the most bytes of tensors alive at once during step(), above the bytes before it.

    On a GPU this is the allocator's own count; on a CPU it counts the storages that operators return, also inside the
    operators of ``lra.ops.untraced``, without the scratch space inside PyTorch's own operators. Most tensors inside
    code of torch.compile are not counted, and code that has not been compiled before this call stays uncompiled.

    Args:
        step: function to call once.
        device: ``cpu`` or ``cuda``.
    """
    # On a GPU the allocator counts.
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
    """The bytes of live storages: added when an operator first returns one, subtracted when it is freed."""

    def __init__(self):
        super().__init__()
        self.now = self.peak = 0
        self.known = weakref.WeakSet()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        # The storages of the arguments exist already.
        arguments = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        argument_storages = {id(x.untyped_storage()) for x in arguments}
        function = FUNCTIONS.get(func.name())
        if function is None:
            out = func(*args, **(kwargs or {}))
        else:
            # An operator of this package: the tensors that its function makes count too.
            with self:
                out = function(*args, **(kwargs or {}))
        for x in tree_leaves(out):
            if isinstance(x, torch.Tensor):
                storage = x.untyped_storage()
                # An operator that changes an argument in place allocates nothing.
                if id(storage) not in argument_storages and storage not in self.known:
                    self.known.add(storage)
                    weakref.finalize(storage, self._free, storage.nbytes())
                    self.now += storage.nbytes()
                    self.peak = max(self.peak, self.now)
        return out

    def _free(self, size: int) -> None:
        self.now -= size
