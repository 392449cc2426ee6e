"""Pseudo-inverses of batches of small square matrices, (..., c, c) -> (..., c, c).

All of them compute in float32 (float64 stays float64) with autocast off, and gradients flow through the iterations.
"""

import torch
from torch import Tensor


def at_least_float32(*tensors: Tensor) -> list[Tensor]:
    """float64 stays, every narrower dtype becomes float32."""
    return [t if t.dtype == torch.float64 else t.float() for t in tensors]


def cubic(m: Tensor, *, steps: int, init: str = "per_matrix") -> Tensor:
    """Third-order iterative pseudo-inverse of Nystromformer (Xiong et al. 2021, section 3.3) and CURformer.

        Z_0 = mᵀ / s,   Z <- Z (13 I - mZ (15 I - mZ (7 I - mZ))) / 4     ``steps`` times

    s is the largest absolute column sum: rows of a softmax matrix sum to one, so the row norm that the theory asks for
    is left out. ``init="per_matrix"`` takes it per matrix; ``"batch"`` takes the largest of the whole tensor, which is
    what the released Nystromformer does and makes one example depend on the others. Among equal column sums the
    gradient goes through the first.

    After few steps Z is not the pseudo-inverse but a smoothed one, and it stays bounded where the true one does not.
    """
    if steps < 0:
        raise ValueError(f"pinv.steps must be 0 or more, not {steps}")
    if init not in ("per_matrix", "batch"):
        raise ValueError(f"pinv.init must be per_matrix or batch, not {init!r}")
    with torch.autocast(m.device.type, enabled=False):
        (m,) = at_least_float32(m)
        shape, m = m.shape, m.flatten(0, -3) if m.dim() > 2 else m[None]
        scale = m.abs().sum(-2).max(-1).values[:, None, None]
        z = m.mT / (scale if init == "per_matrix" else scale.max())
        for _ in range(steps):  # multiplied out, so that each line is one fused multiply-add and needs no identity
            mz = m @ z
            t = torch.baddbmm(mz, mz, mz, beta=7, alpha=-1)
            t = torch.baddbmm(mz, mz, t, beta=15, alpha=-1)
            z = torch.baddbmm(z, z, t, beta=13 / 4, alpha=-1 / 4)
        return z.reshape(shape)


def exact(m: Tensor) -> Tensor:
    """Moore-Penrose inverse by singular values; the limit of the iterations, for tests and ablations."""
    with torch.autocast(m.device.type, enabled=False):
        return torch.linalg.pinv(*at_least_float32(m))
