"""Bytes and FLOPs that a mechanism alone needs, and the rates of this machine.

G = batch x heads, n length, d head size, m kept or landmark tokens. With a copy bandwidth of B bytes/s and a matmul
rate of F FLOP/s no kernel is faster than max(bytes / B, FLOPs / F). The bytes are those that any attention moves once:

    forward                 read q, k, v, write the output                                              4 G n d elements
    forward and backward    and read q, k, v and the output's gradient, write the gradients of q, k, v  11 G n d

FLOPs are those of matrix products, 2 a b c for a product of a x b and b x c. The backward pass has two products for
each product of the forward pass; that of exact attention also recomputes the scores:

    exact                   4 G n² d, 14 G n² d in both passes
    CUR, Nystromformer      G (8 n m d + 4 m² d + 8 s m³), three times that in both passes; s steps of the cubic
                            iteration at four products each
"""

from collections.abc import Callable

import torch
from torch import nn

from ..attention.cur import CUR
from ..attention.nystrom import Nystrom
from ..attention.sdpa import SDPA
from ..attention.softmax import Softmax
from .measure import measure
from .released_cur import ReleasedCUR
from .sdpa_backends import Exact


def elements(G: int, n: int, d: int, *, backward: bool) -> int:
    """The number of elements that any attention moves, by the formula above."""
    return (11 if backward else 4) * G * n * d


def flops(attention: nn.Module, G: int, n: int, d: int, *, backward: bool) -> int | None:
    """The FLOPs of a mechanism by the formulas above; None if it has none.

    Args:
        attention: the mechanism.
        G: batch x heads.
        n: length.
        d: head size.
        backward: whether the backward pass is included.
    """
    if isinstance(attention, Exact | SDPA | Softmax):
        return (14 if backward else 4) * G * n * n * d
    match attention:
        case ReleasedCUR():
            m, steps = attention.count, attention.steps
        case CUR() | Nystrom():
            m = attention.options.count if isinstance(attention, CUR) else attention.landmarks
            steps = getattr(attention.pinv, "keywords", {}).get("steps")
            if steps is None:
                return None
        case _:
            return None
    return (3 if backward else 1) * G * (8 * n * m * d + 4 * m * m * d + 8 * steps * m**3)


def copy_rate(device: str) -> float:
    """Measure the bytes read and written per second by a copy larger than any cache, the best of several."""
    size = 2**30 if device == "cuda" else 2**27
    source, target = (torch.ones(size, dtype=torch.uint8, device=device) for _ in range(2))
    return 2 * size / _seconds(lambda: target.copy_(source), device)


def matmul_rate(device: str, dtype: torch.dtype) -> float:
    """Measure the FLOP/s of a large square matrix product, the best of several."""
    size = 8192 if device == "cuda" else 1024
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    return 2 * size**3 / _seconds(lambda: a @ b, device)


def _seconds(call: Callable[[], object], device: str) -> float:
    """Time the fastest of ten calls."""
    return min(measure({"call": call}, repeats=10, warmup=2, device=device)["call"].samples) / 1000
