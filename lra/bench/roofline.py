"""Bytes and FLOPs that a mechanism alone needs, and the rates of this machine.

G = batch x heads, n length, d head size, m selected or landmark tokens. With a copy bandwidth of B bytes/s and a matmul
rate of F FLOP/s no kernel is faster than max(bytes / B, FLOPs / F). Bytes count what attention moves once (if queries
are keys, 3 and 8 G n d elements instead of 4 and 11; controls such as ``mean`` move less than is counted):

    forward                 read q, k, v, write the output                                              4 G n d elements
    forward and backward    and read q, k, v and the output's gradient, write the gradients of q, k, v  11 G n d

FLOPs count matrix products, 2 a b c for a product of a x b and b x c. The backward pass has two products for
each product of the forward pass. For exact attention one more product is counted, the scores that fused kernels
recompute in the backward pass:

    exact                   4 G n² d, 14 G n² d in both passes; n (n + 1) / 2 instead of n² if it is causal
    CUR, Nystromformer      G (8 n m d + 4 m² d + 8 s m³), three times that in both passes; s steps of the cubic
                            iteration at four products each. Three savings are neglected: the released CUR takes U out
                            of C (2 m² d less), impl=sdpa in 16 bits applies the inverse by its factors (in the forward
                            pass 4 s m³ + 4 s m² d instead of 8 s m³, which is less if m > d), and the Triton kernels in
                            16 bits take five products per step in the backward pass instead of eight.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import nn

from ..attention.cur import CUR
from ..attention.nystrom import Nystrom
from ..attention.sdpa import SDPA
from ..attention.softmax import Softmax
from ..ops.pinv import cubic
from .measure import measure
from .released_cur import ReleasedCUR
from .sdpa_backends import Exact
from .workloads import DTYPES


def num_bytes(G: int, n: int, d: int, dtype: torch.dtype, *, backward: bool, shared_qk: bool) -> int:
    """The bytes that attention moves by the formulas above, see ``flops`` for the other arguments.

    Args:
        shared_qk: whether queries and keys are one tensor.
    """
    num_tensors = 11 if backward else 4
    # Queries that are the keys are read once in each pass, and have one gradient.
    if shared_qk:
        num_tensors -= 3 if backward else 1
    return num_tensors * G * n * d * dtype.itemsize


def flops(attention: nn.Module, G: int, n: int, d: int, *, backward: bool) -> int | None:
    """The FLOPs of a mechanism by the formulas above; None if no formula covers it.

    Args:
        attention: the mechanism.
        G: batch x heads.
        n: length.
        d: head size.
        backward: whether the backward pass is included.
    """
    # Exact attention. A causal mask leaves half of the pairs, and the diagonal.
    if isinstance(attention, Exact | SDPA | Softmax):
        factor = 14 if backward else 4
        num_pairs = n * (n + 1) // 2 if attention.causal else n * n
        return factor * G * num_pairs * d

    # CUR and Nystromformer, with the cubic iteration.
    steps = None
    if isinstance(attention, ReleasedCUR):
        m = attention.count
        steps = attention.steps
    elif isinstance(attention, CUR | Nystrom):
        m = attention.options.count if isinstance(attention, CUR) else attention.landmarks
        pinv = attention.pinv
        if isinstance(pinv, partial) and pinv.func is cubic:
            steps = pinv.keywords.get("steps")
    if steps is None:
        return None
    passes = 3 if backward else 1
    per_head = 8 * n * m * d + 4 * m * m * d + 8 * steps * m**3
    return passes * G * per_head


def rates(device: str, dtypes: list[str]) -> tuple[float, dict[str, float]]:
    """Measure this machine, each rate by the fastest of ten calls.

    Returns:
        The bytes read and written per second by a copy larger than any cache, and by dtype the FLOP/s of a large square
        matrix product.
    """
    # Bytes of the copy, width of the matrices.
    if device == "cuda":
        size, width = 2**30, 8192
    else:
        size, width = 2**27, 1024

    # A copy reads and writes every byte.
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.ones(size, dtype=torch.uint8, device=device)
    copy_seconds = _seconds(partial(target.copy_, source), device)

    # A product takes one multiplication and one addition for each of width³ terms.
    matmul = {}
    for dtype in dtypes:
        a = torch.randn(width, width, device=device).to(DTYPES[dtype])
        b = torch.randn(width, width, device=device).to(DTYPES[dtype])
        matmul_seconds = _seconds(partial(torch.matmul, a, b), device)
        matmul[dtype] = 2 * width**3 / matmul_seconds
    return 2 * size / copy_seconds, matmul


def _seconds(call: Callable[[], object], device: str) -> float:
    """Seconds of the fastest of ten calls."""
    measurement = measure({"call": call}, repeats=10, warmup=2, device=device)["call"]
    if not measurement.samples:
        raise ValueError(f"the rates of this machine cannot be measured: {measurement.status}")
    return min(measurement.samples) / 1000
