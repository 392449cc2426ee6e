"""The sections of a configuration: types and ranges of their options. The yamls of ``conf`` explain the options.

Defaults are in ``conf`` too; a field that has a default in this file may be absent from them.
"""

import math
import re
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from annotated_types import MinLen, Predicate
from pydantic import BeforeValidator, Field

from ..model.embed import Positions
from ..model.init import Init
from ..model.norm import Norm
from ..model.pooling import FIRST_VECTOR, MeanOver, Pool
from ..model.pretrainer import Loss, MaskId, Objective
from ..ops.metrics import Metric
from ..options import Above, Positive, Range, Share, Whole, is_name
from .base import Section
from .target import Constructor, Constructors, Target, options_of

T = TypeVar("T")
as_list = BeforeValidator(lambda value: value if isinstance(value, list) else [value])
# One or more values; a single value becomes a list of one.
Some = Annotated[list[T], as_list, MinLen(1)]
# An int is not converted to a float.
Number = int | float
# Examples of a batch.
BatchSize = Annotated[int, Range(1, 10**6)]
# Probability that a position is masked.
Masked = Annotated[float, Range(above=0, below=1)]
Threads = Annotated[int, Range(1, 1024)]
Device = Literal["auto", "cpu", "cuda"]
Precision = Literal["fp32", "bf16", "fp16"]


def omittable() -> Any:
    """Default of an option that may be omitted (its value is then None) but must not be set to null."""
    return Field(None)


def distinct(values: list) -> bool:
    """Whether a list is not empty and has no value twice."""
    return bool(values) and len(set(values)) == len(values)


Name = Annotated[
    str,
    Predicate(is_name),
    Field(
        description="a name of 1 to 150 characters (no slash, backslash or control character, no ${, no space at "
        "either end, not only dots)"
    ),
]
# Modules whose classes a run's config.yaml may name.
Trust = Name | list[Name] | None
Seeds = Annotated[
    list[Annotated[int, Range(0)]],
    Predicate(distinct),
    Field(description="a list of different whole numbers from 0, such as [0,1,2]"),
]
Betas = Annotated[
    list[Annotated[float, Range(0, below=1)]],
    Field(min_length=2, max_length=2, description="two numbers from 0 to below 1"),
]
Cosine = Annotated[
    list[Whole],
    Predicate(lambda steps: len(steps) == 2 and steps[0] < steps[1]),
    Field(description="two steps, [0,90]"),
]
# ``passed``: arguments that ``blocks``, ``experiment``, the classifier (to its head) and ``lra.train.trainer`` pass, so
# that they are not options.
Attn = Annotated[
    Target,
    Constructor(
        "attn",
        passed=("dim", "heads", "head_dim", "value_dim", "length", "first"),
        extra={"requires": Literal["gpu"], "otherwise": str},
    ),
]
Block = Annotated[Target, Constructor("block", passed=("dim", "hidden", "dropout", "length"))]
Embed = Annotated[Target, Constructor("model.embed", passed=("dim", "length"))]
Head = Annotated[Target, Constructor("model.head", passed=("dim", "hidden", "outputs", "towers"))]
Loggers = Annotated[
    dict[str, Any],
    Constructors("logger", passed=("folder", "first_step", "experiment", "seed", "fingerprint")),
]
Source = Annotated[Target, Constructor("source", partial=False)]


class Model(Section):
    layers: Annotated[int, Range(1, 1000)]
    heads: Positive
    dim: Positive
    head_dim: Positive | None
    hidden: Positive
    dropout: Share
    positions: Positions
    pool: Pool
    norm: Norm | None
    embed_std: Above
    embed: Embed | None
    head: Head | None
    init: Init

    @property
    def has_class_token(self) -> bool:
        """Whether sequences start with a class token or a class vector."""
        return self.pool in FIRST_VECTOR

    def check(self) -> None:
        if not self.head_dim and self.dim % self.heads:
            raise ValueError(f"model.heads must divide model.dim {self.dim}, got {self.heads}; or set model.head_dim")
        if self.embed and self.positions == "none" and self.embed.get("positions", True):
            kinds, _ = options_of(self.embed.function)
            if "positions" in kinds:
                # Hydra adds an option that the configuration does not have only with a plus.
                plus = "" if "positions" in self.embed.options else "+"
                remedy = f"add {plus}model.embed.positions=false"
                raise ValueError(f"model.positions=none has no effect on model.embed; {remedy}")


def nearest_divisor(number: int, value: int) -> int:
    """The divisor of a number that is nearest to a value, as a ratio; the search ends at a million."""
    limit = min(math.isqrt(number), 10**6)
    small_divisors = [k for k in range(1, limit + 1) if number % k == 0]
    large_divisors = [number // k for k in small_divisors]
    return min(small_divisors + large_divisors, key=lambda divisor: abs(math.log(divisor / value)))


class Optim(Section):
    lr: Above
    steps: Positive
    warmup: Whole
    batch: BatchSize
    micro_batch: BatchSize | None
    eval_every: Positive
    betas: Betas
    eps: Annotated[float, Range(0)]
    weight_decay: Annotated[float, Range(0)]
    own_lr_max: Above | None
    clip_norm: Above | None
    bias_decay: bool
    schedule: Literal["one_cycle", "linear", "cosine", "constant"]
    cosine: Cosine | None
    warmup_power: Annotated[Number, Range(above=0)]

    @property
    def micro_batches(self) -> int:
        """Number of micro-batches of a step."""
        return self.batch // (self.micro_batch or self.batch)

    def check(self) -> None:
        if self.micro_batch and self.batch % self.micro_batch:
            raise ValueError(f"optim.micro_batch must divide optim.batch {self.batch}, got {self.micro_batch}")
        if self.cosine and self.schedule != "cosine":
            raise ValueError(f"optim.cosine must be null with optim.schedule={self.schedule}, not {self.cosine}")
        if self.warmup_power != 1 and self.schedule == "one_cycle":
            raise ValueError(f"optim.warmup_power must be 1 with optim.schedule=one_cycle, not {self.warmup_power}")
        # Both faults of the schedule at once, with the overrides that correct them.
        faults: list[str] = []
        remedies: list[str] = []
        if self.steps % self.eval_every:
            faults.append(f"optim.eval_every must divide optim.steps {self.steps}, got {self.eval_every}")
            remedies.append(f"optim.eval_every={nearest_divisor(self.steps, self.eval_every)}")
        # The one-cycle schedule of torch divides by warmup - 1 and by steps - warmup.
        if self.warmup and not 2 <= self.warmup < self.steps:
            faults.append(f"optim.warmup must be 0 or from 2 to optim.steps - 1 ({self.steps - 1}), not {self.warmup}")
            warmup = self.steps // 10 if self.steps >= 20 else 0
            remedies.append(f"optim.warmup={warmup}")
        if faults:
            raise ValueError(f"{'; '.join(faults)}: add {' '.join(remedies)}")


class Masking(Section):
    """The options of a task for pretraining; ``ratio`` is for ``pretrain=masked`` only."""

    ratio: Masked = 0.15
    loss: Loss = "cross_entropy"


class Pretrain(Section):
    """Pretraining; the other options may be absent if ``objective`` is none."""

    objective: Literal["none", "masked", "next"]
    ratio: Masked = omittable()
    mask_id: MaskId = "own"
    loss: Loss = omittable()
    steps: Positive | None = None
    matched: bool = False
    lr: Above = omittable()
    warmup: Whole = omittable()
    batch: BatchSize = omittable()
    eval_every: Positive = omittable()
    from_: Path | None = Field(default=None, alias="from")

    def check(self) -> None:
        if self.objective == "none":
            return
        if self.objective == "next" and self.ratio is not None:
            raise ValueError("pretrain.ratio is the share of masked positions; pretrain=next has none")
        required = ["loss", "lr", "warmup", "batch", "eval_every"]
        if self.objective == "masked":
            required.append("ratio")
        missing = [key for key in required if getattr(self, key) is None]
        if missing:
            raise ValueError(f"pretrain.{missing[0]} is missing; pretrain={self.objective} needs it")

    def phase_objective(self) -> Objective:
        """The pretraining objective. Raises ValueError without pretraining."""
        if self.objective == "none":
            raise ValueError("pretrain=none has no pretraining objective")
        return self.objective

    def pretraining_optim(self, optim: Optim) -> Optim:
        """The optimiser of pretraining: its own learning rate, steps and batch, the rest as in fine-tuning.

        ``optim.cosine``, which counts steps of fine-tuning, is dropped.

        Raises:
            ValueError: its evaluations or its warm-up do not fit its steps, or ``optim.micro_batch`` its batch.
        """
        schedule = {key: getattr(self, key) for key in ("lr", "steps", "warmup", "batch", "eval_every")}
        try:
            return optim.replace(**schedule, cosine=None)
        except ValueError as error:
            # Name the options as options of pretraining.
            keys = "|".join(schedule)
            raise ValueError(re.sub(rf"optim\.({keys})\b", r"pretrain.\1", str(error))) from None


class Root(Section):
    root: Path
    # A folder with the official files of several tasks.
    release: Path | None = None


class Data(Root):
    pad: Literal["auto", "batch", "fixed", "none", "compact"]
    mask: bool
    eval_batch: BatchSize | None

    def check(self) -> None:
        if not self.mask and self.pad != "fixed":
            reason = "padding counts as tokens, and results would depend on the batch"
            raise ValueError(f"data.pad must be fixed with data.mask=false, not {self.pad}: {reason}")


class Task(Section):
    name: Name
    metric: Metric
    loss: Literal["cross_entropy", "mse"] = "cross_entropy"
    display: Literal["pixels", "expression", "bytes", "series"]
    towers: Literal[1, 2]
    # One of the two: the number of token ids, or of float features per token.
    vocab: Positive = omittable()
    features: Positive = omittable()
    outputs: Positive
    limit: Positive
    shift: Whole
    masked_id: Whole | None
    length: Positive
    positions: Positions = omittable()
    embed_std: Above = omittable()

    def check(self) -> None:
        if self.metric in ("roc_auc", "balanced_accuracy") and self.outputs != 2:
            raise ValueError(f"task.outputs must be 2 with task.metric={self.metric}, not {self.outputs}")
        if self.features is not None and self.masked_id is not None:
            raise ValueError(f"task.masked_id must be null with task.features, not {self.masked_id}")
        if self.loss == "mse" and self.metric != "within_tolerance":
            raise ValueError(f"task.metric must be within_tolerance with task.loss=mse, not {self.metric}")
        if self.loss != "mse" and self.metric == "within_tolerance":
            raise ValueError(f"task.loss must be mse with task.metric=within_tolerance, not {self.loss}")


class Protocol(Section):
    name: Name
    mean_over: MeanOver
    cycle_momentum: bool
    masked_pixel: Whole | None
    hold_out: Whole


Compile = bool | Literal["auto", "reduce-overhead"]


class Trainer(Section):
    device: Device
    devices: Positive | Literal["auto", "launched"]
    precision: Precision
    compile: Compile
    threads: Threads | None
