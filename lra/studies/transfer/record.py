"""The record of a transfer: transfer.json, separate from the record.json of training."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import MinLen
from pydantic import NonNegativeInt

from ...io import typed_json
from ...io.typed_json import FolderName, Percent
from ...ops.metrics import Metric
from .compare import Layer

FILE = "transfer.json"


@dataclass(frozen=True, kw_only=True)
class TransferRecord:
    """One seed of a run with another mechanism. Scores in percent.

    Args:
        source: label of the run, whose scores are ``exact_*``.
        direct_val, direct_test: scores after the swap.
        tuned_val, tuned_test: scores after at most ``steps`` steps of fine-tuning, at the best evaluation on the
            validation set; None without fine-tuning or if it diverged.
        attn: options of the mechanism, flat.
    """

    __pydantic_config__ = typed_json.STRICT
    kind: str = "transfer"
    study: FolderName
    task: FolderName
    protocol: FolderName
    budget: FolderName
    # The label of the run, and the label with the other mechanism.
    source: FolderName
    label: FolderName
    seed: NonNegativeInt
    fingerprint: str
    git: str | None
    attn: dict[str, Any]
    metric: Metric
    constant_baseline: Percent
    n_val: NonNegativeInt
    n_test: NonNegativeInt
    # Scores of the run, after the swap, and after fine-tuning.
    exact_val: Percent
    exact_test: Percent
    direct_val: Percent
    direct_test: Percent
    steps: NonNegativeInt
    tuned_val: Percent | None
    tuned_test: Percent | None
    status: Literal["done", "diverged"]
    examples: NonNegativeInt
    spectrum_examples: NonNegativeInt
    layers: Annotated[list[Layer], MinLen(1)]
    device: str

    @property
    def kept(self) -> int | None:
        """The token budget: ``count``, such as selected queries and keys of CUR, or ``landmarks``; None without one."""
        return self.attn.get("count", self.attn.get("landmarks"))


def load(path: Path, fingerprint: str | None = None) -> TransferRecord:
    """Read a record.

    Raises:
        ValueError: the file is not a record of a transfer, or belongs to another seed or ``fingerprint``.
    """
    transfer = typed_json.parse(TransferRecord, path, "a record of a transfer", "delete it to make it again")
    typed_json.check_seed(path, transfer.seed)
    if fingerprint not in (None, transfer.fingerprint):
        raise ValueError(f"{path} is the record of another transfer; delete it to make it again")
    return transfer
