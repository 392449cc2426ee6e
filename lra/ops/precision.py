"""Precision: float32 or wider under autocast, a residual stream in 16 bits, and emulated products of bfloat16."""

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

HALF_TYPES = (torch.float16, torch.bfloat16)
# The dtype of autocast for each 16-bit ``trainer.precision``.
AUTOCAST_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
_FUSED_ATTENTION = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
# The operations of torch that multiply matrices.
_PRODUCTS = {
    torch.ops.aten.mm.default,
    torch.ops.aten.bmm.default,
    torch.ops.aten.addmm.default,
    torch.ops.aten.baddbmm.default,
    torch.ops.aten.convolution.default,
    torch.ops.aten.convolution_backward.default,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default,
    _FUSED_ATTENTION,
}


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
    """Whether a model on the device of x keeps its residual stream in 16 bits: under autocast on a CPU.

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


def computes_in_float16(x: Tensor) -> bool:
    """Whether products of x are computed in float16, by its dtype or by autocast."""
    device = x.device.type
    if x.dtype == torch.float16:
        return True
    # The device meta has no autocast.
    if device == "meta" or not torch.is_autocast_enabled(device):
        return False
    return torch.get_autocast_dtype(device) == torch.float16


def is_slow_fused(x: Tensor) -> bool:
    """Whether the fused kernel is slower than a materialised map for few queries or few keys: bfloat16 on a CPU.

    CPU time in ms of the forward and backward pass of the two thin products of ``landmark_product``: 32 sequences of
    n = 512, 1024, 2048 tokens, 2 heads of width 32, 64 landmarks, one thread of a processor with avx512_bf16, medians
    of 9 interleaved rounds.

        float32     fused  36, 73, 155    materialised  42, 87, 173
        bfloat16    fused  66, 96, 202    materialised  22, 45,  92
    """
    return x.device.type == "cpu" and x.dtype == torch.bfloat16


def supports_bf16() -> bool:
    """Whether the processor has instructions for products of bfloat16 numbers, by AMX or AVX-512."""
    return torch.cpu._is_amx_tile_supported() or torch.cpu._is_avx512_bf16_supported()


def emulates_bf16(device: str, precision: str) -> bool:
    """Whether bfloat16 products are computed in float32: bf16 on a processor without bfloat16 instructions.

    Args:
        device: cpu or cuda.
        precision: fp32, bf16 or fp16.
    """
    return device == "cpu" and precision == "bf16" and not supports_bf16()


def bf16_products(device: str, precision: str) -> AbstractContextManager:
    """Return ``ProductsInFloat32`` if ``emulates_bf16``, otherwise an empty context."""
    return ProductsInFloat32() if emulates_bf16(device, precision) else nullcontext()


class ProductsInFloat32(TorchDispatchMode):
    """Computes products of bfloat16 matrices in float32 and rounds each result once, in forward and backward passes.

    Processors with bfloat16 instructions do the same: they multiply exactly and accumulate in float32. On other
    processors torch's bfloat16 products are several times slower than the same products in float32.
    """

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        has_bf16 = any(isinstance(x, Tensor) and x.dtype == torch.bfloat16 for x in args)
        if func not in _PRODUCTS or not has_bf16:
            return func(*args, **kwargs)

        float32_args = [upcast(x) for x in args]
        float32_kwargs = {name: upcast(x) for name, x in kwargs.items()}
        result = func(*float32_args, **float32_kwargs)
        # The log-sum-exp of fused attention is float32 in every precision.
        if func is _FUSED_ATTENTION:
            out, log_sum_exp = result
            return out.bfloat16(), log_sum_exp
        return tree_map_only(Tensor, Tensor.bfloat16, result)
