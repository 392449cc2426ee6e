"""Normalisations by their names: each takes x (N,L,d) and a mask (N,L), which only the batch norm uses."""

from collections.abc import Callable
from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.nn.functional import all_reduce

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
        return super().forward(at_least_float32(x))


class ScaleNorm(nn.Module):
    """g x / rms(x) with one number g (Nguyen and Salazar 2019, in the form of MEGA)."""

    def __init__(self, dim: int, eps: float = 1e-5):
        super().__init__()
        self.scale, self.eps = nn.Parameter(torch.ones(())), eps

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        x = at_least_float32(x)
        return self.scale * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps)


class BatchNorm(nn.BatchNorm1d):
    """Batch norm over the real tokens of a batch, on all its processes; padded ones pass unchanged.

    torch's SyncBatchNorm takes no mask and runs on no CPU.
    """

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        shared = dist.is_initialized() and dist.get_world_size() > 1
        # A mask that selects rows would wait for the GPU to count them; sums that leave out padded ones do not.
        rows = x if mask is None else x.masked_fill(~mask[..., None], 0)
        if self.training and (shared or mask is not None):
            normed = self._normed(rows, mask, all_reduce if shared else lambda sums: sums)
        else:
            normed = super().forward(rows.flatten(0, 1)).view_as(x)
        return normed if mask is None else torch.where(mask[..., None], normed.to(x.dtype), x)

    def _normed(self, rows: Tensor, mask: Tensor | None, total: Callable[[Tensor], Tensor]) -> Tensor:
        """Normalise rows (N,L,d), zero where the mask is False; ``total`` sums over processes.

        A single real token has variance 0, and so have the running averages.
        """
        rows = at_least_float32(rows)
        real = rows.new_ones(rows.shape[:2]) if mask is None else mask.to(rows.dtype)
        n, sums = total(torch.cat([real.sum()[None], rows.sum((0, 1))])).split([1, rows.shape[-1]])
        n = n.clamp(min=1)
        apart = rows - sums / n
        variance = total((apart * real[..., None]).square().sum((0, 1))) / n
        with torch.no_grad():
            self.num_batches_tracked += 1
            self.running_mean.lerp_(sums / n, self.momentum)
            self.running_var.lerp_(variance * n / (n - 1).clamp(min=1), self.momentum)
        return apart * torch.rsqrt(variance + self.eps) * self.weight + self.bias


NORMS = {"layer": LayerNorm, "scale": ScaleNorm, "rms": RMSNorm, "batch": BatchNorm}
Norm = Literal["layer", "scale", "rms", "batch"]


def make_norm(kind: Norm, dim: int, *, momentum: float = 0.1) -> nn.Module:
    """Make the normalisation of a name.

    Args:
        kind: name.
        dim: width of the rows.
        momentum: share of a batch in the running averages of ``batch``.
    """
    return BatchNorm(dim, momentum=momentum) if kind == "batch" else NORMS[kind](dim)
