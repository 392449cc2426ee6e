"""Efficient attention (Shen et al. 2021, Efficient Attention: Attention with Linear Complexities)."""

import torch

from lra.attention.base import Attention


class EfficientAttention(Attention):
    """softmax of q over features, softmax of k over positions, times v: O(L D E) time."""

    compactable = True  # see "Arguments"

    def __init__(self, sizes, *, temperature: float = 1.0):
        super().__init__(sizes)
        self.temperature = temperature

    def forward(self, q, k, v, mask=None):  # q, k (N,H,L,D), v (N,H,L,E), mask (N,L) -> (N,H,L,E)
        scores = k / self.temperature
        # Padding gets weight 0. finfo.min, not -inf: softmax over a fully padded sequence would give NaN.
        if mask is not None:
            scores = scores.masked_fill(~mask[:, None, :, None], torch.finfo(k.dtype).min)
        summary = scores.softmax(2).mT @ v  # (N,H,D,E)
        return q.softmax(-1) @ summary
