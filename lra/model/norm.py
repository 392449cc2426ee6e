"""Normalisations by name. Each takes token vectors and a mask, which only the batch norm uses."""

from collections.abc import Callable
from typing import Literal

import torch
import torch.distributed as dist
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.distributed.nn.functional import all_reduce

from ..ops.precision import upcast


class LayerNorm(nn.LayerNorm):
    """torch's layer norm; the mask is unused."""

    def forward(
        self,
        x: Float[Tensor, "N L d"],
        mask: Bool[Tensor, "N L"] | None = None,
    ) -> Float[Tensor, "N L d"]:
        return super().forward(x)


class RMSNorm(nn.RMSNorm):
    """torch's RMS norm, in float32 or wider; the mask is unused."""

    def __init__(self, dim: int, eps: float = 1e-5):
        super().__init__(dim, eps)

    def forward(
        self,
        x: Float[Tensor, "N L d"],
        mask: Bool[Tensor, "N L"] | None = None,
    ) -> Float[Tensor, "N L d"]:
        return super().forward(upcast(x))


class ScaleNorm(nn.Module):
    """g x / rms(x) with one number g (Nguyen and Salazar 2019, in the form of MEGA); the mask is unused."""

    def __init__(self, dim: int, eps: float = 1e-5):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.eps = eps

    def forward(
        self,
        x: Float[Tensor, "N L d"],
        mask: Bool[Tensor, "N L"] | None = None,
    ) -> Float[Tensor, "N L d"]:
        x = upcast(x)
        # rms(x)² over the width.
        mean_square = x.square().mean(-1, keepdim=True)  # (N,L,1)
        inverse_rms = torch.rsqrt(mean_square + self.eps)
        return self.scale * x * inverse_rms


class BatchNorm(nn.BatchNorm1d):
    """Batch norm over the real tokens of a batch on all ranks; padding passes unchanged.

    torch's SyncBatchNorm takes no mask and does not run on a CPU.
    """

    # Never None here: this class always tracks running statistics and has a momentum. torch types them as optional.
    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor
    momentum: float

    def forward(
        self,
        x: Float[Tensor, "N L d"],
        mask: Bool[Tensor, "N L"] | None = None,
    ) -> Float[Tensor, "N L d"]:
        is_shared = dist.is_initialized() and dist.get_world_size() > 1
        tokens = x
        if mask is not None:
            # Set padding to zero: selecting the real tokens would make the GPU report their number to the host.
            is_padding = ~mask[..., None]  # (N,L,1)
            tokens = x.masked_fill(is_padding, 0)
        if self.training and (is_shared or mask is not None):
            sum_over_ranks = all_reduce if is_shared else _identity
            normed = self._normalise(tokens, mask, sum_over_ranks)
        else:
            flat = super().forward(tokens.flatten(0, 1))  # (N L,d)
            normed = flat.view_as(x)
        if mask is None:
            return normed
        return torch.where(mask[..., None], normed.to(x.dtype), x)

    def _normalise(
        self,
        tokens: Float[Tensor, "N L d"],
        mask: Bool[Tensor, "N L"] | None,
        sum_over_ranks: Callable[[Tensor], Tensor],
    ) -> Float[Tensor, "N L d"]:
        """Normalise tokens, which are zero where the mask is False, and update the running averages.

        A single real token has variance 0, which also enters the running average; torch's batch norm raises an error.
        """
        tokens = upcast(tokens)
        is_real = tokens.new_ones(tokens.shape[:2]) if mask is None else mask.to(tokens.dtype)

        # Count and sums in one reduction.
        num_real = is_real.sum()
        token_sums = tokens.sum((0, 1))  # (d,)
        sums = sum_over_ranks(torch.cat([num_real[None], token_sums]))
        count, token_sums = sums.split([1, len(token_sums)])
        count = count.clamp(min=1)

        # Mean and biased variance over all real tokens.
        mean = token_sums / count
        centered = tokens - mean
        squares = (centered * is_real[..., None]).square()
        variance = sum_over_ranks(squares.sum((0, 1))) / count

        # Running averages, with the unbiased variance as in torch (biased, so 0, for a single token).
        with torch.no_grad():
            unbiased_variance = variance * count / (count - 1).clamp(min=1)
            self.num_batches_tracked += 1
            self.running_mean.lerp_(mean, self.momentum)
            self.running_var.lerp_(unbiased_variance, self.momentum)
        inverse_std = torch.rsqrt(variance + self.eps)
        return centered * inverse_std * self.weight + self.bias


def _identity(x: Tensor) -> Tensor:
    return x


NORMS = {"layer": LayerNorm, "scale": ScaleNorm, "rms": RMSNorm, "batch": BatchNorm}
Norm = Literal["layer", "scale", "rms", "batch"]


def make_norm(kind: Norm, dim: int, *, momentum: float = 0.1) -> nn.Module:
    """Make a normalisation by its name.

    Args:
        kind: name.
        dim: d.
        momentum: weight of a batch in the running averages of ``batch``.
    """
    if kind == "batch":
        return BatchNorm(dim, momentum=momentum)
    return NORMS[kind](dim)
