"""Files of fresh-test results: ``fresh_test.json`` in a run directory, ``fresh_test.csv`` in a published study."""

import base64
import binascii
import io
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import get_type_hints

import numpy as np
import pandas as pd
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt

from ..console import log
from ..io import atomic, lock, typed_json
from ..io.atomic import Unreadable
from ..io.typed_json import FolderName, Percent
from ..ops.metrics import MeanMetric
from ..runs.record import FRESH_TEST_NAME

NAME = FRESH_TEST_NAME
TABLE = "fresh_test.csv"
# Name of the kind of file and remedy, for messages.
DESCRIPTION = "a fresh-test result"
REMEDY = "delete it and run python -m lra.evaluate again"
# Largest difference that summing in another order can make.
ROUNDING = 1e-9


@dataclass(frozen=True, kw_only=True)
class FreshTest:
    """The score of the best checkpoint of one seed on fresh examples.

    Args:
        study, task, label, seed, fingerprint: identity of the run.
        metric: accuracy or within_tolerance, the metrics that count examples.
        weights: sha256 of ``best.ckpt``.
        data: sha256 of the examples and their labels; results can be compared if it is the same.
        data_seed: random seed of the generator.
        examples: number of examples that were scored.
        seen: number of fresh examples that were left out because the run's own data contain them.
        fresh_test: score in percent.
        standard_error: standard error of the score over examples, in percentage points.
        precision: fp32, bf16 or fp16, as in the training.
        device: device of the evaluation.
        git: commit of the code that scored the run.
        outcomes: one bit per example in the order of the generator, 1 if it is answered correctly, in base64.
    """

    __pydantic_config__ = typed_json.STRICT
    kind: str = "fresh_test"
    study: FolderName
    task: FolderName
    label: FolderName
    seed: NonNegativeInt
    fingerprint: str
    metric: MeanMetric
    weights: str
    data: str
    data_seed: NonNegativeInt
    examples: PositiveInt
    seen: NonNegativeInt
    fresh_test: Percent
    standard_error: NonNegativeFloat
    precision: str
    device: str
    git: str | None
    outcomes: str

    def is_correct(self) -> np.ndarray:
        """Decode the outcomes.

        Returns:
            Booleans (examples,).

        Raises:
            ValueError: the outcomes do not have this score.
        """
        try:
            packed = np.frombuffer(base64.b64decode(self.outcomes, validate=True), np.uint8)
        except binascii.Error as error:
            raise ValueError(f"the outcomes are not base64: {error}") from None
        if len(packed) != -(-self.examples // 8):
            raise ValueError(f"the outcomes are {len(packed)} bytes, which are not {self.examples} bits")
        correct = np.unpackbits(packed, count=self.examples).astype(bool)
        # The bits must have the score that the record states.
        score = 100 * correct.mean()
        if abs(score - self.fresh_test) > ROUNDING:
            raise ValueError(f"the outcomes have a mean of {score:.4f}, not {self.fresh_test:.4f}")
        return correct


def pack(correct: np.ndarray) -> str:
    """Encode booleans (examples,) as base64 of their bits."""
    return base64.b64encode(np.packbits(correct).tobytes()).decode()


def load(path: Path) -> FreshTest:
    """Read ``fresh_test.json``. Raises ValueError if the file is damaged."""
    result = typed_json.parse(FreshTest, path, DESCRIPTION, REMEDY)
    try:
        result.is_correct()
    except ValueError as error:
        raise ValueError(f"{path} is not {DESCRIPTION} ({error}); {REMEDY}") from None
    return result


def read_table(study: Path) -> list[FreshTest]:
    """Read ``fresh_test.csv`` of a published study, empty without one.

    Args:
        study: directory of the study.

    Raises:
        ValueError: the file is damaged.
    """
    path = study / TABLE
    if not path.exists():
        return []
    text_fields = _text_fields()
    results = []
    try:
        lines = pd.read_csv(io.BytesIO(atomic.content(path)), dtype=str, keep_default_na=False).to_dict("records")
        for line in lines:
            # Cells of text are read as they are, numbers as JSON; an empty commit is none.
            values = {}
            for name, cell in line.items():
                values[name] = cell if name in text_fields else json.loads(cell)
            values["git"] = values.get("git") or None
            result = typed_json.validated(FreshTest, json.dumps(values).encode())
            result.is_correct()
            results.append(result)
    except (ValueError, Unreadable) as error:
        raise ValueError(f"{path} is not a table of fresh-test results ({error}); {REMEDY}") from None
    return results


def write_table(study: Path, results: Iterable[FreshTest]) -> None:
    """Add results to ``fresh_test.csv`` of a published study; a result replaces an older one of the same run.

    Args:
        study: directory of the study.
        results: results of its runs.
    """
    names = [field.name for field in fields(FreshTest)]
    # Of two processes that add results at once, the second one waits and reads the table of the first.
    with lock.hold(study / lock.NAME, lambda owner: log(f"waiting for {owner}, which writes {study}")):
        # A newer result replaces the older one; lines are sorted by run.
        by_run = {(result.task, result.label, result.seed): result for result in read_table(study)}
        for result in results:
            by_run[result.task, result.label, result.seed] = result
        lines = [asdict(by_run[run]) for run in sorted(by_run)]
        atomic.write(study / TABLE, pd.DataFrame(lines, columns=names).to_csv(index=False, lineterminator="\n"))


def _text_fields() -> set[str]:
    """Names of the fields whose cells are text and not JSON."""
    numbers = {"seed", "data_seed", "examples", "seen", "fresh_test", "standard_error"}
    return set(get_type_hints(FreshTest)) - numbers
