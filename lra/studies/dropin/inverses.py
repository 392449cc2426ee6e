"""Inverses of U beside those of ``lra.ops.pinv``, (...,c,c) -> (...,c,c); every kept token is real."""

import torch
from torch import Tensor

from ...ops.pinv import cubic
from ...ops.precision import full_precision


@full_precision
def damped_cubic(m: Tensor, *, steps: int, ridge: float) -> Tensor:
    """The cubic iteration on mᵀm + (ridge s)² I, times mᵀ, s the largest singular value.

    Converged, this is ``tikhonov``; few steps damp further.
    """
    damping = (ridge * torch.linalg.matrix_norm(m, ord=2)[..., None, None]).square()
    gram = m.mT @ m + damping * torch.eye(m.shape[-1], dtype=m.dtype, device=m.device)
    return cubic(gram, steps=steps, init="two_norms") @ m.mT


def row_normalised(m: Tensor, *, steps: int = 4, init: str = "per_matrix") -> Tensor:
    """The cubic inverse, with the same added to each entry of a row so that it sums to one.

    Rows of m and of its true inverse do, and with them those of C Z R.
    """
    z = cubic(m, steps=steps, init=init)
    return z + (1 - z.sum(-1, keepdim=True)) / z.shape[-1]
