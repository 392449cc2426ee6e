"""The queries, keys and values of the attention of a pretrained encoder of transformers."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from ...integrations import needs
from ...integrations.huggingface import padding
from ..encoder import Encoder

with needs("hf", __name__):
    from transformers import AttentionInterface, AttentionMaskInterface

NAME = "lra_capture"


@torch.no_grad()
def captured(encoder: Encoder, content: bytes) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Record q, k and v of every layer for one example, without padding.

    Args:
        encoder: pretrained.
        content: content of a file.

    Returns:
        q, k, v of each layer in order, each (1,H,L,D), scaled so that scores are q kᵀ / √D.

    Raises:
        ValueError: the scores of a layer are not q kᵀ, or it has another number of keys than of queries.
    """
    recorded: list[tuple[Tensor, Tensor, Tensor]] = []
    before = encoder.model.config._attn_implementation
    AttentionInterface.register(NAME, keep(recorded))
    AttentionMaskInterface.register(NAME, padding)
    encoder.model.set_attn_implementation(NAME)
    try:
        encoder([content])
    finally:
        encoder.model.set_attn_implementation(before)
    return recorded


def keep(recorded: list) -> Callable:
    """Make an attention function of transformers that computes exact attention and records its arguments."""

    def attend(module, query, key, value, attention_mask, scaling=None, **others):
        kind = type(module).__name__
        if attention_mask is not None or query.shape != key.shape or others.get("position_bias") is not None:
            raise ValueError(f"{kind} has a mask, position bias or other keys than queries, which is not softmax(q kᵀ)")
        if scaling is not None:
            query = query * (scaling * query.shape[-1] ** 0.5)
        recorded.append((query.cpu(), key.cpu(), value.cpu()))
        return F.scaled_dot_product_attention(query, key, value).transpose(1, 2).contiguous(), None

    return attend
