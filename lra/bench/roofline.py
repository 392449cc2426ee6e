"""Bytes and FLOPs that a mechanism alone needs, and the rates of this machine.

G = batch x heads, n length, d head size, m kept or landmark tokens. With a copy bandwidth of B bytes/s and a matmul
rate of F FLOP/s no kernel ends before max(bytes / B, FLOPs / F). Bytes are what any attention has to move once:

    forward                 read q, k, v, write the output                                              4 G n d elements
    forward and backward    and read q, k, v and the output's gradient, write the gradients of q, k, v  11 G n d

FLOPs, matrix products only, a product of a x b and b x c being 2 a b c; the backward pass has two products for each of
the forward's, and the exact one's recomputes the scores:

    exact                   4 G n² d, 14 G n² d in both passes
    CUR, Nystromformer      G (8 n m d + 4 m² d + 8 s m³), three times that in both passes; s steps of the cubic
                            iteration at four products each
"""

import time
from collections.abc import Callable

import torch
from torch import nn

from ..attention.cur import CUR
from ..attention.nystrom import Nystrom
from ..attention.sdpa import SDPA
from ..attention.softmax import Softmax
from .released_cur import Published
from .sdpa_backends import Exact


def elements(G: int, n: int, d: int, *, backward: bool) -> int:
    return (11 if backward else 4) * G * n * d


def flops(attention: nn.Module, G: int, n: int, d: int, *, backward: bool) -> int | None:
    """None for a mechanism that has no formula above."""
    if isinstance(attention, Exact | SDPA | Softmax):
        return (14 if backward else 4) * G * n * n * d
    match attention:
        case Published():
            m, steps = attention.count, attention.steps
        case CUR() | Nystrom():
            m = attention.count if isinstance(attention, CUR) else attention.landmarks
            steps = getattr(attention.pinv, "keywords", {}).get("steps")
            if steps is None:
                return None
        case _:
            return None
    return (3 if backward else 1) * G * (8 * n * m * d + 4 * m * m * d + 8 * steps * m**3)


def copy_rate(device: str) -> float:
    """Bytes read and written per second by a copy that is larger than any cache, the best of several."""
    size = 2**30 if device == "cuda" else 2**27
    source, target = (torch.ones(size, dtype=torch.uint8, device=device) for _ in range(2))
    return 2 * size / _seconds(lambda: target.copy_(source), device)


def matmul_rate(device: str, dtype: torch.dtype) -> float:
    """FLOP/s of a large square matrix product, the best of several."""
    size = 8192 if device == "cuda" else 1024
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    return 2 * size**3 / _seconds(lambda: a @ b, device)


def _seconds(call: Callable[[], object], device: str, repeats: int = 10) -> float:
    """The fastest of ``repeats`` calls after two that do not count."""
    times = []
    for _ in range(repeats + 2):
        if device == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return min(times[2:])
