"""The measurement of every contestant at every shape: from the configuration of a benchmark to its rows."""

import gc
import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from operator import attrgetter

import torch

from ..attention.base import Attention
from ..config.errors import OUT_OF_MEMORY, error_status
from ..config.experiment import Experiment
from ..console import log
from ..results.bench_record import BenchRow, Machine
from ..train.compilation import TRIALS
from . import contestants, roofline, workloads
from .contestants import BenchOptions, Shape
from .measure import LEFT_OUT, Measurement, measure
from .workloads import DTYPES, Inputs


def run(options: BenchOptions, machine: Machine) -> Iterator[list[BenchRow]]:
    """Measure every shape.

    Args:
        options: options of the benchmark, with the names of all contestants.
        machine: this machine, with the device to measure on.

    Yields:
        All rows so far, after each shape.
    """
    deadline = time.monotonic() + (options.budget_s or math.inf)
    rows: list[BenchRow] = []
    for workload in options.what:
        # Steps are measured for every task, all dtypes together. The other workloads take one dtype at a time, with
        # inputs that do not depend on the task.
        lengths: Sequence[int | None] = options.n
        tasks = options.tasks[:1]
        dtype_groups = [[dtype] for dtype in options.dtype]
        if workload == "step":
            tasks = options.tasks
            dtype_groups = [list(options.dtype)]
            if options.batches == "data":
                lengths = [None]
        axes = (tasks, lengths, options.batch, options.heads, options.head_dim, dtype_groups)
        for task, n, batch, heads, head_dim, dtypes in itertools.product(*axes):
            start = time.monotonic()
            shape = Shape(n, batch, heads, head_dim, dtypes[0])
            group = RowGroup(options, workload, task, shape, dtypes, machine)
            new_rows = group.rows(rows, deadline)
            rows += new_rows

            # Log the shape and the number of contestants that could be measured.
            measured = sum(row.status == "ok" for row in new_rows)
            values = shape._asdict() | {"dtype": ",".join(dtypes)}
            parts = [f"{key}={value}" for key, value in values.items() if value is not None]
            seconds = time.monotonic() - start
            log(f"{workload} {' '.join(parts)}: {measured} of {len(new_rows)} measured in {seconds:.0f} s")
            yield rows


class RowGroup:
    """The contestants of one shape, warmed up one by one and then timed in turn.

    Steps are measured in all ``dtypes`` together; for other workloads ``dtypes`` has the dtype of the shape only.
    """

    def __init__(
        self, options: BenchOptions, workload: str, task: str, shape: Shape, dtypes: Sequence[str], machine: Machine
    ):
        self.options = options
        self.workload = workload
        self.task = task
        self.shape = shape
        self.dtypes = dtypes
        self.machine = machine
        self.device = machine.device
        self._experiments: dict[tuple[str, str | None], Experiment] = {}

        # Only batches of data are padded; without a length the task's own length is taken.
        is_padded = workload == "step" and options.batches == "data"
        self.pads = list(options.pads) if is_padded else [None]
        self.length = shape.n or self.experiment(options.mechanisms[0], self.pads[0]).task.length

    def experiment(self, name: str, pad: str | None) -> Experiment:
        """The experiment of a contestant, composed once."""
        key = name, pad
        if key not in self._experiments:
            overrides = contestants.shape_overrides(self.options, self.task, self.shape, pad)
            self._experiments[key] = contestants.experiment(name, overrides)
        return self._experiments[key]

    def rows(self, before: list[BenchRow], deadline: float) -> list[BenchRow]:
        """Measure the shape.

        Args:
            before: rows of all shapes so far; shorter lengths among them predict the times of contestants.
            deadline: time on the clock of ``time.monotonic``.
        """
        inputs = Inputs(self.shape, self.device)
        options = self.options
        # One row for each contestant, mode, padding and dtype.
        axes = (options.mechanisms, options.modes, self.pads, self.dtypes)
        rows = [self._row(*entry) for entry in itertools.product(*axes)]

        # Build the step of every contestant, or measure its rounding error.
        steps: dict[int, Callable[[], object]] = {}
        for i, row in enumerate(rows):
            reason = self._left_out(row, before, deadline)
            if reason:
                rows[i] = replace(row, status=reason)
                continue
            # A contestant that cannot be built at this shape gets a row too.
            try:
                contestant = self.experiment(row.mechanism, row.pad)
                if contestant.unavailable:
                    raise ValueError(contestant.unavailable)
                if self.workload == "error":
                    errors = workloads.rounding_errors(contestant, inputs, row.mode)
                    if not all(map(math.isfinite, errors)):
                        raise ValueError(f"an output or a gradient is not finite in {row.dtype}")
                    rows[i] = replace(row, errors=errors)
                else:
                    steps[i], flops = self._build(contestant, row, inputs)
                    sizes = {} if self.workload == "step" else workloads.layer_sizes(contestant)
                    rows[i] = replace(row, flops=flops, parameters=sizes.get("parameters"), state=sizes.get("state"))
            except Exception as error:
                rows[i] = replace(row, status=error_status(error))

        # Each batch of data may have its own width, which is compiled, recorded and replayed before it is timed.
        warmup = options.warmup
        if options.compile and options.batches == "data":
            warmup = max(warmup, workloads.NUM_BATCHES * TRIALS)

        # Time all steps in turn, so that a slow moment of the machine affects all of them.
        measurements = measure(
            steps,
            repeats=options.repeats,
            warmup=warmup,
            device=self.device,
            sample_ms=options.sample_ms,
            deadline=deadline,
            clock=options.clock,
        )

        # Free the memory of the steps before the next shape.
        steps.clear()
        gc.collect()
        if self.device == "cuda":
            torch.cuda.empty_cache()

        for i, measurement in measurements.items():
            rows[i] = replace(rows[i], **asdict(measurement))
        return [replace(row, roofline_ms=self._roofline_ms(row)) for row in rows]

    def _row(self, mechanism: str, mode: str, pad: str | None, dtype: str) -> BenchRow:
        """The row of a contestant before it is measured; ``pad`` is None except for steps on data."""
        shape = self.shape._replace(n=self.length, dtype=dtype)
        roofline_bytes = None
        # The roofline counts the tensors of an Attention; a Mixer of token vectors moves others.
        function = self.experiment(mechanism, pad).attn.function
        is_attention = isinstance(function, type) and issubclass(function, Attention)
        if self.workload == "attention" and is_attention:
            roofline_bytes = roofline.num_bytes(
                shape.batch * shape.heads,
                self.length,
                shape.head_dim,
                DTYPES[dtype],
                backward=mode == "training",
                shared_qk=function.shared_qk,
            )
        return BenchRow(
            what=self.workload,
            mode=mode,
            mechanism=mechanism,
            task=self.task if self.workload == "step" else None,
            pad=pad,
            **shape._asdict(),
            **asdict(Measurement()),
            roofline_bytes=roofline_bytes,
            flops=None,
            roofline_ms=None,
            claimed=contestants.claim(mechanism, self.options.claims),
        )

    def _roofline_ms(self, row: BenchRow) -> float | None:
        """The least milliseconds of a row by the rates of this machine."""
        if row.roofline_bytes is None:
            return None
        copy_seconds = row.roofline_bytes / self.machine.copy
        matmul_seconds = (row.flops or 0) / self.machine.matmul[row.dtype]
        return 1000 * max(copy_seconds, matmul_seconds)

    def _build(self, contestant: Experiment, row: BenchRow, inputs: Inputs) -> tuple[Callable[[], object], int | None]:
        """Build the step of a contestant, and count its FLOPs if it is a mechanism alone."""
        # Random weights, the same in every measurement.
        mode = row.mode
        compiled = self.options.compile
        torch.manual_seed(0)
        if self.workload == "step":
            source = self.options.batches
            return workloads.model_step(contestant, self.device, row.dtype, source, mode, compiled), None
        if self.workload == "block":
            block = contestant.block_factory()()
            return workloads.step(block, (inputs.x,), inputs, mode, compiled), None
        # A mechanism alone has a formula of its FLOPs.
        part, tensors = workloads.mechanism(contestant, inputs)
        G = self.shape.batch * self.shape.heads
        flops = roofline.flops(part, G, self.length, self.shape.head_dim, backward=mode == "training")
        return workloads.step(part, tensors, inputs, mode, compiled), flops

    def _left_out(self, row: BenchRow, before: list[BenchRow], deadline: float) -> str | None:
        """The reason for not building a contestant: no time is left, or shorter lengths predict more than the limit."""
        if time.monotonic() >= deadline:
            return LEFT_OUT

        # Rows that differ in the length alone, the shortest first.
        kind = attrgetter("what", "mode", "mechanism", "task", "pad", "batch", "heads", "head_dim", "dtype")
        shorter = [other for other in before if kind(other) == kind(row) and other.n < row.n]
        shorter.sort(key=attrgetter("n"))
        if not shorter:
            return None

        # A length without memory or time rules out the longer ones.
        last = shorter[-1]
        if last.ms is None:
            rules_out = last.status == OUT_OF_MEMORY or last.status.startswith("left out")
            return last.status if rules_out else None

        # Time grows with the square of the length, or with the measured power if it is larger.
        power = 2.0
        previous = shorter[-2] if len(shorter) > 1 else None
        if previous and previous.ms:
            log_time = math.log(last.ms / previous.ms)
            log_length = math.log(last.n / previous.n)
            power = max(power, log_time / log_length)
        expected = last.ms * (row.n / last.n) ** power / 1000
        limit = self.options.limit or math.inf
        return f"left out: about {expected:.0f} s at n = {row.n:,}" if expected > limit else None
