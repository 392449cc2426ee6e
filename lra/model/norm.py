"""Normalisations by their names: each takes x (N,L,d) and a mask (N,L), which only the batch norm uses."""

from typing import Literal

import torch
from torch import Tensor, nn

from ..ops.options import one_of
from ..ops.precision import at_least_float32


class LayerNorm(nn.LayerNorm):
    """torch's layer norm; the mask is unused."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return super().forward(x)


class RMSNorm(nn.RMSNorm):
    """torch's RMS norm; the mask is unused."""

    def __init__(self, dim: int, eps: float = 1e-5):
        super().__init__(dim, eps)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return super().forward(*at_least_float32(x))


class ScaleNorm(nn.Module):
    """g x / rms(x) with one number g (Nguyen and Salazar 2019, in the form of MEGA)."""

    def __init__(self, dim: int, eps: float = 1e-5):
        super().__init__()
        self.scale, self.eps = nn.Parameter(torch.ones(())), eps

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        (x,) = at_least_float32(x)
        return self.scale * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps)


class BatchNorm(nn.BatchNorm1d):
    """Batch norm over the real tokens of a batch; padded ones pass unchanged."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        if mask is None:
            return super().forward(x.flatten(0, 1)).view_as(x)
        return x.masked_scatter(mask[..., None], super().forward(x[mask]).to(x.dtype))


NORMS = {"layer": LayerNorm, "scale": ScaleNorm, "rms": RMSNorm, "batch": BatchNorm}
Norm = Literal["layer", "scale", "rms", "batch"]


def norm(kind: Norm, dim: int) -> nn.Module:
    """Make the normalisation of a name for rows of width ``dim``. Raises ValueError for an unknown name."""
    one_of("norm", kind, Norm)
    return NORMS[kind](dim)
