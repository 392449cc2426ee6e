"""Time to generate data: ``lra data bench --examples 20000 --repeats 5 --workers 2``."""

if __name__ == "__main__":
    from lra.startup import begin

    begin()  # before torch is imported

import argparse
import sys
import time
from itertools import islice
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np
import torch

from lra.data.source import cores
from lra.data.split import Split
from lra.startup import abandon_stdout, interruptible

from .adding import Adding
from .listops import ListOps
from .synthetic import Synthetic
from .temporal_order import TemporalOrder


def seconds_of_first_call() -> float:
    """Measure seconds to the first ListOps example, which compiles the generator unless the compiled code is cached."""
    start = time.perf_counter()
    next(ListOps().examples())
    return time.perf_counter() - start


def ms_per_example(n: int, seed: int) -> float:
    """Measure processor milliseconds of all threads per ListOps example, independent of other processes."""
    trees = ListOps(seed=seed).examples(workers=1)
    # Time of the process, so that other load does not count.
    start = time.process_time()
    count = sum(1 for _ in islice(trees, n))
    seconds = time.process_time() - start
    # The end of the generator, which finishes blocks of trees that nobody asked for, does not count.
    del trees
    return seconds / count * 1e3


def seconds_to_prepare(workers: int) -> float:
    """Measure wall-clock seconds to prepare the paper's 100,000 examples on the disk."""
    with TemporaryDirectory() as root:
        start = time.perf_counter()
        ListOps().prepare(root, workers=workers)
        return time.perf_counter() - start


def ms_per_batch(source: Synthetic, repeats: int) -> tuple[float, float]:
    """Measure median ms to generate a batch of 40, and to gather it from 400 stored sequences; the calls alternate."""
    batch = 40
    stored = 400
    generated = source.open("")["train"]
    length = source.length
    tokens = generated.gather(torch.arange(stored), length)[0].flatten(0, 2)  # (stored length[, F])
    gathered = Split(tokens, torch.arange(stored + 1) * length, generated.labels[:stored])
    # Alternate between both, so that other load of the machine affects them equally.
    rng = np.random.default_rng(0)
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(repeats):
        index = torch.from_numpy(rng.integers(stored, size=batch))
        for split, split_times in zip((generated, gathered), times, strict=True):
            start = time.perf_counter()
            split.gather(index, length)
            split_times.append((time.perf_counter() - start) * 1e3)
    return median(times[0]), median(times[1])


def at_least_one(text: str) -> int:
    """Parse a number of things to do."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of 1 or more, got {text!r}")
    return number


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """Parse the arguments of a command line, by default of this process."""
    parser = argparse.ArgumentParser(prog="lra data bench", description="Time to generate the data.")
    parser.add_argument("--examples", type=at_least_one, default=20_000, help="ListOps examples per repeat")
    parser.add_argument("--repeats", type=at_least_one, default=5)
    parser.add_argument("--workers", type=at_least_one, default=cores(), help="for the whole preparation")
    return parser.parse_args(argv)


def main() -> None:
    options = arguments()
    print(f"listops: first call {seconds_of_first_call():.2f} s (compiles unless the compiled code is cached)")
    times = [ms_per_example(options.examples, seed) for seed in range(options.repeats)]
    print(
        f"listops: {median(times):.4f} ms per example on one core "
        f"({min(times):.4f} to {max(times):.4f}, {options.repeats} repeats of {options.examples})"
    )
    print(f"listops: {seconds_to_prepare(options.workers):.1f} s to prepare 100,000 with {options.workers} workers")
    # Batches are small: threads would only add noise.
    torch.set_num_threads(1)
    for kind in (Adding, TemporalOrder):
        for length in (128, 1024, 16384):
            generate_ms, gather_ms = ms_per_batch(kind(length=length), 20 * options.repeats)
            times_text = (
                f"{generate_ms:.3f} ms to make a batch of 40 at length {length}, {gather_ms:.3f} ms to gather one"
            )
            print(f"{kind.name}: {times_text}")


if __name__ == "__main__":
    interruptible()
    try:
        main()
        sys.stdout.flush()
    except KeyboardInterrupt:
        sys.exit("lra: interrupted")
    except BrokenPipeError:
        abandon_stdout()
        sys.exit(1)
    except (ValueError, OSError) as error:
        sys.exit(f"lra: {error}")
