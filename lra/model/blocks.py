"""Encoder blocks: forward(x (N,L,d), mask (N,L), memory) -> (x, memory).

A block around a mixer with ``varlen`` also takes packed rows: varlen(x (1,T,d), layout) -> x.
"""

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor, nn

from ..attention.base import Mixer
from ..ops.varlen import VarlenLayout
from .dropout import Dropout
from .norm import Norm
from .norm import norm as make_norm


class PreNorm(nn.Module):
    """x + dropout(mixer(LN x)), then x + MLP(LN x) (docs/sources.md, Nystromformer).

    MLP: Linear d -> hidden, GELU, dropout, Linear hidden -> d, dropout.

    Args:
        mixer: a factory without arguments.
        dim: d.
        hidden: width of the MLP.
        dropout: of the mixer's output and in the MLP.

    Raises:
        ValueError: the mixer's rows are not d wide.
    """

    def __init__(self, mixer: Callable[[], Mixer], *, dim: int, hidden: int, dropout: float):
        super().__init__()
        self.mixer_norm = nn.LayerNorm(dim)
        self.mixer = mixer()
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


class GLU(nn.Module):
    """x + dropout(GLU(Linear d -> 2d (dropout(GELU(mixer(norm(x))))))), without a feed-forward layer.

    The block of S4, S4D and LRU (docs/sources.md). GLU(a, b) = a σ(b).

    Args:
        mixer: a factory without arguments.
        dim: d.
        hidden: unused; other blocks have an MLP of this width.
        dropout: in both places.
        norm: ``batch`` over the real tokens, or another one of ``lra.model.norm``.
        prenorm: False for norm(x + ...) instead, as in S4 on ListOps and Image.
        tied: whether all positions of a row share one dropout mask.
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
    ):
        super().__init__()
        self.prenorm = prenorm
        self.norm = make_norm(norm, dim)
        self.mixer = mixer()
        _check_width(self.mixer, dim)
        self.inner = nn.Sequential(nn.GELU(), Dropout(dropout, tied=tied))
        self.gate = nn.Linear(dim, 2 * dim)
        self.dropout = Dropout(dropout, tied=tied)

    def forward(self, x: Tensor, mask: Tensor | None, memory=None):
        mixed = self.mixer(self.norm(x, mask) if self.prenorm else x, mask)
        x = x + self.dropout(F.glu(self.gate(self.inner(mixed)), -1))
        return (x if self.prenorm else self.norm(x, mask)), memory


class Plain(nn.Module):
    """The mixer alone, as in PSF's own model, without norm, residual path and MLP.

    Rows have the mixer's width; ``dim``, ``hidden`` and ``dropout`` are unused.
    """

    def __init__(self, mixer: Callable[[], Mixer], *, dim: int, hidden: int, dropout: float):
        super().__init__()
        self.mixer = mixer()
        self.width = self.mixer.width

    def forward(self, x: Tensor, mask: Tensor | None, memory=None):
        return self.mixer(x, mask), memory

    def varlen(self, x: Tensor, layout: VarlenLayout) -> Tensor:
        return self.mixer.varlen(x, layout)


def _check_width(mixer: Mixer, dim: int) -> None:
    if mixer.width != dim:
        raise ValueError(f"rows of {dim} and of {mixer.width} from the mixer do not add up; block=plain adds none")
