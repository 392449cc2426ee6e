"""python -m lra.bench: time, memory and rounding error of mechanisms, alone, in a block and in a step of the model."""

if __name__ == "__main__":
    from lra.config.manual import begin

    begin("bench")  # before torch is imported

import itertools
import time

import torch

from ..config.entry import main
from ..report import bench_tables
from ..results import bench_record
from ..results.table import show
from ..runs import record
from ..train.device import select_device
from . import contestants, profile, roofline, run
from .contestants import BenchOptions

# Options that are neither in the record nor in its fingerprint: the folder; device and threads, which are part of the
# machine; the time budget; ``steps`` of what=profile; ``trainer``, which is resolved into other options.
NOT_RECORDED = {"runs", "device", "threads", "trainer", "budget_s", "steps"}
# Fields that ``Options`` fills from the command line.
NOT_RECORDED |= {"command_overrides", "data_overrides", "multirun"}


@main(BenchOptions)
def bench(options: BenchOptions) -> None:
    """Measure, write a record and print its tables; what=profile prints tables only.

    Raises:
        ValueError: a name is unknown, a number out of range, or the record cannot be written.
    """
    device = select_device(options.device)
    if options.clock == "cpu" and device == "cuda":
        raise ValueError("clock=cpu measures a CPU, and the device is cuda; add device=cpu or clock=wall")
    if options.threads:
        torch.set_num_threads(options.threads)
    options = contestants.expand_mechanisms(options)
    # Wrong names raise an error before anything is measured.
    for name, task in itertools.product(options.mechanisms, options.tasks):
        contestants.experiment(name, [f"task={task}", f"budget={options.budget}", *options.overrides])
    if options.what == "profile":
        show((profile.table(options, name, device) for name in options.mechanisms), "")
        return

    # The rates of this machine, and the options that the record holds.
    start = time.monotonic()
    copy_rate, matmul_rates = roofline.rates(device, list(options.dtype))
    machine = bench_record.machine(device, copy_rate, matmul_rates)
    choices = {key: value for key, value in options.to_dict().items() if key not in NOT_RECORDED}

    # The record is saved after each shape, so that an interrupt loses one shape.
    for rows in run.run(options, machine):
        measured = bench_record.BenchRecord(
            name=options.name,
            fingerprint=bench_record.fingerprint(choices, machine),
            git=record.git_commit(),
            choices=choices,
            machine=machine,
            seconds=round(time.monotonic() - start, 1),
            rows=rows,
        )
        try:
            path = bench_record.save(measured, options.runs)
        except OSError as error:
            raise ValueError(f"cannot write to {options.runs}: {error.strerror}; choose a folder with runs=") from None
    show(bench_tables.tables([measured]), bench_tables.LEGEND)
    if bench_record.load(path) == measured:
        print(f"written to {path}")
    else:
        print(f"not written: {path} already has a measurement with more rows")


if __name__ == "__main__":
    bench()
