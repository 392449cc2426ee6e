"""Queries, keys and values of attention: recorded from the mechanisms of a model, or random."""

import contextlib
import inspect
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from ..attention.base import Attention
from ..config.options import Options
from ..config.schema import Root, Trust
from ..data.datamodule import Batch
from ..model.classifier import Classifier
from ..ops.selection import gather_tokens
from ..options import Positive, Whole


def mechanisms(model: nn.Module) -> dict[str, Attention]:
    """List the mechanisms of a model by path, in order; a mechanism inside another one is part of it."""
    by_path: dict[str, Attention] = {}
    for path, module in model.named_modules():
        # Parents come before their children.
        is_nested = any(path.startswith(f"{outer}.") for outer in by_path)
        if isinstance(module, Attention) and not is_nested:
            by_path[path] = module
    return by_path


class Intercepted(NamedTuple):
    """One call of a mechanism with its output (N,H,L,E)."""

    arguments: dict
    out: Tensor

    @property
    def real(self) -> Tensor:
        """Bool, broadcastable to (N,H,L,E): whether an entry of the output belongs to a real token."""
        mask = self.arguments.get("mask")
        if mask is None:
            return torch.ones_like(self.out[:1, :1, :1, :1], dtype=torch.bool)
        return mask[:, None, :, None]


@torch.no_grad()
def calls(model: Classifier, batch: Batch, encode_separately: bool = False) -> dict[str, list[Intercepted]]:
    """Record the calls of every mechanism on a batch, by path: one, or one per tower with ``encode_separately``."""
    recorded: dict[str, list[Intercepted]] = {}

    def record_call(path: str, module: nn.Module, args: tuple, kwargs: dict, out: Tensor) -> None:
        signature = inspect.signature(module.forward)
        arguments = signature.bind(*args, **kwargs).arguments
        call = Intercepted(arguments, out)
        recorded.setdefault(path, []).append(call)

    with contextlib.ExitStack() as stack:
        for path, module in mechanisms(model).items():
            hook = module.register_forward_hook(partial(record_call, path), with_kwargs=True)
            stack.enter_context(hook)
        # The model gets its setting back afterwards.
        stack.callback(setattr, model, "encode_separately", model.encode_separately)
        model.encode_separately = model.encode_separately or encode_separately
        model(batch.inputs, batch.mask)
    return recorded


class QKVOptions(Options):
    """The options of commands that record queries, keys and values of runs, or generate them."""

    n: Positive
    seed: Whole
    heads: Positive
    head_dim: Positive
    length: Positive
    trust: Trust
    data: Root
    runs: Path


# q, k (1,H,L,D), v (1,H,L,E), all tokens real
Layer = tuple[Tensor, Tensor, Tensor]
# Clustered tokens: number of centres, their standard deviation, and the standard deviation around them.
CLUSTERS = 24
SPREAD = 1.5
NOISE = 0.5


class QKVSource(NamedTuple):
    """A source: the name of its column and folder, a description, and the layers of each example."""

    name: str
    about: str
    examples: list[list[Layer]]


def generated(kind: Literal["gaussian", "clustered"], options: QKVOptions) -> QKVSource:
    """Generate independent normal numbers, or q and k around the same centres and a normal v."""
    generator = torch.Generator().manual_seed(options.seed)
    H = options.heads
    L = options.length
    D = options.head_dim

    def normal(*shape: int) -> Tensor:
        return torch.randn(1, H, *shape, generator=generator)

    def around(centres: Tensor) -> Tensor:
        """Draw tokens around random centres."""
        cluster = torch.randint(CLUSTERS, (1, H, L), generator=generator)
        noise = NOISE * normal(L, D)
        return gather_tokens(centres, cluster) + noise

    # Draw the centres, then q, k and v.
    def layer() -> Layer:
        if kind == "gaussian":
            return normal(L, D), normal(L, D), normal(L, D)
        centres = SPREAD * normal(CLUSTERS, D)
        return around(centres), around(centres), normal(L, D)

    about = f"{H} heads of {D}"
    if kind == "clustered":
        about += f", {CLUSTERS} clusters, deviation {SPREAD} between them and {NOISE} within"
    examples = [[layer()] for _ in range(options.n)]
    return QKVSource(f"{kind}-{L}", about, examples)
