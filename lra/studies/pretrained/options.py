"""The options of the study, conf/pretrained.yaml, in a module that does not need the extra ``hf``."""

from pathlib import Path
from typing import ClassVar, Literal

from ...config.options import Options
from ...config.schema import Above, Device, Some
from ...ops.selection import Pairing, Score
from ...options import Positive, Whole


class PretrainedOptions(Options):
    """The options of conf/pretrained.yaml."""

    conf: ClassVar[str] = "pretrained"

    model: Path
    examples: Path
    train: Positive
    test: Positive
    length: Positive
    size: Positive
    pool: Literal["mean", "cls"]
    # CUR: how tokens are selected, how many of them, and number of steps of the inverse.
    selections: Some[Literal[Score, "plus"]]
    counts: Some[Positive]
    pairing: Pairing
    inverse: Whole
    # Distillation.
    steps: Whole
    lr: Above
    batch: Positive
    neighbours: Positive
    seed: Whole
    device: Device
    out: Path | None

    def check(self) -> None:
        for name in ("neighbours", "batch"):
            value = getattr(self, name)
            if value > self.train:
                raise ValueError(f"{name} must be at most {self.train}, the number of training examples, got {value}")
        if self.out and self.out.is_dir():
            raise ValueError(f"out={self.out} is a folder; name a .json file")
        if self.out and self.out.suffix == ".png":
            raise ValueError(f"out={self.out} is the path of the figure; name a .json file")
