"""LeCun initialisation of linear maps, flax's default, as in the released S5 and in minimal-LRU."""

from typing import Literal

from torch import nn

from ..ops.init import truncated_normal_
from .embed import PixelEmbedding, TokenEmbedding

Init = Literal["torch", "lecun"]


def lecun_normal_(model: nn.Module) -> None:
    """Initialise linear maps by truncated normal numbers with variance 1 / (number of inputs), and biases by 0.

    ``PixelEmbedding`` counts as a linear map of one number. The token table of ``TokenEmbedding`` gets truncated normal
    numbers with the standard deviation ``std`` of the embedding, also in the row of padding unless ``padding=zero``.
    Position tables, and a token table with ``bound``, are unchanged. Linear maps that a mechanism initialises itself,
    such as LION-S's map to its decays and Mamba's map to its step sizes, are overwritten too, so published recipes use
    ``lecun`` with S5 and LRU only.

    Args:
        model: model, changed in place.

    Source: lindermanlab/S5, whose Dense layers have flax's defaults (docs/ssm.md, S5).
    """
    for module in model.modules():
        # Linear maps; then embeddings of pixels and of tokens.
        if isinstance(module, nn.Linear):
            truncated_normal_(module.weight, std=module.in_features**-0.5)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, PixelEmbedding):
            truncated_normal_(module.scale, std=1.0)
            nn.init.zeros_(module.shift)
        elif isinstance(module, TokenEmbedding) and module.bound is None:
            truncated_normal_(module.token.weight, std=module.std)
            if module.padding == "zero":
                nn.init.zeros_(module.token.weight[0])
