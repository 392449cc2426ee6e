"""Inverses of U besides those of ``lra.ops.pinv``, (...,c,c) -> (...,c,c); every kept token is real."""

import torch
from torch import Tensor

from ...ops.pinv import cubic
from ...ops.precision import full_precision


@full_precision
def damped_cubic(m: Tensor, *, steps: int, ridge: float) -> Tensor:
    """The cubic iteration on mᵀm + (ridge s)² I, times mᵀ, s the largest singular value.

    At convergence this is ``tikhonov``; fewer steps damp more.

    Args:
        m: (...,c,c).
        steps: number of steps of the iteration.
        ridge: relative to s.
    """
    damping = (ridge * torch.linalg.matrix_norm(m, ord=2)[..., None, None]).square()
    gram = m.mT @ m + damping * torch.eye(m.shape[-1], dtype=m.dtype, device=m.device)
    return cubic(gram, steps=steps, init="two_norms") @ m.mT


def row_normalised(m: Tensor, *, steps: int = 4, init: str = "per_matrix") -> Tensor:
    """The cubic inverse, with a constant added to each row so that the row sums to one.

    The rows of m and of its true inverse sum to one, and with them those of C Z R.
    """
    z = cubic(m, steps=steps, init=init)
    return z + (1 - z.sum(-1, keepdim=True)) / z.shape[-1]
