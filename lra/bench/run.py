"""The measurement of every contestant at every shape: from the configuration of a benchmark to its rows."""

import gc
import itertools
import math
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch

from ..attention.base import Attention
from ..config.errors import OUT_OF_MEMORY, failure
from ..config.experiment import Experiment
from ..console import log
from ..runs.bench_record import BenchRow
from . import accuracy, contestants, roofline, workloads
from .contestants import Shape
from .measure import LEFT_OUT, Measurement, measure
from .options import BenchOptions
from .workloads import DTYPES, Inputs


class BenchEntry(NamedTuple):
    """One contestant of a group that is measured together; ``pad`` is None except for steps on data."""

    name: str
    mode: str
    pad: str | None
    dtype: str


def rates(device: str, dtypes: list[str]) -> tuple[float, dict[str, float]]:
    """Measure the machine's bytes/s of a copy and, by dtype, FLOP/s of a matrix product."""
    return roofline.copy_rate(device), {dtype: roofline.matmul_rate(device, DTYPES[dtype]) for dtype in dtypes}


def run(options: BenchOptions, device: str, speed: tuple[float, dict[str, float]]) -> Iterator[list[BenchRow]]:
    """Measure every shape.

    Args:
        options: options of the benchmark, with a list for every axis.
        device: ``cpu`` or ``cuda``.
        speed: result of ``rates``.

    Yields:
        All rows so far, after each shape.
    """
    deadline = time.monotonic() + (options.budget_s or math.inf)
    rows: list[BenchRow] = []
    for what in options.what:
        lengths = [None] if what == "step" and options.batches == "data" else options.n
        tasks = options.tasks if what == "step" else options.tasks[:1]
        together = [list(options.dtype)] if what == "step" else [[dtype] for dtype in options.dtype]
        for task, *sizes, dtypes in itertools.product(
            tasks, lengths, options.batch, options.heads, options.head_dim, together
        ):
            began = time.monotonic()
            shape = Shape(*sizes, dtypes[0])
            measured = RowGroup(options, what, task, shape, dtypes, device, speed).rows(rows, deadline)
            rows += measured
            done = sum(row.status == "ok" for row in measured)
            at = shape._asdict() | {"dtype": ",".join(dtypes)}
            at = " ".join(f"{key}={value}" for key, value in at.items() if value is not None)
            log(f"{what} {at}: {done} of {len(measured)} measured in {time.monotonic() - began:.0f} s")
            yield rows


class RowGroup:
    """The contestants of one shape, warmed up one by one and then timed in turn.

    Steps are measured in all dtypes together; inputs alone are of the dtype of the shape.
    """

    def __init__(
        self, options: BenchOptions, what: str, task: str, shape: Shape, dtypes: list[str], device: str, speed: tuple
    ):
        self.options, self.what, self.task, self.shape, self.device = options, what, task, shape, device
        self.dtypes = dtypes
        self.made: dict[tuple[str, str | None], Experiment] = {}
        self.copy, self.matmul = speed
        self.pads = list(options.pads) if what == "step" and options.batches == "data" else [None]
        self.length = shape.n or self._experiment(options.mechanisms[0], self.pads[0]).task.length

    def rows(self, before: list[BenchRow], deadline: float) -> list[BenchRow]:
        """Measure the shape.

        Args:
            before: rows of smaller shapes, from which the times of contestants are predicted.
            deadline: time on the clock of ``time.monotonic``.
        """
        inputs, options = Inputs(self.shape, self.device), self.options
        entries = [BenchEntry(*e) for e in itertools.product(options.mechanisms, options.modes, self.pads, self.dtypes)]
        steps: dict[BenchEntry, Callable[[], None]] = {}
        measurements: dict[BenchEntry, Measurement] = {}
        known: dict[BenchEntry, dict[str, object]] = {entry: {} for entry in entries}
        for entry in entries:
            if reason := self._left_out(entry, before, deadline):
                measurements[entry] = Measurement(status=reason)
                continue
            try:  # a contestant that cannot be built at this shape gets a row too
                if self.what == "error":
                    known[entry]["errors"] = accuracy.errors(self._contestant(entry), inputs, entry.mode)
                    measurements[entry] = Measurement()
                else:
                    steps[entry], known[entry]["flops"] = self._build(entry, inputs)
            except Exception as error:
                measurements[entry] = Measurement(status=failure(error))
        measurements |= measure(
            steps,
            repeats=options.repeats,
            warmup=options.warmup,
            device=self.device,
            sample_ms=options.sample_ms,
            deadline=deadline,
            clock=options.clock,
        )
        steps.clear()
        gc.collect()
        if self.device == "cuda":
            torch.cuda.empty_cache()
        return [self._row(entry, measurements[entry], **known[entry]) for entry in entries]

    def _contestant(self, entry: BenchEntry) -> Experiment:
        """The experiment of a contestant. Raises ValueError for a mechanism that cannot run here."""
        contestant = self._experiment(entry.name, entry.pad)
        if reason := contestant.unavailable:
            raise ValueError(reason)
        return contestant

    def _build(self, entry: BenchEntry, inputs: Inputs) -> tuple[Callable[[], None], int | None]:
        """Build the step and compute its FLOPs. Raises ValueError for a mechanism that cannot run here."""
        contestant = self._contestant(entry)
        last = entry.mode, self.options.compile
        torch.manual_seed(0)
        if self.what == "step":
            return workloads.model_step(contestant, self.device, entry.dtype, self.options.batches, *last), None
        if self.what == "block":
            return workloads.step(contestant.block_factory()(), (inputs.x,), inputs, *last), None
        part, given = workloads.mechanism(contestant, inputs)
        G, d = self.shape.batch * self.shape.heads, self.shape.head_dim
        flops = roofline.flops(part, G, self.shape.n, d, backward=entry.mode == "training")
        return workloads.step(part, given, inputs, *last), flops

    def _experiment(self, name: str, pad: str | None) -> Experiment:
        if (name, pad) not in self.made:
            chosen = contestants.overrides(self.options, self.task, self.shape, pad)
            self.made[name, pad] = contestants.experiment(name, chosen)
        return self.made[name, pad]

    def _left_out(self, entry: BenchEntry, before: list[BenchRow], deadline: float) -> str | None:
        """The reason for not building a contestant: no time is left, or shorter lengths predict more than the limit."""
        if time.monotonic() >= deadline:
            return LEFT_OUT
        own = self._row(entry, Measurement())
        same = ("what", "mode", "mechanism", "task", "pad", "batch", "heads", "head_dim", "dtype")
        shorter = sorted(
            (row for row in before if all(getattr(row, key) == getattr(own, key) for key in same) and row.n < own.n),
            key=lambda row: row.n,
        )
        if not shorter:
            return None
        last = shorter[-1]
        if last.ms is None:
            return last.status if last.status == OUT_OF_MEMORY or last.status.startswith("left out") else None
        power = 2.0  # of the length, or the measured one if that is more
        if len(shorter) > 1 and shorter[-2].ms:
            power = max(power, math.log(last.ms / shorter[-2].ms) / math.log(last.n / shorter[-2].n))
        expected = last.ms * (own.n / last.n) ** power / 1000
        return f"left out: about {expected:.0f} s" if expected > (self.options.limit or math.inf) else None

    def _row(
        self, entry: BenchEntry, m: Measurement, flops: int | None = None, errors: tuple[float, ...] | None = None
    ) -> BenchRow:
        _, batch, heads, head_dim, _ = self.shape
        size = None
        # a Mixer of token vectors moves something else than the roofline counts
        if self.what == "attention" and issubclass(self._experiment(entry.name, entry.pad).attn.function, Attention):
            moved = roofline.elements(batch * heads, self.length, head_dim, backward=entry.mode == "training")
            size = moved * DTYPES[entry.dtype].itemsize
        return BenchRow(
            what=self.what,
            mode=entry.mode,
            mechanism=entry.name,
            task=self.task if self.what == "step" else None,
            pad=entry.pad,
            n=self.length,
            batch=batch,
            heads=heads,
            head_dim=head_dim,
            dtype=entry.dtype,
            samples=m.samples,
            calls=m.calls,
            peak_bytes=m.peak_bytes,
            roofline_bytes=size,
            flops=flops,
            roofline_ms=size and 1000 * max(size / self.copy, (flops or 0) / self.matmul[entry.dtype]),
            claimed=contestants.claim(entry.name, self.options.claims),
            errors=errors,
            status=m.status,
        )
