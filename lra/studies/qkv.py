"""Queries, keys and values of attention, and random ones."""

from typing import NamedTuple

import torch
from torch import Tensor

Layer = tuple[Tensor, Tensor, Tensor]  # q, k (1,H,L,D), v (1,H,L,E), all tokens real
CLUSTERS, SPREAD, NOISE = 24, 1.5, 0.5  # of ``clustered``: deviations of the centres, and around them


class QKVSource(NamedTuple):
    """A source: the name of its column and folder, a description, and the layers of each example."""

    name: str
    about: str
    examples: list[list[Layer]]


def generated(kind: str, *, n: int, heads: int, length: int, head_dim: int, seed: int) -> QKVSource:
    """Generate a source.

    Args:
        kind: ``gaussian``, independent normal numbers; ``clustered``, q and k around the same centres, v normal.
        n: examples.
        heads, length, head_dim: sizes of an example.
        seed: seed of the numbers.
    """
    draw = torch.Generator().manual_seed(seed)
    H, L, D = heads, length, head_dim
    normal = lambda *shape: torch.randn(1, H, *shape, generator=draw)

    def layer() -> Layer:
        if kind == "gaussian":
            return normal(L, D), normal(L, D), normal(L, D)
        centres = SPREAD * normal(CLUSTERS, D)
        near = lambda: (
            centres[0, torch.arange(H)[:, None], torch.randint(CLUSTERS, (H, L), generator=draw)] + NOISE * normal(L, D)
        )
        return near(), near(), normal(L, D)

    about = f"{H} heads of {D}"
    if kind == "clustered":
        about += f", {CLUSTERS} clusters, deviation {SPREAD} between them and {NOISE} within"
    return QKVSource(f"{kind}-{L}", about, [[layer()] for _ in range(n)])
