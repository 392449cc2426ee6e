"""Queries, keys and values of attention: recorded from the mechanisms of a model, or random."""

import contextlib
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from ..attention.base import Attention
from ..config.options import Options
from ..config.schema import Root, Trust
from ..data.datamodule import Batch
from ..maps.maps import POSITIONAL
from ..model.classifier import Classifier
from ..ops.selection import gather_tokens
from ..options import Positive, Whole


def mechanisms(model: nn.Module) -> dict[str, Attention]:
    """List the mechanisms of a model by path, in order, without mechanisms that are part of another one."""
    by_path: dict[str, Attention] = {}
    for path, module in model.named_modules():
        # Parents come before their children.
        is_nested = any(path.startswith(f"{outer}.") for outer in by_path)
        if isinstance(module, Attention) and not is_nested:
            by_path[path] = module
    return by_path


class MechanismCall(NamedTuple):
    """The arguments of one call of a mechanism by name, and its output (N,H,L,E)."""

    arguments: dict
    out: Tensor

    @property
    def real(self) -> Tensor:
        """Mark the entries of the output that belong to real tokens: bool, broadcastable to (N,H,L,E)."""
        mask = self.arguments.get("mask")
        if mask is None:
            return torch.ones_like(self.out[:1, :1, :1, :1], dtype=torch.bool)
        return mask[:, None, :, None]


@torch.no_grad()
def record_calls(model: Classifier, batch: Batch, encode_separately: bool = False) -> dict[str, list[MechanismCall]]:
    """Run a model on a batch and record the calls of every mechanism.

    Args:
        model: the model.
        batch: batch of examples.
        encode_separately: whether to encode the towers one after the other, even if the model would encode them as
            one batch.

    Returns:
        The calls by path of the mechanism: one, or one for each tower if the towers are encoded separately.
    """
    recorded: dict[str, list[MechanismCall]] = {}

    def record_call(path: str, _module: nn.Module, args: tuple, kwargs: dict, out: Tensor) -> None:
        arguments = dict(zip(POSITIONAL, args, strict=False)) | kwargs
        call = MechanismCall(arguments, out)
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
QKV = tuple[Tensor, Tensor, Tensor]
# Clustered tokens: number of clusters, standard deviation of their centres, and standard deviation around a centre.
NUM_CLUSTERS = 24
CENTRE_STD = 1.5
NOISE_STD = 0.5


class QKVSource(NamedTuple):
    """Queries, keys and values of several examples.

    Args:
        name: name of the source in tables and folders.
        about: description of the source.
        examples: q, k and v of each layer, for each example.
    """

    name: str
    about: str
    examples: list[list[QKV]]


def generate(kind: Literal["gaussian", "clustered"], options: QKVOptions) -> QKVSource:
    """Generate ``options.n`` examples of one layer.

    Args:
        kind: ``gaussian``: standard normal q, k and v. ``clustered``: q and k scatter around the same random centres, v
            is standard normal.
        options: number and sizes of the examples, and the random seed.
    """
    generator = torch.Generator().manual_seed(options.seed)
    H = options.heads
    L = options.length
    D = options.head_dim

    def normal(*shape: int) -> Tensor:
        return torch.randn(1, H, *shape, generator=generator)

    def scatter_around(centres: Tensor) -> Tensor:
        """Draw tokens (1,H,L,D), each around a random one of the centres (1,H,clusters,D)."""
        cluster = torch.randint(NUM_CLUSTERS, (1, H, L), generator=generator)
        noise = NOISE_STD * normal(L, D)
        return gather_tokens(centres, cluster) + noise

    def draw_layer() -> QKV:
        if kind == "gaussian":
            return normal(L, D), normal(L, D), normal(L, D)
        centres = CENTRE_STD * normal(NUM_CLUSTERS, D)
        return scatter_around(centres), scatter_around(centres), normal(L, D)

    about = f"{H} heads of {D}"
    if kind == "clustered":
        about += f", {NUM_CLUSTERS} clusters, deviation {CENTRE_STD} between them and {NOISE_STD} within"
    examples = [[draw_layer()] for _ in range(options.n)]
    return QKVSource(f"{kind}-{L}", about, examples)
