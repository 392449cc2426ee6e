"""Embeddings of tokens and features.

``positions`` are the positions of the tokens: (L,) for packed sequences (1,L), see ``lra.varlen``, or (N,L) after
compaction; None for 0 .. L-1.
"""

from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..options import Checked
from .dropout import Dropout

Padding = Literal["learned", "constant", "zero"]
# Positions of a model: a learned table, rotary positions, or none.
Positions = Literal["learned", "rotary", "none"]


class TokenEmbedding(Checked, nn.Module):
    """The sum of a token's and a position's vector from two learned tables, then dropout.

    Source: docs/sources.md, Nystromformer.

    Args:
        vocab: number of token ids.
        dim: d.
        length: maximum L.
        dropout: dropout rate of the sum.
        std: standard deviation of the normal initialisation of both tables; None for d^-1/2.
        bound: initialise both tables uniformly between -bound and bound instead; None for the normal one.
        positions: whether there is a position table; without it only the mechanism knows the order of the tokens.
        padding: the vector of id 0. ``learned``: trained like any other. ``constant``: gets no gradient; only
            weight decay changes it. ``zero``: stays zero.
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
        # The vector of ``padding_idx`` has no gradient.
        self.token = nn.Embedding(vocab, dim, padding_idx=None if padding == "learned" else 0)
        self.position = nn.Embedding(length, dim) if positions else None
        self.dropout = Dropout(dropout)
        self.std = dim**-0.5 if std is None else std
        self.bound = bound
        self.padding = padding
        # Both tables have the same distribution.
        tables = [self.token] if self.position is None else [self.token, self.position]
        for table in tables:
            if bound is None:
                nn.init.normal_(table.weight, std=self.std)
            else:
                nn.init.uniform_(table.weight, -bound, bound)
        if padding == "zero":
            nn.init.zeros_(self.token.weight[0])

    def forward(
        self,
        ids: Int[Tensor, "N L"],
        positions: Int[Tensor, "*batch L"] | None = None,
    ) -> Float[Tensor, "N L d"]:
        x = self.token(ids)
        x = _add_positions(x, self.position, positions)
        return self.dropout(x)


class PairEmbedding(nn.Module):
    """Tokens that are pairs, each the sum of two vectors, then dropout.

    Id 0 is filler, a real token without a pair; id 1 + a · ``seconds`` + b is the pair (a, b); a larger id is the class
    token. Filler and the class token have their own vectors.

    Args:
        firsts: number of values of a.
        seconds: number of values of b.
        length: maximum L.
        dim: d.
        dropout: dropout rate of the sum.
        std: standard deviation of the normal initialisation of both parts; a position table has 0.02.
        positions: whether the vector of a position table is added.
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
        self.firsts = firsts
        self.seconds = seconds
        # Filler and the class token have indices 0 and firsts + 1 of the first table, and both index 0 of the second.
        self.first = nn.Embedding(firsts + 2, dim)
        self.second = nn.Embedding(seconds + 1, dim)
        self.position = nn.Embedding(length, dim) if positions else None
        self.dropout = Dropout(dropout)
        for table in (self.first, self.second):
            nn.init.normal_(table.weight, std=std)
        if self.position is not None:
            nn.init.normal_(self.position.weight, std=0.02)

    def forward(
        self,
        ids: Int[Tensor, "N L"],
        positions: Int[Tensor, "*batch L"] | None = None,
    ) -> Float[Tensor, "N L d"]:
        # Index of a: 0 for filler, firsts + 1 for the class token.
        pair = ids - 1
        first = pair // self.seconds + 1
        first = first.clamp(max=self.firsts + 1)
        # Index of b: 0 for filler and the class token, which have no b.
        is_single = (first == 0) | (first > self.firsts)
        second = torch.where(is_single, 0, pair % self.seconds + 1)
        x = self.first(first) + self.second(second)
        x = _add_positions(x, self.position, positions)
        return self.dropout(x)


class PixelEmbedding(nn.Module):
    """Grey levels from 0 to 255 as real numbers, as in MEGA and S5.

    (ids / 255 - mean) / std · scale + shift with two learned vectors of width d, then dropout. There is no position
    table; ``length`` and the positions are unused.
    """

    def __init__(self, *, length: int, dim: int, dropout: float, mean: float, std: float):
        super().__init__()
        self.mean = mean
        self.std = std
        self.scale = nn.Parameter(torch.randn(dim))
        self.shift = nn.Parameter(0.1 * torch.randn(dim))
        self.dropout = Dropout(dropout)

    def forward(
        self,
        ids: Int[Tensor, "N L"],
        positions: Int[Tensor, "*batch L"] | None = None,
    ) -> Float[Tensor, "N L d"]:
        # Standardised grey levels.
        grey = ids.to(self.scale.dtype) / 255
        value = (grey - self.mean) / self.std
        x = value[..., None] * self.scale + self.shift
        return self.dropout(x)


class FeatureEmbedding(nn.Module):
    """A linear map of float features, as in PSF-Attn's model of Adding, then dropout.

    With ``positions``, the vector of a learned table of ``length`` positions is added. Its initial standard deviation
    is 0.02, as in ``TokenEmbedding``.
    """

    def __init__(self, *, features: int, length: int, dim: int, dropout: float, positions: bool = True):
        super().__init__()
        self.feature = nn.Linear(features, dim)
        self.position = nn.Embedding(length, dim) if positions else None
        self.dropout = Dropout(dropout)
        if self.position is not None:
            nn.init.normal_(self.position.weight, std=0.02)

    def forward(
        self,
        features: Float[Tensor, "N L F"],
        positions: Int[Tensor, "*batch L"] | None = None,
    ) -> Float[Tensor, "N L d"]:
        x = self.feature(features)
        x = _add_positions(x, self.position, positions)
        return self.dropout(x)


def _add_positions(
    x: Float[Tensor, "N L d"],
    table: nn.Embedding | None,
    positions: Int[Tensor, "*batch L"] | None,
) -> Float[Tensor, "N L d"]:
    """Add the vectors of positions 0 .. L-1, or of the given ones."""
    if table is None:
        return x
    if positions is None:
        return x + table.weight[: x.shape[1]]
    return x + table(positions)
