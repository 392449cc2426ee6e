"""Queries, keys and values that a pretrained encoder of transformers gives its attention."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from ...integrations import needs
from ...integrations.huggingface import padding
from .encoder import Encoder

with needs("hf", __name__):
    from transformers import AttentionInterface, AttentionMaskInterface

NAME = "lra_capture"


@torch.no_grad()
def captured(encoder: Encoder, content: bytes) -> list[tuple[Tensor, Tensor, Tensor]]:
    """q, k, v of every layer, in order, each (1,H,L,D): scores q kᵀ / √D, and no padding, since the example is alone.

    Raises ValueError where a layer's keys are not as many as its queries, or another thing enters its scores.
    """
    seen: list[tuple[Tensor, Tensor, Tensor]] = []
    before = encoder.model.config._attn_implementation
    AttentionInterface.register(NAME, keep(seen))
    AttentionMaskInterface.register(NAME, padding)
    encoder.model.set_attn_implementation(NAME)
    try:
        encoder([content])
    finally:
        encoder.model.set_attn_implementation(before)
    return seen


def keep(seen: list) -> Callable:
    """An attention function of transformers that does what its own do, and keeps what it is given."""

    def attend(module, query, key, value, attention_mask, scaling=None, **others):
        kind = type(module).__name__
        if attention_mask is not None or query.shape != key.shape or others.get("position_bias") is not None:
            raise ValueError(f"{kind} has a mask, position bias or other keys than queries, which is not softmax(q kᵀ)")
        if scaling is not None:
            query = query * (scaling * query.shape[-1] ** 0.5)
        seen.append((query.cpu(), key.cpu(), value.cpu()))
        return F.scaled_dot_product_attention(query, key, value).transpose(1, 2).contiguous(), None

    return attend
