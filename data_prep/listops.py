"""ListOps: nested prefix expressions over digits, as in the Long Range Arena (Tay et al. 2020; Nangia & Bowman 2018).

Trees are drawn as by the generator of google-research/long-range-arena. A tree starts with a node at depth 1. A node is
an operator with probability p_operator if its depth is below max_depth, else a digit. An operator draws the number of
its arguments (2..max_args), then these, each a node one deeper, then its name. Distinct trees of more than min_length
and less than max_length tokens are kept.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np

from lra.compiled import compiled
from lra.data.progress import Progress
from lra.data.split import ExampleChunk

from .counter_rng import HALF, STEP, below, mix
from .examples import chunks, in_order
from .expressions import CLOSE, DIGIT, OPERATOR, TOKENS, Example, check_answer, read_tsv
from .file_source import ReleaseSource
from .formats.detect import open_reader
from .formats.layout import Reader, SequenceExample
from .release import Lines, Release, has_tables, unless_empty

FILES = {"train": "basic_train.tsv", "val": "basic_val.tsv", "test": "basic_test.tsv"}
OFFICIAL_TREE = {"min_length": 500, "max_length": 2000, "max_depth": 10, "max_args": 10, "p_operator": 0.25}
OFFICIAL_SIZES = {"train": 96_000, "val": 2_000, "test": 2_000}

# Trees that a thread draws at a time, and the largest size of their buffer in bytes.
BLOCK_TREES = 2**14
BLOCK_BYTES = 2**25
# Give up if HOPELESS * max_length nodes hold fewer than HOPELESS_NEW new trees.
HOPELESS = 100_000
HOPELESS_NEW = 20


@compiled
def _answer(operator, values, first, end):
    """Apply operator 0..3 (MIN, MAX, MED, SM) to values[first:end]; MED sorts them in place by insertion."""
    if operator == 2:
        for i in range(first + 1, end):
            value = values[i]
            while i > first and values[i - 1] > value:
                values[i] = values[i - 1]
                i -= 1
            values[i] = value
        return (values[(first + end - 1) // 2] + values[(first + end) // 2]) // 2
    low = values[first]
    high = values[first]
    total = values[first]
    for i in range(first + 1, end):
        low = min(low, values[i])
        high = max(high, values[i])
        total += values[i]
    if operator == 0:
        return low
    if operator == 1:
        return high
    return total % 10


@compiled
def _grow(seed, first, trees, min_length, max_length, max_depth, max_args, p_operator):
    """Draw trees first .. first + trees - 1.

    A tree is abandoned as soon as it must reach max_length. Since every tree has its own random stream, that changes
    neither the kept trees nor the draws of another tree.

    Returns:
        Tokens (total,), lengths (k,), answers (k,), number of nodes drawn.
    """
    tokens = np.empty(trees * max_length, np.uint8)
    lengths = np.empty(trees, np.int64)
    answers = np.empty(trees, np.int64)
    # For each open operator: the position of its token, the arguments that the operator around it still needs, this one
    # included, and the first of its values on the stack.
    opened, outer_missing, first_value = np.empty((3, max_depth), np.int64)
    values = np.empty(max_depth * max_args, np.int64)
    key = mix(np.uint64(seed) + STEP)
    end = 0
    num_trees = 0
    num_nodes = 0
    for tree in range(first, first + trees):
        state = mix(key + np.uint64(tree) * STEP)
        # Position of the next token, and the final length if every missing node were a digit.
        position = end
        length = 1
        # Numbers of open operators, of arguments that the innermost one needs, and of values on the stack.
        depth = 0
        num_missing = 0
        num_values = 0
        is_complete = False
        while not is_complete and length < max_length:
            state += STEP
            word = mix(state)
            num_nodes += 1
            # An operator, by the upper half of the word; the lower half draws the number of its arguments.
            if depth + 1 < max_depth and (word >> HALF) * 2.0**-32 <= p_operator:
                opened[depth] = position
                first_value[depth] = num_values
                outer_missing[depth] = num_missing
                num_missing = 2 + below(word, max_args - 1)
                length += num_missing + 1
                position += 1
                depth += 1
                continue
            # A digit.
            value = below(word, 10)
            tokens[position] = DIGIT + value
            position += 1
            # A last argument closes its operator, whose value may in turn close the one around it.
            is_complete = True
            while depth:
                values[num_values] = value
                num_values += 1
                num_missing -= 1
                if num_missing:
                    is_complete = False
                    break
                # The last argument: draw the name of the operator and compute its value.
                depth -= 1
                num_missing = outer_missing[depth]
                state += STEP
                operator = below(mix(state), 4)
                value = _answer(operator, values, first_value[depth], num_values)
                num_values = first_value[depth]
                tokens[opened[depth]] = OPERATOR + operator
                tokens[position] = CLOSE
                position += 1
        if is_complete and min_length < length < max_length:
            lengths[num_trees] = length
            answers[num_trees] = value
            num_trees += 1
            end = position
    return tokens[:end].copy(), lengths[:num_trees].copy(), answers[:num_trees].copy(), num_nodes


def _read_release(lines: Lines, name: str, split: str, *, progress: Progress) -> Iterator[ExampleChunk]:
    examples = (((ids,), answer) for ids, answer in read_tsv(lines, name))
    return chunks(examples, split, None, progress)


def _checked(examples: Iterator[SequenceExample], name: str) -> Iterator[SequenceExample]:
    """Pass the examples of a copy on. Raises ValueError unless each is an expression with its answer."""
    for number, ((ids,), answer) in enumerate(examples, start=1):
        try:
            check_answer(ids, answer)
        except ValueError as error:
            raise ValueError(f"{name}, example {number}: {error}") from None
        yield (ids,), answer


class ListOps(ReleaseSource):
    """Digits under nested MIN, MAX, MED (median, x.5 becomes x) and SM (sum modulo 10); the answer is one digit.

    Example: [MED 3 [MIN [SM 3 6 1 2 ] 6 ] ] is 2: the sum is 12, so 2; the smaller of 2 and 6; 2.5 becomes 2.

    Trees are exchangeable, so the splits are the first ``train`` kept trees, the next ``val`` and the next ``test``.

    Args:
        min_length, max_length: strict bounds on the number of tokens.
        max_depth, max_args, p_operator: bounds of the trees and the probability of an operator, see the module.
        train, val, test: numbers of generated examples.
        seed: seed of the trees.
        release: the folder of the official basic_{train,val,test}.tsv, a folder up to four levels above it, or the
            release archive, to read these files instead of generating; their sequences are kept whole. Or a copy in a
            format of ``data_prep.formats``.
        columns: names of the columns of parquet and arrow files: the expression, then the value; None: the usual ones.
    """

    name = "listops"
    version = "1.0.0"
    generated = True
    licence = "generated here, MIT; the official files Apache-2.0, as google-research/long-range-arena"
    origin = "generated after Nangia & Bowman 2018 and Tay et al. 2020, or the files of the Long Range Arena release"
    alphabet = ("", *TOKENS)
    sizes: dict[str, int]
    release: Reader | Release | None

    def __init__(
        self,
        *,
        min_length: int = 500,
        max_length: int = 2000,
        max_depth: int = 10,
        max_args: int = 10,
        p_operator: float = 0.25,
        train: int = 96_000,
        val: int = 2_000,
        test: int = 2_000,
        seed: int = 0,
        release: Path | str | None = None,
        columns: list[str] | None = None,
    ):
        for valid, requirement in (
            (0 <= min_length < max_length - 1, "a length strictly between min_length >= 0 and max_length"),
            (max_depth >= 1 and max_args >= 2, "max_depth >= 1 and max_args >= 2"),
            (0 <= p_operator <= 1, "p_operator in 0..1"),
            (min(train, val, test) >= 1, "at least one example in train, val and test"),
            (0 <= seed < 2**63, "seed in 0..2**63 - 1"),
        ):
            if not valid:
                raise ValueError(f"ListOps needs {requirement}")
        bounds = {"min_length": min_length, "max_length": max_length}
        self.tree = {**bounds, "max_depth": max_depth, "max_args": max_args, "p_operator": float(p_operator)}
        self.sizes = {"train": train, "val": val, "test": test}
        self.seed = seed
        self.release = open_reader(release, self.name, columns=columns, has_official=partial(has_tables, files=FILES))
        if release is not None and self.release is None:
            self.release = Release(path=release, files=FILES)

    @property
    def choices(self) -> dict[str, Any]:
        if self.has_files or self._is_recorded():
            return {}
        return {**self.tree, **self.sizes, "seed": self.seed}

    def use_release(self, release: Path) -> None:
        # A release has the paper's trees and sizes; smaller budgets and other seeds are generated.
        is_official = self.tree == OFFICIAL_TREE and self.sizes == OFFICIAL_SIZES and self.seed == 0
        if self.release is None and is_official:
            self.release = unless_empty(Release(path=release, files=FILES), self.name)

    def splits(self, *, workers: int, progress: Progress) -> Mapping[str, Iterable[ExampleChunk]]:
        if isinstance(self.release, Reader):
            return self.release.chunks(progress, convert=_checked)
        if self.release is not None:
            return self.release.splits(partial(_read_release, progress=progress), progress)
        trees = (((ids,), answer) for ids, answer in self.examples(workers=workers))
        return {split: chunks(islice(trees, n), split, n, progress) for split, n in self.sizes.items()}

    def examples(self, *, workers: int = 1) -> Iterator[Example]:
        """Yield distinct trees of valid length without end. Raises ValueError if hardly any new ones are found."""
        # Blocks are used in order, so the bytes do not depend on the number of threads; _grow releases the GIL.
        max_length = self.tree["max_length"]
        trees = max(1, min(BLOCK_TREES, BLOCK_BYTES // max_length))
        grow = partial(_grow, self.seed, trees=trees, **self.tree)
        digests: set[bytes] = set()
        num_nodes = 0
        num_new_trees = 0
        for tokens, lengths, answers, block_nodes in in_order(grow, count(0, trees), workers):
            end = 0
            for length, answer in zip(lengths.tolist(), answers.tolist(), strict=True):
                ids = tokens[end : end + length]
                end += length
                # 128 bits, so that 1e5 trees do not collide.
                digest = hashlib.blake2b(ids, digest_size=16).digest()
                if digest not in digests:
                    digests.add(digest)
                    num_new_trees += 1
                    yield ids, answer
            num_nodes += block_nodes
            if num_nodes > HOPELESS * max_length:
                if num_new_trees < HOPELESS_NEW:
                    counts = f"{num_new_trees} among the last {num_nodes} nodes drawn"
                    remedy = "widen min_length..max_length or ask for fewer examples"
                    raise ValueError(f"ListOps finds too few new trees with {self.tree}, {counts}: {remedy}")
                # Count again from here.
                num_nodes = 0
                num_new_trees = 0
