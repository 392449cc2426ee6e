"""The record of a benchmark: one file per configuration and machine, a row per contestant, shape, padding and mode."""

import importlib.util
import os
import platform
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import torch
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from ..io import typed_json
from ..io.typed_json import find_files
from ..runs import config_file
from ..runs.record import processor

FILE = "bench.json"
# Environment variables that decide how memory is allocated: by glibc or a preloaded allocator, and by torch on a GPU.
ALLOCATOR = (
    "MALLOC_MMAP_MAX_",
    "MALLOC_TRIM_THRESHOLD_",
    "LD_PRELOAD",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_ALLOC_CONF",
)


@dataclass(frozen=True, kw_only=True)
class BenchRow:
    """One contestant at one shape. Times in milliseconds, sizes in bytes.

    Args:
        what: attention | block | step | error.
        mode: inference | training.
        pad: padding of batches of real data, else None.
        samples: each the mean of ``calls`` calls.
        peak_bytes: most bytes allocated at once during a call, without parameters, optimiser state and inputs.
        roofline_bytes, flops, roofline_ms: see ``lra.bench.roofline``; None without a formula.
        claimed: exponent of n in the time that the authors claim, see conf/bench.yaml; 1 by default.
        parameters: parameters of the layer at this n, projections included; None for steps and errors.
        state: real numbers in the layer's state in one direction; None for steps, errors and layers without a state.
        errors: errors of what=error relative to float64: of the output and, in training, of the input gradients.
        status: ``ok``, or the reason why there is no number.
    """

    __pydantic_config__ = typed_json.STRICT
    what: str
    mode: str
    mechanism: str
    task: str | None
    pad: str | None
    n: PositiveInt
    batch: PositiveInt
    heads: PositiveInt
    head_dim: PositiveInt
    dtype: str
    samples: tuple[PositiveFloat, ...]
    calls: NonNegativeInt
    peak_bytes: NonNegativeInt | None
    roofline_bytes: NonNegativeInt | None
    flops: NonNegativeInt | None
    roofline_ms: NonNegativeFloat | None
    claimed: float
    status: str
    errors: tuple[NonNegativeFloat, ...] | None = None
    parameters: NonNegativeInt | None = None
    state: NonNegativeInt | None = None

    @property
    def ms(self) -> float | None:
        """The median of the samples; None without any."""
        return statistics.median(self.samples) if self.samples else None


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The machine of a benchmark.

    Args:
        copy: bytes/s read and written by a large copy.
        matmul: FLOP/s of a large product, by dtype.
        load: processes running on or waiting for a CPU at the start, mean of one minute.
        allocator: environment variables of the allocator that were set.
    """

    __pydantic_config__ = typed_json.STRICT
    hardware: str
    device: str
    threads: int
    python: str
    torch: str
    triton: str | None
    allocator: dict[str, str]
    load: float
    copy: float
    matmul: dict[str, float]


@dataclass(frozen=True, kw_only=True)
class BenchRecord:
    """The record of a benchmark.

    Args:
        choices: the configuration of the benchmark.
        seconds: the duration of the benchmark until this record was written.
    """

    __pydantic_config__ = typed_json.STRICT
    kind: str = "bench"
    name: str
    fingerprint: str
    git: str | None
    choices: dict
    machine: Machine
    seconds: float
    rows: list[BenchRow]


def machine(device: str, copy: float, matmul: dict[str, float]) -> Machine:
    """Describe this machine; the arguments are fields of ``Machine``."""
    allocator = {key: os.environ[key] for key in ALLOCATOR if os.environ.get(key)}
    if "LD_PRELOAD" in allocator:
        # Names of the libraries, without the folders of this machine.
        libraries = allocator["LD_PRELOAD"].replace(":", " ").split()
        allocator["LD_PRELOAD"] = " ".join(Path(library).name for library in libraries)
    cpu = processor() or platform.machine()
    return Machine(
        hardware=torch.cuda.get_device_name() if device == "cuda" else cpu,
        device=device,
        threads=torch.get_num_threads(),
        python=platform.python_version(),
        torch=torch.__version__,
        triton=version("triton") if importlib.util.find_spec("triton") else None,
        allocator=allocator,
        load=round(os.getloadavg()[0], 2),
        copy=copy,
        matmul=matmul,
    )


def fingerprint(choices: Mapping, machine: Machine) -> str:
    """Digest the measured configuration and the machine.

    Code, load, Python version and measured rates are left out: a measurement after a change of these replaces the
    record in the same folder.
    """
    relevant = {key: getattr(machine, key) for key in ("hardware", "threads", "torch", "triton", "allocator")}
    return config_file.fingerprint({"choices": dict(choices)} | relevant)


def save(bench_record: BenchRecord, runs: Path) -> Path:
    """Write runs/bench/<name>/<fingerprint>/bench.json, unless the record there has more rows that were not left out.

    So a repetition that is interrupted or has less time does not replace a finished benchmark.

    Raises:
        OSError: the file cannot be written.
    """
    path = runs / "bench" / bench_record.name / bench_record.fingerprint / FILE
    try:
        num_earlier = _num_tried(load(path).rows)
    except (ValueError, OSError):
        num_earlier = 0
    if _num_tried(bench_record.rows) >= num_earlier:
        typed_json.save(bench_record, path)
    return path


def _num_tried(rows: list[BenchRow]) -> int:
    """Count the rows that were measured or failed, without those left out for lack of time."""
    return sum(not row.status.startswith("left out") for row in rows)


def load(path: Path) -> BenchRecord:
    """Read a record. Raises ValueError if the file is not one, or has a timed row without its peak or roofline."""
    remedy = "delete it and measure again"
    bench_record = typed_json.parse(BenchRecord, path, "a record of a benchmark", remedy)
    for row in bench_record.rows:
        has_roofline = not row.roofline_bytes or bool(row.roofline_ms)
        if row.samples and (row.peak_bytes is None or not has_roofline):
            reason = f"{row.mechanism} without peak or roofline"
            raise ValueError(f"{path} is not a record of a benchmark ({reason}); {remedy}")
    return bench_record


def scan(runs: Path) -> tuple[list[BenchRecord], list[str]]:
    """Read every record of a benchmark under a folder, and return one message for each that could not be read.

    Broken links are not among the messages: ``lra.runs.reader.scan`` reads the same folder and reports them.
    """
    paths, _ = find_files(runs, {FILE})
    records, damaged = typed_json.load_all(paths, load)
    return list(records.values()), damaged
