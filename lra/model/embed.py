"""From tokens to vectors."""

import torch
from torch import Tensor, nn

from .dropout import Dropout


class TokenEmbedding(nn.Module):
    """Learned token and position tables, normal with standard deviation 0.02, added, then dropout.

    ids (N,L) int -> (N,L,d), L at most ``length`` (protocols.yaml, nystromformer_small).
    """

    def __init__(self, *, vocab: int, length: int, dim: int, dropout: float):
        super().__init__()
        self.token = nn.Embedding(vocab, dim)
        self.position = nn.Embedding(length, dim)
        self.dropout = Dropout(dropout)
        for table in (self.token, self.position):
            nn.init.normal_(table.weight, std=0.02)

    def forward(self, ids: Tensor) -> Tensor:
        positions = torch.arange(ids.shape[1], device=ids.device)
        return self.dropout(self.token(ids) + self.position(positions))


class FeatureEmbedding(nn.Module):
    """A linear map of real features plus a learned position table with standard deviation 0.02, then dropout.

    features (N,L,F) float -> (N,L,d), L at most ``length`` (PSF-Attn's Linear for Adding, TokenEmbedding's positions).
    """

    def __init__(self, *, features: int, length: int, dim: int, dropout: float):
        super().__init__()
        self.feature = nn.Linear(features, dim)
        self.position = nn.Embedding(length, dim)
        self.dropout = Dropout(dropout)
        nn.init.normal_(self.position.weight, std=0.02)

    def forward(self, features: Tensor) -> Tensor:
        positions = torch.arange(features.shape[1], device=features.device)
        return self.dropout(self.feature(features) + self.position(positions))
