"""The options of each part of a configuration. Defaults are in ``conf``; a field with one here may be absent there."""

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from ..model.classifier import MeanOver, Pool
from ..model.embed import Positions
from ..model.norm import Norm
from ..model.pretrainer import Loss, MaskId
from ..ops import metrics as metric
from ..ops.options import Positive, Range, Share, Whole
from .calls import Call
from .convert import ABSENT, Many, Rule

T = TypeVar("T")
Some = Annotated[list[T], Many()]
Number = int | float  # an int is not converted to a float
Least = Annotated[Number, Range(0)]
BatchSize = Annotated[int, Range(1, 10**6)]  # of a batch
Masked = Annotated[float, Range(above=0, below=1)]  # share of positions
Threads = Annotated[int, Range(1, 1024)]
Device = Literal["auto", "cpu", "cuda"]
Precision = Literal["fp32", "bf16", "fp16"]
Name = Annotated[
    str,
    Rule(
        "a name: 1 to 150 characters, no slash, no blank at an end, not . or ..",
        lambda text: (
            bool(re.fullmatch(r"[^/\\\x00-\x1f\x7f]{1,150}", text)) and text.strip(". ") != "" and text.strip() == text
        ),
    ),
]
Trust = Name | list[Name] | None  # modules whose classes a run's config.yaml may name
Seeds = Annotated[
    list[Annotated[int, Range(0)]],
    Rule(
        "a list of different whole numbers from 0, such as [0,1,2]",
        lambda seeds: len(set(seeds)) == len(seeds) > 0,
    ),
]
Metric = Literal[tuple(name for name, f in vars(metric).items() if getattr(f, "__module__", "") == metric.__name__)]
# ``given``: arguments that ``lra.train.build`` and ``lra.train.fit`` pass to constructors, hence no options.
Attn = Annotated[
    Any,
    Call(
        given=frozenset({"dim", "heads", "head_dim", "value_dim", "length", "first"}),
        also={"requires": Literal["gpu"], "otherwise": str},
    ),
]
Block = Annotated[Any, Call(given=frozenset({"dim", "hidden", "dropout", "length"}))]
Embed = Annotated[Any, Call(given=frozenset({"dim", "dropout", "length"}))]
Head = Annotated[Any, Call(given=frozenset({"dim", "hidden", "outputs", "towers"}))]
Logger = Annotated[Any, Call(given=frozenset({"folder", "first_step", "config", "seed", "fingerprint"}))]
Source = Annotated[Any, Call(partial=False)]


@dataclass(kw_only=True)
class Model:
    layers: Annotated[int, Range(1, 1000)]
    heads: Positive
    dim: Positive
    head_dim: Positive | None
    hidden: Positive
    dropout: Share
    positions: Positions
    pool: Pool
    norm: Norm | None
    embed_std: Annotated[float, Range(above=0)]
    embed: Embed | None
    head: Head | None

    def validate(self) -> None:
        if not self.head_dim and self.dim % self.heads:
            raise ValueError(f"model.heads must divide model.dim {self.dim}, not {self.heads}; or set model.head_dim")


@dataclass(kw_only=True)
class Optim:
    lr: Annotated[float, Range(above=0)]
    steps: Positive
    warmup: Whole
    batch: BatchSize
    micro_batch: BatchSize | None
    eval_every: Positive
    betas: Annotated[
        list[Annotated[float, Range(0, below=1)]], Rule("two numbers from 0 to below 1", lambda betas: len(betas) == 2)
    ]
    eps: Annotated[float, Range(0)]
    weight_decay: Annotated[float, Range(0)]
    clip_norm: Annotated[float, Range(above=0)] | None
    schedule: Literal["one_cycle", "linear", "cosine", "constant"]
    warmup_power: Annotated[Number, Range(above=0)]

    def validate(self) -> None:
        if self.steps % self.eval_every:
            raise ValueError(f"optim.eval_every must divide optim.steps {self.steps}, not {self.eval_every}")
        if self.batch % (self.micro_batch or self.batch):
            raise ValueError(f"optim.micro_batch must divide optim.batch {self.batch}, not {self.micro_batch}")
        # torch's one-cycle schedule divides by warmup - 1 and steps - warmup
        if self.warmup and not 2 <= self.warmup < self.steps:
            raise ValueError(
                f"optim.warmup must be 0 or from 2 to optim.steps - 1 ({self.steps - 1}), not {self.warmup}"
            )


@dataclass(kw_only=True)
class Masking:
    """The options of a task for ``pretrain=masked``."""

    ratio: Masked = 0.15
    loss: Loss = "cross_entropy"


@dataclass(kw_only=True)
class Pretrain:
    objective: Literal["none", "masked", "next"]
    ratio: Masked = ABSENT
    mask_id: MaskId = ABSENT
    loss: Loss = ABSENT
    steps: Positive | None = ABSENT
    matched: bool = ABSENT
    lr: Annotated[float, Range(above=0)] = ABSENT
    warmup: Whole = ABSENT
    batch: BatchSize = ABSENT
    eval_every: Positive = ABSENT
    from_: Path | None = ABSENT

    def settle(self, optim: Optim) -> None:
        """Settle the steps of both phases: ``matched`` takes those of phase one from ``optim``.

        Raises:
            ValueError: a phase gets none, or its evaluations or warm-up do not fit it.
        """
        if self.objective == "none":  # an experiment may say more, for its phase one that is left out
            self.__init__(objective="none")
            return
        if self.steps is None:
            share = optim.steps // 2 // self.eval_every * self.eval_every if self.matched else optim.steps
            self.steps = max(share, 1)
        if self.matched:
            taken, rest = divmod(self.steps * self.batch, optim.batch)
            if rest or taken >= optim.steps:
                raise ValueError(
                    f"pretrain.matched needs pretrain.steps · pretrain.batch {self.steps * self.batch} to be a "
                    f"multiple of optim.batch {optim.batch} below that times optim.steps {optim.steps}"
                )
            optim.steps -= taken
            optim.validate()
        own = {key: getattr(self, key) for key in ("lr", "steps", "warmup", "batch", "eval_every")}
        try:
            replace(optim, **own).validate()
        except ValueError as error:
            raise ValueError(re.sub(rf"optim\.({'|'.join(own)})\b", r"pretrain.\1", str(error))) from None


@dataclass(kw_only=True)
class Root:
    root: Path


@dataclass(kw_only=True)
class Data(Root):
    pad: Literal["auto", "batch", "fixed", "none", "compact"]
    mask: bool
    eval_batch: BatchSize | None

    def validate(self) -> None:
        if not self.mask and self.pad != "fixed":
            raise ValueError(
                "data.mask=false, padding as tokens, needs data.pad=fixed, or results would depend on the batch"
            )


@dataclass(kw_only=True)
class Task:
    name: Name
    metric: Metric
    loss: Literal["cross_entropy", "mse"] = ABSENT
    display: Literal["pixels", "expression", "bytes", "series"]
    towers: Literal[1, 2]
    vocab: Positive = ABSENT  # of a task of tokens
    features: Positive = ABSENT  # of a task of real numbers
    outputs: Positive
    limit: Positive
    shift: Whole
    masked_id: Whole | None
    length: Positive
    positions: Positions = ABSENT
    embed_std: Annotated[float, Range(above=0)] = ABSENT

    def validate(self) -> None:
        if self.metric in ("roc_auc", "balanced_accuracy") and self.outputs != 2:
            raise ValueError(f"task.outputs must be 2 with task.metric={self.metric}, not {self.outputs}")
        if (self.metric == "within_tolerance") != (self.loss == "mse"):
            raise ValueError(
                f"task.metric must be within_tolerance if task.loss is mse, and only then, not {self.metric}"
            )


@dataclass(kw_only=True)
class Protocol:
    name: Name
    mean_over: MeanOver
    cycle_momentum: bool
    masked_pixel: Whole | None
    hold_out: Whole


@dataclass(kw_only=True)
class Trainer:
    device: Device
    devices: Positive | Literal["auto", "launched"]
    precision: Precision
    force_bf16: bool
    compile: bool | Literal["reduce-overhead"]
    graph: bool
    threads: Threads | None
