"""FlashCUR: C · cubic(U) · (R V) without a tensor of size L x M in memory. The only folder that imports triton.

With selected queries Qr and keys Kc (M rows each), scale = 1/√D and masked keys excluded from every softmax,

    R = softmax(scale Qr Kᵀ)     U = softmax(scale Qr Kcᵀ), padded rows 0     C = softmax(scale Q Kcᵀ)
    Z = cubic(U)    W = Z (R V)    O = C W    and, with copy_rv, O[rows] = R V

in two launches (``streaming_forward``). The first computes R V over keys and values; an additional program for each
head computes U and Z on chip (``core``). The second computes O over queries; each program computes W first. Backward
takes three launches (``streaming_backward``). Large sizes take more (``tiles``): a separate launch for Z, or library
products (``core_library``) beyond 64 selected rows, 32 on sm_100, and several launches for the gradients. dŌ is dO with
zeros in the copied rows; dSc, dSu and dSr are the gradients of the scores of C, U and R:

    dW = Cᵀ dŌ    dC = dŌ Wᵀ    dSc = C * (dC - rowsum(dC * C))    dQ = scale dSc Kc    dKc = scale dScᵀ Q
    dZ = dW (R V)ᵀ    d(R V) = Zᵀ dW + dO[rows]    dU from dZ through the steps    dSu = U * (dU - rowsum(dU * U))
    dR = d(R V) Vᵀ    dSr = R * (dR - rowsum(d(R V) * R V))    dV = Rᵀ d(R V)    dK = scale dSrᵀ Qr
    dQr = scale (dSu Kc + dSr K)    dKc += scale dSuᵀ Qr    added to dQ and dK at the selected rows

dW, dQ and the part of dKc through C come from the first launch. The second computes dK, dV and the part of dQr through
R; an additional program for each head takes the gradient through Z to U. The third adds dQr and dKc at the selected
rows.

Sums over the sequence are computed in parts and added in order, so results are the same in every run. Inputs are
float32, float16 or bfloat16. All sums are in float32. Streaming products have factors in the inputs' dtype; with 16
bits, factors whose rounding would dominate the error are split in two (``primitives.halves``), unless
impl=triton_rounded. Softmax weights are recomputed in the backward pass, R from its log-sum-exp.
"""

import os
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from numbers import Integral

import torch
from torch import Tensor

from ...options import format_value
from .. import pinv as linalg
from . import op
from .tiles import LARGEST

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def cubic_steps(pinv: Callable) -> int:
    """The steps of a ``partial(cubic, steps=...)``.

    Raises:
        ValueError: any other pseudo-inverse, another init than per_matrix, or steps that are missing or negative.
    """
    if not (isinstance(pinv, partial) and pinv.func is linalg.cubic and not pinv.args):
        raise ValueError("Triton kernels take lra.ops.pinv.cubic as pinv and no other; impl=sdpa takes any")
    options = {"init": "per_matrix", "steps": None, **pinv.keywords}
    if options["init"] != "per_matrix":
        raise ValueError(f"Triton kernels take pinv.init=per_matrix, not {options['init']!r}; impl=sdpa takes any")
    steps = options["steps"]
    if not isinstance(steps, Integral) or steps < 0:
        raise ValueError(f"pinv.steps must be 0 or more, not {format_value(steps)}")
    return int(steps)


def check(*, count: int, head_dim: int, value_dim: int, pinv: Callable) -> None:
    """Check that triton is installed and that the kernels support sizes and inverse.

    Args:
        count: number of selected queries or landmarks.
        head_dim, value_dim: sizes of a key and of a value.
        pinv: must be a ``partial`` of ``cubic``.

    Raises:
        ValueError: triton is not installed, or an argument is not supported.
    """
    if find_spec("triton") is None:
        raise ValueError("Triton kernels need the package triton (Linux); impl=sdpa is the same without it")
    sizes = {"number of selected tokens or landmarks": count, "head_dim": head_dim, "value size": value_dim}
    for name, size in sizes.items():
        if not 1 <= size <= LARGEST:
            raise ValueError(f"Triton kernels take a {name} from 1 to {LARGEST}, not {size}; impl=sdpa takes any")
    cubic_steps(pinv)


def landmark_product(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    pinv: Callable,
    q_landmarks: Tensor | None = None,
    k_landmarks: Tensor | None = None,
    rows: Tensor | None = None,
    cols: Tensor | None = None,
    mask: Tensor | None = None,
    row_mask: Tensor | None = None,
    col_mask: Tensor | None = None,
    copy_rv: bool = False,
    impl: str = "triton",
) -> Tensor:
    """Compute C · cubic(U) · (R v) for landmarks or for selected positions.

    Args:
        q, k: (N,H,L,D). v: (N,H,L,E).
        pinv: a ``partial`` of ``cubic``.
        q_landmarks, k_landmarks: landmarks (N,H,M,D).
        rows, cols: positions (N,H,M) instead, distinct within each head.
        mask: real tokens (N,L); None: all.
        row_mask, col_mask: real landmarks (N,H,M), N and H may be 1; None: all. Ignored with positions.
        copy_rv: whether selected rows of the output are rows of R v; only with positions.
        impl: ``triton`` | ``triton_rounded``, which splits no factor: with 16-bit inputs, softmax weights, their
            gradients, W and d(R V) are rounded to the inputs' dtype in every product. 14 products instead of 21,
            larger errors (docs/kernels.md).

    Returns:
        (N,H,L,E) in the promoted dtype of q, k and v, under autocast in its dtype.

    Raises:
        ValueError: a dtype or the inverse is not supported, or there is no GPU.
    """
    steps = cubic_steps(pinv)
    require_gpu(q)
    kind = q.device.type
    dtype = torch.promote_types(torch.promote_types(q.dtype, k.dtype), v.dtype)
    if torch.is_autocast_enabled(kind) and dtype != torch.float64:
        dtype = torch.get_autocast_dtype(kind)
    if dtype not in DTYPES:
        raise ValueError(f"Triton kernels take float32, float16 or bfloat16, not {dtype}; impl=sdpa takes any")
    q, k, v, q_landmarks, k_landmarks = (x if x is None else x.to(dtype) for x in (q, k, v, q_landmarks, k_landmarks))
    mask, rows, cols = (x if x is None else x.contiguous() for x in (mask, rows, cols))
    if rows is not None:
        q_landmarks = q
        k_landmarks = k
        row_mask = None if mask is None else mask[:, None]
        col_mask = row_mask
    real = [x if x is None else x.expand(*q.shape[:2], -1) for x in (row_mask, col_mask)]
    # Whether 16-bit factors are split in two.
    split = impl == "triton"
    with torch.autocast(kind, enabled=False):
        results = op.landmark_product(q, k, v, q_landmarks, k_landmarks, rows, cols, *real, mask, steps, copy_rv, split)
    # The output; the other results are saved for the backward pass.
    return results[0]


def token_scores(a: Tensor, b: Tensor | None, mask: Tensor | None, *, score: str, class_token: bool) -> Tensor:
    """Compute the scores of ``lra.ops.selection.select`` for one or two tensors in one launch.

    Args:
        a: (N,H,L,D).
        b: (N,H,L,D) or None.
        mask: real tokens (N,L), None for all; padding gets -inf.
        score: ``sum`` | ``abs`` | ``embed``.
        class_token: whether position 0 gets +inf, unless it is padded.

    Returns:
        float32 (1 or 2,N,H,L).
    """
    require_gpu(a)
    return op.token_scores(a, b, None if mask is None else mask.contiguous(), score, class_token)


def interpreted() -> bool:
    """Whether triton interprets kernels: TRITON_INTERPRET, read as triton reads it."""
    return os.environ.get("TRITON_INTERPRET", "").lower() in ("1", "true", "on", "yes", "y")


def require_gpu(x: Tensor) -> None:
    """Raise ValueError if a kernel cannot run on x."""
    if x.device.type != "cuda" and not interpreted():
        raise ValueError(
            f"Triton kernels need a GPU, the tensors are on {x.device.type}; impl=sdpa is the same without one, "
            "TRITON_INTERPRET=1 runs the kernels slowly anywhere"
        )
