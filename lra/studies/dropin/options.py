"""The options of the study, conf/dropin.yaml."""

from pathlib import Path
from typing import Annotated, ClassVar, Literal

from annotated_types import MinLen

from ...config.options import Options
from ...config.sections import Root, Some, Threads, Trust, listed
from ...options import Positive, Range, Whole


class DropinOptions(Options):
    conf: ClassVar[str] = "dropin"

    candidates: Some[str]
    counts: Some[Annotated[int, Range(2)]]
    n: Annotated[int, Range(2)]
    seed: Whole
    sources: Annotated[list[Literal["gaussian", "clustered"]], listed, MinLen(0)]
    heads: Positive
    head_dim: Positive
    length: Positive
    run: Path | None
    trust: Trust
    data: Root
    model: Path | None
    examples: Path | None
    drawn: Positive
    size: Positive
    cost: Whole
    threads: Threads
    runs: Path

    def check(self) -> None:
        if not (self.sources or self.run or self.model):
            raise ValueError("nothing to measure: name sources, run= or model=")
        if bool(self.model) != bool(self.examples):
            raise ValueError("model= and examples= go together: an encoder, and a .tar file that it reads")
