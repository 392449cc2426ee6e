"""Exact attention by the implementations that torch has."""

import functools
from typing import Literal

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from ..attention.base import Attention, Sizes
from ..train.compilation import allow_many_compilations

BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "math": SDPBackend.MATH,
}
Backend = Literal["naive", "flash", "efficient", "cudnn", "math", "flex"]


class Exact(Attention):
    """softmax(q kᵀ / √D) v without dropout, by one implementation of torch.

    torch raises RuntimeError if a backend has no kernel for the inputs.

    Args:
        backend: ``naive``, the formula as written, in the dtype of its inputs; ``flex``, a compiled flex_attention;
            else the backend of scaled_dot_product_attention.
    """

    def __init__(self, sizes: Sizes, *, backend: Backend = "naive"):
        super().__init__(sizes)
        self.backend = backend

    def forward(self, q, k, v, mask=None):
        if self.backend == "flex":
            return _flex()(q, k, v, block_mask=None if mask is None else _block_mask(mask))
        keys = None if mask is None else mask[:, None, None]  # (N,1,1,L)
        if self.backend == "naive":
            with torch.autocast(q.device.type, enabled=False):
                scores = (q * q.shape[-1] ** -0.5) @ k.mT  # (N,H,L,L)
                if keys is not None:
                    scores = scores.masked_fill(~keys, float("-inf"))
                return scores.softmax(-1) @ v
        with sdpa_kernel(BACKENDS[self.backend]):
            return F.scaled_dot_product_attention(q, k, v, keys)


@functools.cache
def _flex():
    # Beyond torch's default limit a further shape would run without the fused kernel.
    allow_many_compilations()
    return torch.compile(flex_attention, dynamic=False)


def _block_mask(mask):
    L = mask.shape[-1]
    return create_block_mask(lambda n, h, i, j: mask[n, j], len(mask), None, L, L, device=mask.device)
