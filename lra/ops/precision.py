"""Operations in float32 or wider under autocast, and the cases that stay in 16 bits."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

HALF_TYPES = (torch.float16, torch.bfloat16)


def full_precision(function: Callable) -> Callable:
    """Decorate a function or method to compute in float32 or wider, with autocast off.

    Arguments of dtype float16 or bfloat16, also in a tuple, are converted to float32; float64, integers and bools are
    unchanged. The result is not converted back. Autocast is switched off for the device of the first argument that is a
    tensor; there must be one.
    """

    @functools.wraps(function)
    def upcast_and_call(*args: Any, **kwargs: Any) -> Any:
        arguments = (*args, *kwargs.values())
        tensors = [x for x in arguments if isinstance(x, Tensor)]
        device = tensors[0].device.type

        args = tuple(upcast(x) for x in args)
        kwargs = {name: upcast(x) for name, x in kwargs.items()}
        with torch.autocast(device, enabled=False):
            return function(*args, **kwargs)

    return upcast_and_call


def upcast(x: Any) -> Any:
    """Convert a 16-bit tensor, or the 16-bit tensors of a tuple, to float32; return everything else unchanged."""
    if isinstance(x, tuple):
        return tuple(upcast(element) for element in x)
    if isinstance(x, Tensor) and x.dtype in HALF_TYPES:
        return x.float()
    return x


def keeps_16_bits(x: Tensor) -> bool:
    """Whether the residual stream of x is kept in 16 bits: under autocast on a CPU.

    There every product casts its input, so a 16-bit stream is cast once instead of in every product, and needs half the
    memory traffic. On other devices the stream stays in float32.
    """
    return x.device.type == "cpu" and torch.is_autocast_enabled("cpu")


def cast_stream(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Convert a float32 residual stream to autocast's dtype if ``keeps_16_bits``."""
    if keeps_16_bits(x) and x.dtype == torch.float32:
        dtype = torch.get_autocast_dtype("cpu")
        return x.to(dtype)
    return x


def is_slow_fused(x: Tensor) -> bool:
    """Whether a thin attention map is written out because torch's fused kernel is slow: in bfloat16 on a CPU.

    CPU time in ms of both passes of the two thin products, 32 x 2 heads of 32, c = 64, one thread of a processor with
    avx512_bf16, medians of 9 interleaved rounds, for n = 512, 1024, 2048:

        float32     fused  36, 73, 155    written out  42, 87, 173
        bfloat16    fused  66, 96, 202    written out  22, 45,  92
    """
    return x.device.type == "cpu" and x.dtype == torch.bfloat16
