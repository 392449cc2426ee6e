"""Embeddings of tokens.

``positions`` are those of the tokens: (T,) of packed rows (1,T), see ``lra.varlen``, or (N,L) of rows without their
holes; None for 0 .. L-1.
"""

from typing import Literal

import torch
from torch import Tensor, nn

from ..options import Checked
from .dropout import Dropout

Padding = Literal["learned", "constant", "zero"]
Positions = Literal["learned", "rotary", "none"]  # of a model: a table, rotated queries and keys, or none


class TokenEmbedding(Checked, nn.Module):
    """The sum of learned token and position tables, then dropout: ids (N,L) int -> (N,L,d).

    Source: docs/sources.md, Nystromformer.

    Args:
        vocab, dim: sizes of the token table.
        length: the largest L.
        dropout: dropout rate of the sum.
        std: standard deviation of the normal initialisation, null for d^-1/2.
        bound: bound of a uniform initialisation between -bound and bound instead.
        positions: whether there is a position table; without it the mechanism has to know the order of the tokens.
        padding: the vector of id 0: ``learned`` as any other, ``constant`` as drawn, or ``zero``.
    """

    def __init__(
        self,
        *,
        vocab: int,
        length: int,
        dim: int,
        dropout: float,
        std: float | None = 0.02,
        bound: float | None = None,
        positions: bool = True,
        padding: Padding = "learned",
    ):
        super().__init__()
        self.token = nn.Embedding(vocab, dim, padding_idx=None if padding == "learned" else 0)
        self.position = nn.Embedding(length, dim) if positions else None
        self.dropout = Dropout(dropout)
        self.std = dim**-0.5 if std is None else std
        for table in filter(None, (self.token, self.position)):
            if bound is None:
                nn.init.normal_(table.weight, std=self.std)
            else:
                nn.init.uniform_(table.weight, -bound, bound)
        if padding == "zero":
            nn.init.zeros_(self.token.weight[0])

    def forward(self, ids: Tensor, positions: Tensor | None = None) -> Tensor:
        x = self.token(ids)
        return self.dropout(x if self.position is None else x + _at(self.position, ids.shape[1], positions))


class PairEmbedding(nn.Module):
    """Tokens that are pairs, each the sum of two vectors, then dropout: ids (N,L) int -> (N,L,d).

    Id 0 is filler, 1 + a seconds + b is the pair (a, b), a larger one is the class token. Filler and the class token
    have vectors of their own.

    Args:
        firsts, seconds: numbers of values of a and of b.
        length: the largest L.
        dim: d.
        dropout: share of the sum.
        std: standard deviation of the normal initialisation.
        positions: whether a position table is added.
    """

    def __init__(
        self,
        *,
        firsts: int,
        seconds: int,
        length: int,
        dim: int,
        dropout: float,
        std: float = 1.0,
        positions: bool = True,
    ):
        super().__init__()
        self.firsts, self.seconds = firsts, seconds
        self.first, self.second = nn.Embedding(firsts + 2, dim), nn.Embedding(seconds + 1, dim)
        self.position = nn.Embedding(length, dim) if positions else None
        self.dropout = Dropout(dropout)
        for table in (self.first, self.second):
            nn.init.normal_(table.weight, std=std)
        if positions:
            nn.init.normal_(self.position.weight, std=0.02)

    def forward(self, ids: Tensor, positions: Tensor | None = None) -> Tensor:
        first = ((ids - 1) // self.seconds + 1).clamp(max=self.firsts + 1)  # 0 for filler
        second = torch.where((first == 0) | (first > self.firsts), 0, (ids - 1) % self.seconds + 1)
        x = self.first(first) + self.second(second)
        return self.dropout(x if self.position is None else x + _at(self.position, ids.shape[1], positions))


class PixelEmbedding(nn.Module):
    """Grey levels as real numbers times a learned vector plus another one, as in MEGA and S5: (N,L) int -> (N,L,d).

    (ids / 255 - mean) / std · scale + shift for ids from 0 to 255, then dropout; without a position table.
    """

    def __init__(self, *, length: int, dim: int, dropout: float, mean: float, std: float):
        super().__init__()
        self.mean, self.std = mean, std
        self.scale = nn.Parameter(torch.randn(dim))
        self.shift = nn.Parameter(0.1 * torch.randn(dim))
        self.dropout = Dropout(dropout)

    def forward(self, ids: Tensor, positions: Tensor | None = None) -> Tensor:
        value = (ids.to(self.scale.dtype) / 255 - self.mean) / self.std
        return self.dropout(value[..., None] * self.scale + self.shift)


class FeatureEmbedding(nn.Module):
    """A linear map of real features plus a learned position table with standard deviation 0.02, then dropout.

    features (N,L,F) float -> (N,L,d), L at most ``length`` (PSF-Attn's Linear for Adding, TokenEmbedding's positions).
    """

    def __init__(self, *, features: int, length: int, dim: int, dropout: float, positions: bool = True):
        super().__init__()
        self.feature = nn.Linear(features, dim)
        self.position = nn.Embedding(length, dim) if positions else None
        self.dropout = Dropout(dropout)
        if positions:
            nn.init.normal_(self.position.weight, std=0.02)

    def forward(self, features: Tensor, positions: Tensor | None = None) -> Tensor:
        x = self.feature(features)
        return self.dropout(x if self.position is None else x + _at(self.position, features.shape[1], positions))


def _at(table: nn.Embedding, L: int, positions: Tensor | None) -> Tensor:
    """The vectors of 0 .. L-1, or of ``positions`` (L,) or (N,L)."""
    return table.weight[:L] if positions is None else table(positions)
