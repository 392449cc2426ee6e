"""Full precision inside autocast: 16-bit tensors become float32, float64 is unchanged."""

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

NARROW = torch.float16, torch.bfloat16


def full_precision(function: Callable) -> Callable:
    """Decorate a function or method to compute in float32 at least, with autocast off.

    Arguments of dtype float16 or bfloat16, also in a tuple, are converted to float32; float64, integers and bools are
    not. The first tensor determines the device. The result keeps its dtype.
    """

    @functools.wraps(function)
    def wide(*args: Any, **kwargs: Any) -> Any:
        device = next(x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)).device.type
        with torch.autocast(device, enabled=False):
            return function(*map(at_least_float32, args), **{key: at_least_float32(x) for key, x in kwargs.items()})

    return wide


def narrow(x: Tensor) -> bool:
    """Whether rows are kept in 16 bits for x: under autocast on a CPU.

    There every product casts its input, so that rows in 16 bits are cast once instead of at each of them, and need half
    the memory traffic. On other devices rows stay in float32.
    """
    return x.device.type == "cpu" and torch.is_autocast_enabled("cpu")


def writes_out(x: Tensor) -> bool:
    """Whether a map of few rows or columns is written out, not left to torch's fused call: in bfloat16 on a CPU.

    CPU time in ms of both passes of the two thin products, 32 x 2 heads of 32, c = 64, one thread of a processor with
    avx512_bf16, medians of 9 interleaved rounds, for n = 512, 1024, 2048:

        float32     fused  36, 73, 155    written out  42, 87, 173
        bfloat16    fused  66, 96, 202    written out  22, 45,  92
    """
    return x.device.type == "cpu" and x.dtype == torch.bfloat16


def stream(x: Tensor) -> Tensor:
    """Convert the residual stream to 16 bits if ``narrow``."""
    return x.to(torch.get_autocast_dtype("cpu")) if narrow(x) and x.dtype == torch.float32 else x


def at_least_float32(x: Any) -> Any:
    """Convert a tensor, or those in a tuple, from 16 bits to float32; everything else stays as it is."""
    if isinstance(x, tuple):
        return tuple(map(at_least_float32, x))
    return x.float() if isinstance(x, Tensor) and x.dtype in NARROW else x


def to_unit(x: Tensor) -> Tensor:
    """Find the power of two that scales the largest entry of each (...,L,D) into [1/2, 1), 1 for zeros: (...,1,1).

    A product with it is exact, and squares of the result neither overflow nor underflow.
    """
    largest = x.detach().abs().amax((-2, -1), keepdim=True)
    most = -math.frexp(torch.finfo(x.dtype).tiny)[1]
    return torch.ldexp(torch.ones_like(largest), -largest.frexp().exponent.clamp(-most, most))
