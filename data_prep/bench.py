"""Time to make data: ``python -m data_prep.bench --examples 20000 --repeats 5 --workers 2``."""

if __name__ == "__main__":
    from lra.startup import begin

    begin()  # before torch is imported

import argparse
import time
from itertools import islice
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np
import torch

from lra.data.source import cores
from lra.data.store import Split

from .adding import Adding
from .listops import ListOps
from .synthetic import Synthetic
from .temporal_order import TemporalOrder


def seconds_of_first_call() -> float:
    start = time.perf_counter()
    next(ListOps().examples())
    return time.perf_counter() - start


def ms_per_example(n: int, seed: int) -> float:
    """Processor milliseconds of all threads for each kept ListOps example, independent of other processes."""
    start = time.process_time()
    count = sum(1 for _ in islice(ListOps(seed=seed).examples(workers=1), n))
    return (time.process_time() - start) / count * 1e3


def seconds_to_prepare(workers: int) -> float:
    """Wall-clock seconds to prepare the paper's 100,000 examples on the disk."""
    with TemporaryDirectory() as root:
        start = time.perf_counter()
        ListOps().prepare(root, workers=workers)
        return time.perf_counter() - start


def ms_per_batch(source: Synthetic, repeats: int, batch: int = 40, stored: int = 400) -> tuple[float, float]:
    """Median milliseconds to make a batch, and to gather it from `stored` rows in memory; the calls alternate."""
    drawn, length = source.open("")["train"], source.length
    rows = drawn.gather(torch.arange(stored), length)[0].flatten(0, 2)  # (stored length[, F])
    gathered = Split(rows, torch.arange(stored + 1) * length, drawn.labels[:stored])
    rng, times = np.random.default_rng(0), ([], [])
    for _ in range(repeats):
        index = torch.from_numpy(rng.integers(stored, size=batch))
        for split, mine in zip((drawn, gathered), times, strict=True):
            start = time.perf_counter()
            split.gather(index, length)
            mine.append((time.perf_counter() - start) * 1e3)
    return median(times[0]), median(times[1])


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    """Parse the words of a command line, by default those of this process."""
    parser = argparse.ArgumentParser(prog="python -m data_prep.bench", description="How long the data takes to make.")
    parser.add_argument("--examples", type=int, default=20_000, help="ListOps examples per repeat")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--workers", type=int, default=cores(), help="for the whole preparation")
    return parser.parse_args(words)


def main() -> None:
    options = arguments()
    print(f"listops: first call {seconds_of_first_call():.2f} s (compiles unless the compiled code is cached)")
    times = [ms_per_example(options.examples, seed) for seed in range(options.repeats)]
    print(
        f"listops: {median(times):.4f} ms per example on one core "
        f"({min(times):.4f} to {max(times):.4f}, {options.repeats} repeats of {options.examples})"
    )
    print(f"listops: {seconds_to_prepare(options.workers):.1f} s to prepare 100,000 with {options.workers} workers")
    torch.set_num_threads(1)
    for kind in (Adding, TemporalOrder):
        for length in (128, 1024, 16384):
            made, read = ms_per_batch(kind(length=length), 20 * options.repeats)
            print(f"{kind.name}: {made:.3f} ms to make a batch of 40 at length {length}, {read:.3f} ms to gather one")


if __name__ == "__main__":
    main()
