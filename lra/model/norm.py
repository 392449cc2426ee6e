"""Normalisations by name. Each takes x (N,L,d) and a mask (N,L), which only the batch norm uses."""

from collections.abc import Callable
from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.nn.functional import all_reduce

from ..ops.precision import upcast


class LayerNorm(nn.LayerNorm):
    """torch's layer norm; the mask is unused."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return super().forward(x)


class RMSNorm(nn.RMSNorm):
    """torch's RMS norm; the mask is unused."""

    def __init__(self, dim: int, eps: float = 1e-5):
        super().__init__(dim, eps)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return super().forward(upcast(x))


class ScaleNorm(nn.Module):
    """g x / rms(x) with one number g (Nguyen and Salazar 2019, in the form of MEGA)."""

    def __init__(self, dim: int, eps: float = 1e-5):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.eps = eps

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        x = upcast(x)
        # rms(x)² over the width.
        mean_square = x.square().mean(-1, keepdim=True)
        return self.scale * x * torch.rsqrt(mean_square + self.eps)


class BatchNorm(nn.BatchNorm1d):
    """Batch norm over the real tokens of a batch on all ranks; padding passes unchanged.

    torch's SyncBatchNorm takes no mask and does not run on a CPU.
    """

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        is_shared = dist.is_initialized() and dist.get_world_size() > 1
        # Zeros instead of a selection of the real tokens, whose number a GPU would have to report to the host.
        tokens = x if mask is None else x.masked_fill(~mask[..., None], 0)
        if self.training and (is_shared or mask is not None):
            sum_over_ranks = all_reduce if is_shared else _identity
            normed = self._normalise(tokens, mask, sum_over_ranks)
        else:
            normed = super().forward(tokens.flatten(0, 1)).view_as(x)
        if mask is None:
            return normed
        return torch.where(mask[..., None], normed.to(x.dtype), x)

    def _normalise(self, tokens: Tensor, mask: Tensor | None, sum_over_ranks: Callable[[Tensor], Tensor]) -> Tensor:
        """Normalise tokens (N,L,d), which are zero where the mask is False, and update the running averages.

        A single real token has variance 0, and so have the running averages.
        """
        tokens = upcast(tokens)
        is_real = tokens.new_ones(tokens.shape[:2]) if mask is None else mask.to(tokens.dtype)

        # Count and sums in one reduction.
        sums = torch.cat([is_real.sum()[None], tokens.sum((0, 1))])
        count, token_sums = sum_over_ranks(sums).split([1, tokens.shape[-1]])
        count = count.clamp(min=1)
        # Mean and biased variance over all real tokens.
        mean = token_sums / count
        centered = tokens - mean
        squares = (centered * is_real[..., None]).square().sum((0, 1))
        variance = sum_over_ranks(squares) / count
        # Running averages, with the unbiased variance as in torch.
        with torch.no_grad():
            unbiased_variance = variance * count / (count - 1).clamp(min=1)
            self.num_batches_tracked += 1
            self.running_mean.lerp_(mean, self.momentum)
            self.running_var.lerp_(unbiased_variance, self.momentum)
        return centered * torch.rsqrt(variance + self.eps) * self.weight + self.bias


def _identity(x: Tensor) -> Tensor:
    return x


NORMS = {"layer": LayerNorm, "scale": ScaleNorm, "rms": RMSNorm, "batch": BatchNorm}
Norm = Literal["layer", "scale", "rms", "batch"]


def make_norm(kind: Norm, dim: int, *, momentum: float = 0.1) -> nn.Module:
    """Make the normalisation of a name.

    Args:
        kind: name.
        dim: d.
        momentum: weight of a batch in the running averages of ``batch``.
    """
    if kind == "batch":
        return BatchNorm(dim, momentum=momentum)
    return NORMS[kind](dim)
