"""Examples of a source: computed by threads, chosen by index, collected in chunks."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from typing import Any

import numpy as np

from lra.data.source import Progress
from lra.data.store import ExampleChunk

CHUNK = 1024  # examples of a chunk


def in_order(function: Callable[[Any], Any], inputs: Iterable, workers: int) -> Iterator:
    """Compute a function of each input by threads, a little ahead, and yield the results in order.

    Args:
        function: function of one input.
        inputs: inputs, in order.
        workers: threads.
    """
    with ThreadPoolExecutor(workers) as pool:
        results = map(partial(pool.submit, function), inputs)
        pending = deque(islice(results, 2 * workers))
        while pending:
            done = pending.popleft().result()
            pending.extend(islice(results, 1))
            yield done


def first_of(order: np.ndarray, count: int | None, what: str) -> np.ndarray:
    """Take the first `count` indices of an order (n,), all for None, in ascending order.

    Raises:
        ValueError: there are fewer, or none.
    """
    if not len(order) or (count or 0) > len(order):
        raise ValueError(f"{what}: {count or 'all'} examples asked for, there are {len(order)}")
    return np.sort(order[:count])


def chunks(
    examples: Iterable[tuple[Sequence, int]], split: str, total: int | None, progress: Progress
) -> Iterator[ExampleChunk]:
    """Collect examples in chunks.

    Args:
        examples: rows of each example, bytes or arrays (length,) uint8, and its label.
        split: name of the split, for the progress.
        total: number of examples, None if it is unknown.
        progress: reports the examples.
    """
    examples, done = iter(examples), 0
    while some := list(islice(examples, CHUNK)):
        rows = [row for of_example, _ in some for row in of_example]
        lengths, labels = np.array([len(row) for row in rows]), np.array([label for _, label in some], np.int64)
        yield ExampleChunk(np.frombuffer(b"".join(rows), np.uint8), lengths, labels)
        done += len(some)
        progress(split, done, total)
