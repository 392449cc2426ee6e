"""The measurement of every contestant at every shape: from the configuration of a benchmark to its rows."""

import functools
import gc
import itertools
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from operator import attrgetter

import torch

from ..attention.base import Attention
from ..config.errors import OUT_OF_MEMORY, failure
from ..config.experiment import Experiment
from ..console import log
from ..runs.bench_record import BenchRow, Machine
from . import accuracy, contestants, roofline, workloads
from .contestants import Shape
from .measure import LEFT_OUT, Measurement, measure
from .options import BenchOptions
from .workloads import DTYPES, Inputs


def run(options: BenchOptions, machine: Machine) -> Iterator[list[BenchRow]]:
    """Measure every shape.

    Args:
        options: options of the benchmark, with a list for every axis.
        machine: this machine, with the device to measure on.

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
            measured = RowGroup(options, what, task, shape, dtypes, machine).rows(rows, deadline)
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

    def __init__(self, options: BenchOptions, what: str, task: str, shape: Shape, dtypes: list[str], machine: Machine):
        self.options, self.what, self.task, self.shape, self.dtypes = options, what, task, shape, dtypes
        self.machine, self.device = machine, machine.device
        of_shape = lambda pad: contestants.overrides(options, task, shape, pad)
        self.experiment = functools.cache(lambda name, pad: contestants.experiment(name, of_shape(pad)))
        self.pads = list(options.pads) if what == "step" and options.batches == "data" else [None]
        self.length = shape.n or self.experiment(options.mechanisms[0], self.pads[0]).task.length

    def rows(self, before: list[BenchRow], deadline: float) -> list[BenchRow]:
        """Measure the shape.

        Args:
            before: rows of smaller shapes, from which the times of contestants are predicted.
            deadline: time on the clock of ``time.monotonic``.
        """
        inputs, options = Inputs(self.shape, self.device), self.options
        rows = [
            self._row(*entry) for entry in itertools.product(options.mechanisms, options.modes, self.pads, self.dtypes)
        ]
        steps: dict[int, Callable[[], None]] = {}
        for i, row in enumerate(rows):
            if reason := self._left_out(row, before, deadline):
                rows[i] = replace(row, status=reason)
                continue
            try:  # a contestant that cannot be built at this shape gets a row too
                contestant = self.experiment(row.mechanism, row.pad)
                if reason := contestant.unavailable:
                    raise ValueError(reason)
                if self.what == "error":
                    rows[i] = replace(row, errors=accuracy.errors(contestant, inputs, row.mode))
                else:
                    steps[i], flops = self._build(contestant, row, inputs)
                    sizes = {} if self.what == "step" else workloads.layer_sizes(contestant)
                    rows[i] = replace(row, flops=flops, **sizes)
            except Exception as error:
                rows[i] = replace(row, status=failure(error))
        measurements = measure(
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
        rows = [replace(row, **asdict(measurements[i])) if i in measurements else row for i, row in enumerate(rows)]
        return [replace(row, roofline_ms=self._floor(row)) for row in rows]

    def _row(self, mechanism: str, mode: str, pad: str | None, dtype: str) -> BenchRow:
        """The row of a contestant before it is measured; ``pad`` is None except for steps on data."""
        shape = self.shape._replace(n=self.length, dtype=dtype)
        size = None
        # a Mixer of token vectors moves something else than the roofline counts
        if self.what == "attention" and issubclass(self.experiment(mechanism, pad).attn.function, Attention):
            elements = (11 if mode == "training" else 4) * shape.batch * shape.heads * shape.n * shape.head_dim
            size = elements * DTYPES[dtype].itemsize
        return BenchRow(
            what=self.what,
            mode=mode,
            mechanism=mechanism,
            task=self.task if self.what == "step" else None,
            pad=pad,
            **shape._asdict(),
            **asdict(Measurement()),
            roofline_bytes=size,
            flops=None,
            roofline_ms=None,
            claimed=contestants.claim(mechanism, self.options.claims),
        )

    def _floor(self, row: BenchRow) -> float | None:
        """The least milliseconds of a row by the rates of this machine."""
        size = row.roofline_bytes
        return size and 1000 * max(size / self.machine.copy, (row.flops or 0) / self.machine.matmul[row.dtype])

    def _build(self, contestant: Experiment, row: BenchRow, inputs: Inputs) -> tuple[Callable[[], None], int | None]:
        last = row.mode, self.options.compile
        torch.manual_seed(0)
        if self.what == "step":
            return workloads.model_step(contestant, self.device, row.dtype, self.options.batches, *last), None
        if self.what == "block":
            return workloads.step(contestant.block_factory()(), (inputs.x,), inputs, *last), None
        part, given = workloads.mechanism(contestant, inputs)
        G, d = self.shape.batch * self.shape.heads, self.shape.head_dim
        flops = roofline.flops(part, G, self.shape.n, d, backward=row.mode == "training")
        return workloads.step(part, given, inputs, *last), flops

    def _left_out(self, own: BenchRow, before: list[BenchRow], deadline: float) -> str | None:
        """The reason for not building a contestant: no time is left, or shorter lengths predict more than the limit."""
        if time.monotonic() >= deadline:
            return LEFT_OUT
        kind = attrgetter("what", "mode", "mechanism", "task", "pad", "batch", "heads", "head_dim", "dtype")
        shorter = sorted((r for r in before if kind(r) == kind(own) and r.n < own.n), key=attrgetter("n"))
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
