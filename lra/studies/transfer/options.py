"""The options of a transfer, conf/transfer.yaml."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import Field

from ...config.options import Options
from ...config.section import Section
from ...config.sections import Above, Attn, BatchSize, Block, Loggers, Name, Root, Trainer, Trust
from ...ops.options import Positive, Whole


class Tuning(Section):
    lr: Above | None
    batch: BatchSize | None
    warmup: Whole | None
    eval_every: Positive | None


class Moved(Root):
    eval_batch: BatchSize | None


class TransferOptions(Options):
    conf: ClassVar[str] = "transfer"

    run: Annotated[Path, Field(description="a finished run: run=runs/<study>/<task>/<label>")]
    trust: Trust
    attn: Attn
    block: Block = None
    trainer: Trainer
    logger: Loggers = Field({})
    steps: Whole
    examples: Positive
    spectrum: Whole
    optim: Tuning
    study: Name | None
    runs: Path
    data: Moved

    @classmethod
    def check_unresolved(cls, tree: Mapping[str, Any]) -> None:
        if "task" in tree:
            raise ValueError("a transfer has the task of its run; leave out task=")
