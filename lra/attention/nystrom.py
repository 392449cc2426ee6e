"""Nystromformer attention (Xiong et al., AAAI 2021)."""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from ..ops import triton as kernels
from ..ops.convolution import RowConvolution
from ..ops.options import one_of
from ..ops.pinv import at_least_float32, cubic, mixes_batch
from ..ops.selection import segment_means
from ..ops.three_factor import Impl, three_factor
from .base import Attention


class Nystrom(Attention):
    """softmax(q k̃ᵀ) · pinv(softmax(q̃ k̃ᵀ)) · softmax(q̃ kᵀ) v + depth-wise convolution of v along the sequence.

    The landmarks q̃, k̃ (c of them) are means over consecutive segments of the real tokens: token r of n_real lies in
    segment floor(r c / n_real) with c = min(landmarks, n_real), so padding never enters a mean. kernel: width of the
    convolution, one filter per head, 0 for none.
    """

    def __init__(
        self,
        *,
        heads: int,
        head_dim: int,
        value_dim: int,
        length: int,
        dropout: float = 0.0,
        landmarks: int = 64,
        kernel: int = 35,
        pinv: Callable[[Tensor], Tensor] = partial(cubic, steps=6),
        impl: Impl = "sdpa",
    ):
        super().__init__(heads=heads, head_dim=head_dim, value_dim=value_dim, length=length, dropout=dropout)
        if not 1 <= landmarks <= length:
            raise ValueError(f"attn.landmarks must be between 1 and the task's length {length}, not {landmarks}")
        if kernel and kernel % 2 == 0:
            raise ValueError(f"attn.kernel must be odd, or 0 for no convolution, not {kernel}")
        one_of("impl", impl, Impl)
        if impl == "triton":
            kernels.check(kept=landmarks, head_dim=head_dim, value_dim=value_dim, pinv=pinv, dropout=dropout)
        self.landmarks, self.pinv, self.impl = landmarks, pinv, impl
        self.mixes_batch = mixes_batch(pinv)
        self.conv = RowConvolution(heads, kernel) if kernel else None

    def forward(self, q, k, v, mask=None):
        q_marks, k_marks, real = self.pool(q, k, mask)
        out, _ = three_factor(
            q,
            k,
            v,
            q_marks,
            k_marks,
            pinv=self.pinv,
            mask=mask,
            row_mask=real,
            col_mask=real,
            impl=self.impl,
        )
        return self._convolve(out, v, mask)

    def _convolve(self, out: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        return out if self.conv is None else out + self.conv(v if mask is None else v * mask[:, None, :, None])

    def pool(self, q: Tensor, k: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
        """Landmarks (N,H,c,D) of q and of k, and which are real (N,1,c)."""
        L = q.shape[2]
        c = min(self.landmarks, L)
        if mask is None and L % c == 0:
            return _means(q, c), _means(k, c), None
        if mask is None:
            mask = torch.ones(q.shape[0], L, dtype=torch.bool, device=q.device)
        with torch.autocast(q.device.type, enabled=False):
            q_wide, k_wide = at_least_float32(q, k)
            mean, real = segment_means(mask, c, q_wide.dtype)  # (N,c,L), (N,c)
            return (mean[:, None] @ q_wide).to(q.dtype), (mean[:, None] @ k_wide).to(k.dtype), real[:, None]


class NystromOriginal(Nystrom):
    """The released behaviour: padding pooled into the landmarks, one starting value of the inverse for the whole batch.

    Segments are length / landmarks wide and rows count as zero-padded up to ``length``, however far the batch is
    padded; landmarks = length is exact attention, plus the convolution. With pinv = cubic(init="batch"), as
    conf/attn/nystrom_original.yaml has it, the result of one example depends on the others in the batch. The two texts
    of a pair are two batches, as in the released code, which encodes one after the other.
    """

    def forward(self, q, k, v, mask=None):
        if self.landmarks == self.length:
            exact = F.scaled_dot_product_attention(q, k, v, None if mask is None else mask[:, None, None])
            return self._convolve(exact, v, mask)
        return super().forward(q, k, v, mask)

    def pool(self, q, k, mask):
        if self.length % self.landmarks:
            raise ValueError(f"attn.landmarks must divide the task's length {self.length}, not {self.landmarks}")

        def means(x):
            x = x if mask is None else x * mask[:, None, :, None]
            return _means(F.pad(x, (0, 0, 0, self.length - x.shape[2])), self.landmarks)

        return means(q), means(k), None


def _means(x: Tensor, c: int) -> Tensor:
    """(N,H,L,D) -> means over c consecutive segments of equal width (N,H,c,D)."""
    return x.unflatten(2, (c, -1)).mean(3)
