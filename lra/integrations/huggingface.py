"""CUR attention inside the encoders of Hugging Face transformers, version 5 or later.

    from lra.integrations.huggingface import register

    register()
    model = AutoModel.from_pretrained("facebook/dinov2-small", attn_implementation="cur")
    model.set_attn_implementation("cur_abs")    # another selection
    model.config.cur = {"count": 32}            # options of one model, see lra.ops.cur.cur_attention
    register("mine", count=16, pairing="same_k")  # or under another name

docs/cur.md lists the supported models and explains how a model is saved with its attention.
"""

import inspect
import warnings
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

from ..ops.cur import cur_attention
from ..ops.selection import SCORES
from . import needs

with needs("hf", __name__):
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import bidirectional_mask_function

_PARAMETERS = inspect.signature(cur_attention).parameters.values()
OPTIONS = [p.name for p in _PARAMETERS if p.kind is p.KEYWORD_ONLY and p.name != "scale"]
# Name after "cur_" -> options of cur_attention.
SELECTIONS = {score: {"score": score} for score in SCORES}
SELECTIONS["plus"] = {"columns": "cells", "score": "farthest"}
# Arguments of some models, most of which change the scores, that CUR does not support.
UNSUPPORTED = ("position_bias", "softcap", "sliding_window", "s_aux", "head_mask", "cache", "output_attentions")


def register(name: str | None = None, **options) -> None:
    """Register CUR attention as ``attn_implementation=name``.

    Position 0, the class token of ViT, DINOv2 or BERT, is always selected unless ``class_token=False``.

    Args:
        name: name to register. None registers ``cur`` with the defaults, ``cur_<score>`` for every selection,
            ``cur_plus`` and, if the kernels are installed, ``cur_flash``, which needs a GPU.
        options: options of ``lra.ops.cur.cur_attention``. The options that define a name, such as the selection of
            ``cur_step``, cannot be replaced.

    Raises:
        ValueError: an option is unknown.
    """
    # Name -> its options.
    names: dict[str, dict[str, Any]] = {name or "cur": {}}
    if not name:
        names |= {f"cur_{selection}": defaults for selection, defaults in SELECTIONS.items()}
        if find_spec("triton"):
            names["cur_flash"] = {"impl": "triton"}
    for key, defaults in names.items():
        merged = _checked({"class_token": True} | options | defaults, "register")
        AttentionInterface.register(key, partial(attend, merged))
        AttentionMaskInterface.register(key, padding)

    # A model whose configuration asks for CUR but that computes exact attention by sdpa gives a warning.
    exact = AttentionInterface()["sdpa"]
    if getattr(exact, "func", None) is not attend_exactly:
        AttentionInterface.register("sdpa", partial(attend_exactly, exact))


def attend(
    options: dict,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **arguments,
) -> tuple[Tensor, None]:
    """Compute CUR attention behind the interface of transformers: (N,H,L,D) -> (N,L,H,E), without weights.

    Args:
        options: options of ``lra.ops.cur.cur_attention``.
        module: the attention layer, whose ``config.cur`` may hold further options.
        query, key, value: (N,H,L,D), (N,H,L,D), (N,H,L,E).
        attention_mask: (N,1,1,L), or (N,H,L,L) with the same keys for all heads and queries: True for real keys, or
            added to the scores. None if all keys are real.
        dropout: must be 0.
        scaling: factor of the scores; None for 1 / √D.
        is_causal: must be false; None for the attribute of ``module``, by default true.
        arguments: further arguments of the model.

    Raises:
        ValueError: the model is a decoder, asks for cross-attention, dropout, another mask for some heads or queries,
            or an unsupported argument, or ``config.cur`` has an unknown option.
    """
    kind = type(module).__name__
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True)
    if is_causal:
        raise ValueError(f"{kind} is causal; CUR attention is for encoders, load this model with another one")
    if dropout:
        raise ValueError(
            f"{kind} asks for attention dropout {dropout:g} in training, which CUR does not have; "
            "set the model's attention dropout to 0"
        )
    unsupported = [name for name in UNSUPPORTED if arguments.get(name) is not None and arguments[name] is not False]
    if unsupported:
        raise ValueError(f"{kind} asks for {', '.join(unsupported)}, which CUR attention does not have")

    # Options of the model's configuration override the registered ones.
    merged = options | _checked(_config_options(module), "config.cur")
    out = cur_attention(query, key, value, _keys(attention_mask, kind), scale=scaling, **merged)  # (N,H,L,E)
    return out.transpose(1, 2).contiguous(), None


def _config_options(module: nn.Module) -> dict:
    """Return ``config.cur`` of a layer; empty without one."""
    config = getattr(module, "config", None)
    return getattr(config, "cur", None) or {}


def attend_exactly(exact: Callable, module: nn.Module, *args, **kwargs) -> tuple[Tensor, Tensor | None]:
    """Compute transformers' sdpa, with a warning if the configuration of the model asks for CUR attention.

    Args:
        exact: function of transformers.
        module: the attention layer.
        args, kwargs: further arguments of ``exact``.
    """
    if not torch.compiler.is_compiling() and _config_options(module):
        warnings.warn(
            "config.cur is set but the model computes exact attention: "
            "call model.set_attn_implementation('cur'), or delete model.config.cur",
            stacklevel=2,
        )
    return exact(module, *args, **kwargs)


def padding(
    *, mask_function: Callable, attention_mask: Tensor | None = None, config=None, local_size: int | None = None, **_
) -> Tensor | None:
    """Reshape the mask of the tokenizer (N,L) to (N,1,1,L); None if all tokens are real.

    Other implementations expand it to (N,1,L,L).

    Args:
        mask_function: mask function of the model; only the bidirectional one is supported.
        attention_mask: (N,L); None if all tokens are real.
        config: configuration of the model.
        local_size: window of ``mask_function``; None for all tokens. ModernBERT asks for a window's mask even if none
            of its layers uses it.

    Raises:
        ValueError: the mask is causal, the window of a layer, or depends on the query in another way.
    """
    kind = getattr(config, "model_type", "this model")
    if local_size is not None:
        # Without layer types, every layer has the window.
        layer_types = getattr(config, "layer_types", None)
        if not layer_types or "sliding_attention" in layer_types:
            raise ValueError(
                f"{kind} has layers of local attention, in which a token attends to a window; CUR attention is for "
                "layers that attend to all tokens, in ModernBERT global_attn_every_n_layers=1"
            )
    elif mask_function is not bidirectional_mask_function:
        raise ValueError(f"{kind} is a decoder or masks keys query by query; CUR attention is for encoders that do not")
    if attention_mask is None:
        return None
    # A compiler does not know the values of the mask.
    if not torch.compiler.is_compiling() and attention_mask.all():
        return None
    return attention_mask.bool()[:, None, None]


def _keys(mask: Tensor | None, kind: str) -> Tensor | None:
    """Return the real keys (N,1,1,L) of a mask, which is bool or added to the scores.

    Raises:
        ValueError: the keys differ between heads or queries, or the mask has a position bias.
    """
    if mask is None:
        return None
    # An additive mask has the most negative value at padding and 0 elsewhere.
    is_additive = mask.dtype is not torch.bool
    is_real = mask > torch.finfo(mask.dtype).min / 2 if is_additive else mask
    keys = is_real[:, :1, :1]
    # A GPU waits for each check. A boolean mask with one row for all heads and queries needs none.
    if is_additive and mask.masked_fill(~is_real, 0).any():
        raise ValueError(f"{kind} adds a position bias to the scores, which CUR attention does not have")
    if mask.shape[1:3] == (1, 1):
        return keys
    if not (is_real == keys).all():
        raise ValueError(f"{kind} masks keys query by query or head by head; CUR attention takes one mask for all")
    return keys


def _checked(options: dict, where: str) -> dict:
    """Return options. Raises ValueError for an unknown one; ``where`` says where it was set."""
    unknown = sorted(options.keys() - set(OPTIONS))
    if unknown:
        raise ValueError(f"{where}: unknown option {', '.join(unknown)}; valid options are {', '.join(OPTIONS)}")
    return options
