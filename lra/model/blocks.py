"""Encoder blocks: forward(x (N,L,d), mask (N,L), memory) -> (x, memory).

A block around a mixer with ``varlen`` also takes packed rows: varlen(x (1,T,d), layout) -> x. ``hole_free`` is the
mixer's.
"""

from collections.abc import Callable
from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

from ..attention.base import Mixer
from ..options import Checked, Share
from ..varlen import VarlenLayout
from .dropout import Dropout
from .norm import Norm, make_norm

Activation = Literal["full_glu", "half_glu1", "half_glu2"]  # by S5's names
Gelu = Literal["exact", "tanh"]


class PreNorm(nn.Module):
    """x + dropout(mixer(LN x)), then x + MLP(LN x) (docs/sources.md, Nystromformer).

    MLP: Linear d -> hidden, GELU, dropout, Linear hidden -> d, dropout.

    Args:
        mixer: a factory without arguments.
        dim: d.
        hidden: width of the MLP.
        dropout: dropout rate of the mixer's output and in the MLP.

    Raises:
        ValueError: the mixer's rows are not d wide.
    """

    def __init__(self, mixer: Callable[[], Mixer], *, dim: int, hidden: int, dropout: float):
        super().__init__()
        self.mixer_norm = nn.LayerNorm(dim)
        self.mixer = mixer()
        self.hole_free = self.mixer.hole_free
        _check_width(self.mixer, dim)
        self.dropout = Dropout(dropout)
        self.mlp_norm = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(
            nn.Linear(dim, hidden), nn.GELU(), Dropout(dropout), nn.Linear(hidden, dim), Dropout(dropout)
        )

    def forward(self, x: Tensor, mask: Tensor | None, memory=None):
        return self._add(x, self.mixer(self.mixer_norm(x), mask)), memory

    def varlen(self, x: Tensor, layout: VarlenLayout) -> Tensor:
        return self._add(x, self.mixer.varlen(self.mixer_norm(x), layout))

    def _add(self, x: Tensor, mixed: Tensor) -> Tensor:
        x = x + self.dropout(mixed)
        return x + self.mlp(self.mlp_norm(x))


class GLU(Checked, nn.Module):
    """x + dropout(GLU(y)), y = mixer(norm(x)), without a feed-forward layer: the block of S4D, S5 and LRU.

    Args:
        mixer: a factory without arguments.
        dim: d.
        hidden: unused; other blocks have an MLP of this width.
        dropout: dropout rate of GELU(y) and of GLU(y).
        norm: ``batch`` over the real tokens, or another one of ``lra.model.norm``.
        prenorm: False for norm(x + ...) instead, as in S4 on ListOps and Image.
        tied: whether all positions of a row share one dropout mask.
        activation: activation function. With g = dropout(GELU(y)), GLU(y) is W₁ g σ(W₂ g) (``full_glu``), g σ(W g)
            (``half_glu1``) or y σ(W g) (``half_glu2``); each W is a Linear d -> d.
        gelu: ``exact`` | ``tanh``, its approximation.
        momentum: share of a batch in the running averages of a batch norm.
        mixer_dropout: whether y has dropout too, each position its own.

    Source: docs/ssm.md, S4D and S5.
    """

    def __init__(
        self,
        mixer: Callable[[], Mixer],
        *,
        dim: int,
        hidden: int,
        dropout: float,
        norm: Norm = "batch",
        prenorm: bool = True,
        tied: bool = False,
        activation: Activation = "full_glu",
        gelu: Gelu = "exact",
        momentum: Share = 0.1,
        mixer_dropout: bool = False,
    ):
        super().__init__()
        self.prenorm, self.activation = prenorm, activation
        self.norm = make_norm(norm, dim, momentum=momentum)
        self.mixer = mixer()
        self.hole_free = self.mixer.hole_free
        _check_width(self.mixer, dim)
        self.mixed_dropout = Dropout(dropout if mixer_dropout else 0.0)
        self.inner = nn.Sequential(nn.GELU("none" if gelu == "exact" else gelu), Dropout(dropout, tied=tied))
        self.gate = nn.Linear(dim, 2 * dim if activation == "full_glu" else dim)
        self.dropout = Dropout(dropout, tied=tied)

    def forward(self, x: Tensor, mask: Tensor | None, memory=None):
        mixed = self.mixer(self.norm(x, mask) if self.prenorm else x, mask)
        x = x + self.dropout(self._gated(self.mixed_dropout(mixed)))
        return (x if self.prenorm else self.norm(x, mask)), memory

    def _gated(self, y: Tensor) -> Tensor:
        g = self.inner(y)
        if self.activation == "full_glu":
            return F.glu(self.gate(g), -1)
        return (g if self.activation == "half_glu1" else y) * self.gate(g).sigmoid()


class Plain(nn.Module):
    """The mixer alone, as in PSF's own model, without norm, residual path and MLP.

    Rows have the mixer's width; ``dim``, ``hidden`` and ``dropout`` are unused.
    """

    def __init__(self, mixer: Callable[[], Mixer], *, dim: int, hidden: int, dropout: float):
        super().__init__()
        self.mixer = mixer()
        self.width, self.hole_free = self.mixer.width, self.mixer.hole_free

    def forward(self, x: Tensor, mask: Tensor | None, memory=None):
        return self.mixer(x, mask), memory

    def varlen(self, x: Tensor, layout: VarlenLayout) -> Tensor:
        return self.mixer.varlen(x, layout)


def _check_width(mixer: Mixer, dim: int) -> None:
    if mixer.width != dim:
        raise ValueError(f"rows of {dim} and of {mixer.width} from the mixer do not add up; block=plain adds none")
