"""Examples of a source: computed by threads, chosen by index, collected in chunks."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any

import numpy as np

from lra.data.progress import Progress
from lra.data.split import ExampleChunk

CHUNK = 1024  # examples of a chunk


def in_order(function: Callable[[Any], Any], inputs: Iterable, workers: int) -> Iterator:
    """Compute a function of each input by threads, a little ahead, and yield the results in order.

    Args:
        function: function of one input.
        inputs: inputs, in order.
        workers: number of threads.
    """
    with ThreadPoolExecutor(workers) as pool:
        results = (pool.submit(function, item) for item in inputs)
        # Two calls per worker are submitted ahead, so that no worker waits for the consumer.
        pending = deque(islice(results, 2 * workers))
        while pending:
            result = pending.popleft().result()
            pending.extend(islice(results, 1))
            yield result


def first_of(order: np.ndarray, count: int | None, name: str) -> np.ndarray:
    """Take the first ``count`` indices of an order (n,), all for None, in ascending order.

    Args:
        order: indices (n,).
        count: number of indices.
        name: name of the split, for messages.

    Raises:
        ValueError: there are fewer, or none.
    """
    if not len(order) or (count or 0) > len(order):
        raise ValueError(f"{name}: {count or 'all'} examples requested, {len(order)} available")
    return np.sort(order[:count])


def chunks(
    examples: Iterable[tuple[Sequence, int]], split: str, total: int | None, progress: Progress
) -> Iterator[ExampleChunk]:
    """Collect examples in chunks.

    Args:
        examples: sequences of each example, bytes or arrays (length,) uint8, and its label.
        split: name of the split, for the progress.
        total: number of examples, None if it is unknown.
        progress: reports the examples.
    """
    remaining = iter(examples)
    done = 0
    while True:
        batch = list(islice(remaining, CHUNK))
        if not batch:
            return
        sequences: list[Any] = []
        for example_sequences, _ in batch:
            sequences.extend(example_sequences)
        # The store keeps all sequences of a chunk one after the other.
        tokens = np.frombuffer(b"".join(sequences), np.uint8)
        lengths = np.array([len(sequence) for sequence in sequences])
        labels = np.array([label for _, label in batch], np.int64)
        yield ExampleChunk(tokens, lengths, labels)
        done += len(batch)
        progress(split, done, total)
