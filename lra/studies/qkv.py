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
from ..config.sections import Root, Trust
from ..data.datamodule import Batch
from ..model.classifier import Classifier
from ..ops.selection import gather_tokens
from ..options import Positive, Whole


def mechanisms(model: nn.Module) -> dict[str, Attention]:
    """List the mechanisms of a model by path, in order; a mechanism inside another one is part of it."""
    by_path: dict[str, Attention] = {}
    for path, module in model.named_modules():
        if isinstance(module, Attention) and not any(path.startswith(f"{outer}.") for outer in by_path):
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
        return torch.ones_like(self.out[:1, :1, :1, :1], dtype=torch.bool) if mask is None else mask[:, None, :, None]


@torch.no_grad()
def calls(model: Classifier, batch: Batch, encode_separately: bool = False) -> dict[str, list[Intercepted]]:
    """Record the calls of every mechanism of a model on a batch, by path, one per tower with ``encode_separately``."""
    recorded: dict[str, list[Intercepted]] = {}

    def keep(path: str, module: nn.Module, args: tuple, kwargs: dict, out: Tensor) -> None:
        arguments = inspect.signature(module.forward).bind(*args, **kwargs).arguments
        recorded.setdefault(path, []).append(Intercepted(arguments, out))

    with contextlib.ExitStack() as stack:
        for path, module in mechanisms(model).items():
            stack.enter_context(module.register_forward_hook(partial(keep, path), with_kwargs=True))
        stack.callback(setattr, model, "encode_separately", model.encode_separately)
        model.encode_separately = model.encode_separately or encode_separately
        model(batch.inputs, batch.mask)
    return recorded


class QKVOptions(Options):
    """The options of commands that record queries, keys and values of runs, or generate them in sizes of their own."""

    n: Positive
    seed: Whole
    heads: Positive
    head_dim: Positive
    length: Positive
    trust: Trust
    data: Root
    runs: Path


Layer = tuple[Tensor, Tensor, Tensor]  # q, k (1,H,L,D), v (1,H,L,E), all tokens real
CLUSTERS, SPREAD, NOISE = 24, 1.5, 0.5  # of ``clustered``: deviations of the centres, and around them


class QKVSource(NamedTuple):
    """A source: the name of its column and folder, a description, and the layers of each example."""

    name: str
    about: str
    examples: list[list[Layer]]


def generated(kind: Literal["gaussian", "clustered"], options: QKVOptions) -> QKVSource:
    """Generate independent normal numbers, or q and k around the same centres and a normal v."""
    draw = torch.Generator().manual_seed(options.seed)
    H, L, D = options.heads, options.length, options.head_dim
    normal = lambda *shape: torch.randn(1, H, *shape, generator=draw)

    def layer() -> Layer:
        if kind == "gaussian":
            return normal(L, D), normal(L, D), normal(L, D)
        centres = SPREAD * normal(CLUSTERS, D)
        near = lambda: gather_tokens(centres, torch.randint(CLUSTERS, (1, H, L), generator=draw)) + NOISE * normal(L, D)
        return near(), near(), normal(L, D)

    about = f"{H} heads of {D}"
    if kind == "clustered":
        about += f", {CLUSTERS} clusters, deviation {SPREAD} between them and {NOISE} within"
    return QKVSource(f"{kind}-{L}", about, [[layer()] for _ in range(options.n)])
