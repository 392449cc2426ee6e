"""The options of the study, conf/inverses.yaml."""

from pathlib import Path
from typing import Annotated, ClassVar, Literal

from ...config.options import Options
from ...config.sections import Root, Some, Threads, Trust
from ...options import Positive, Range, Whole


class InversesOptions(Options):
    conf: ClassVar[str] = "inverses"

    run: Some[Path] | None
    trust: Trust
    n: Positive
    steps: Some[Whole]
    dtype: Literal["float32", "float64"]
    kinds: Some[Literal["gaussian", "clustered"]]
    counts: Some[Annotated[int, Range(2)]]
    heads: Positive
    head_dim: Positive
    length: Positive
    seed: Whole
    threads: Threads | None
    runs: Path
    data: Root
