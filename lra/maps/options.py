"""The options of lra.maps, conf/maps.yaml."""

from pathlib import Path
from typing import ClassVar

from ..config.options import Options
from ..config.sections import Root, Trust
from ..options import Whole


class MapsOptions(Options):
    conf: ClassVar[str] = "maps"

    run: Path | None
    split: str
    example: Whole
    layer: Whole | None
    head: Whole | None
    at: Whole | list[Whole | list[Whole]] | None
    out: Path | None
    trust: Trust
    data: Root
