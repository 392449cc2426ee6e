"""Normalisations by their names: each takes x (N,L,d) and a mask (N,L), which only the batch norm uses."""

from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.nn.functional import all_reduce

from ..ops.precision import at_least_float32
from ..options import one_of


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
    """Batch norm over the real tokens of a batch, on all its processes; padded ones pass unchanged.

    torch's SyncBatchNorm takes no mask and runs on no CPU.
    """

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        if mask is None:
            return self._normed(x.flatten(0, 1)).view_as(x)
        return x.masked_scatter(mask[..., None], self._normed(x[mask]).to(x.dtype))

    def _normed(self, rows: Tensor) -> Tensor:
        """(T,d) -> (T,d)."""
        if not (self.training and dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
            return super().forward(rows)
        (rows,) = at_least_float32(rows)
        n, total = all_reduce(torch.cat([rows.new_tensor([len(rows)]), rows.sum(0)])).split([1, rows.shape[1]])
        mean = total / n
        variance = all_reduce((rows - mean).square().sum(0)) / n
        with torch.no_grad():
            self.num_batches_tracked += 1
            self.running_mean.lerp_(mean, self.momentum)
            self.running_var.lerp_(variance * n / (n - 1), self.momentum)
        return (rows - mean) * torch.rsqrt(variance + self.eps) * self.weight + self.bias


NORMS = {"layer": LayerNorm, "scale": ScaleNorm, "rms": RMSNorm, "batch": BatchNorm}
Norm = Literal["layer", "scale", "rms", "batch"]


def norm(kind: Norm, dim: int, *, momentum: float = 0.1) -> nn.Module:
    """Make the normalisation of a name.

    Args:
        kind: name.
        dim: width of the rows.
        momentum: share of a batch in the running averages of ``batch``.

    Raises:
        ValueError: the name is unknown.
    """
    one_of("norm", kind, Norm)
    return BatchNorm(dim, momentum=momentum) if kind == "batch" else NORMS[kind](dim)
