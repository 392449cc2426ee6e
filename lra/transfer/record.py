"""What a transfer leaves behind: transfer.json, apart from the record.json of training."""

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from .. import record
from .compare import Layer

FILE = "transfer.json"


@dataclass(frozen=True, kw_only=True)
class TransferRecord:
    """One seed of one run in another mechanism. Scores in percent.

    source: label of the run, whose own scores are ``exact_*``; direct_*: after the exchange; tuned_*: after ``steps``
    steps of fine-tuning, at the best of its evaluations on dev, None without or where it diverged. attn: options of
    the mechanism, flat.
    """

    kind: str = "transfer"
    study: str
    task: str
    protocol: str
    budget: str
    source: str
    label: str
    seed: int
    fingerprint: str
    git: str | None
    attn: dict[str, Any]
    metric: str
    majority: float
    n_val: int
    n_test: int
    exact_val: float
    exact_test: float
    direct_val: float
    direct_test: float
    steps: int
    tuned_val: float | None
    tuned_test: float | None
    status: str
    examples: int
    spectrum_examples: int
    layers: list[Layer]
    device: str

    @property
    def kept(self) -> int | None:
        """Rows and columns that CUR keeps, or Nystrom's landmarks."""
        return self.attn.get("count", self.attn.get("landmarks"))

    def mean(self, name: str) -> float:
        """Mean of a value of Layer over the layers."""
        return sum(getattr(layer, name) for layer in self.layers) / len(self.layers)


def save(made: TransferRecord, folder: Path) -> None:
    record.write(folder / FILE, json.dumps(asdict(made), indent=1) + "\n")


def load(path: Path) -> TransferRecord:
    """Raises ValueError where the file is not a record of a transfer."""
    try:
        values = json.loads(path.read_text())
        layers = [Layer(**layer) for layer in values.pop("layers")]
        return TransferRecord(
            layers=layers, **{f.name: values[f.name] for f in fields(TransferRecord) if f.name != "layers"}
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is not a record of a transfer ({error!r}); delete it to make it again") from None


def scan(runs: Path) -> tuple[list[TransferRecord], list[str]]:
    """Every transfer under a folder, and one line for each that could not be read."""
    records, damaged = record.scan_files(runs, FILE, load)
    return list(records.values()), damaged
