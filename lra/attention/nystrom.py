"""Nystromformer attention (Xiong et al., AAAI 2021)."""

from functools import partial
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..ops import triton as kernels
from ..ops.convolution import convolve_rows
from ..ops.kernel_features import zero_padding
from ..ops.pinv import cubic, mixes_batch
from ..ops.segments import segment_means
from ..ops.three_factor import Impl, Inverse, three_factor
from ..options import Range, Whole, in_range
from .base import Attention, Sizes


class Nystrom(Attention):
    """softmax(q k̃ᵀ) · pinv(softmax(q̃ k̃ᵀ)) · softmax(q̃ kᵀ) v + depth-wise convolution of v along the sequence.

    The landmarks q̃, k̃ (c of them) are means over consecutive segments of the real tokens: token r of n_real lies in
    segment floor(r c / n_real) with c = min(landmarks, n_real), so padding never enters a mean. kernel: width of the
    convolution, one filter per head, 0 for none.
    """

    pools_padding: ClassVar[bool] = False  # True: segments are those of a row padded to length

    def __init__(
        self,
        sizes: Sizes,
        *,
        landmarks: int = 64,
        kernel: Whole = 35,
        pinv: Inverse = partial(cubic, steps=6),
        impl: Impl = "sdpa",
    ):
        super().__init__(sizes)
        in_range("landmarks", landmarks, Range(1, sizes.length), "length")
        if kernel and kernel % 2 == 0:
            raise ValueError(f"kernel must be odd, or 0 for no convolution, not {kernel}")
        if self.pools_padding and sizes.length % landmarks:
            raise ValueError(f"landmarks must divide length {sizes.length}, not {landmarks}")
        if impl in kernels.IMPLS:
            kernels.check(kept=landmarks, head_dim=sizes.head_dim, value_dim=sizes.value_dim, pinv=pinv)
        self.landmarks, self.pinv, self.impl = landmarks, pinv, impl
        self.mixes_batch = mixes_batch(pinv)
        self.hole_free = not kernel and not self.pools_padding  # both look at positions
        # It holds the filters; ``convolve_rows`` applies them.
        self.conv = nn.Conv2d(sizes.heads, sizes.heads, (kernel, 1), groups=sizes.heads, bias=False) if kernel else None

    def forward(self, q, k, v, mask=None):
        out = self.product(q, k, v, mask)
        return out if self.conv is None else out + convolve_rows(zero_padding(v, mask), self.conv.weight)

    def product(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """The result without the convolution."""
        q_marks, k_marks, real = self.pool(q, k, mask)
        marks = {"mask": mask, "row_mask": real, "col_mask": real}
        return three_factor(q, k, v, q_marks, k_marks, pinv=self.pinv, **marks, impl=self.impl)[0]

    def pool(self, q: Tensor, k: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
        """Landmarks (N,H,c,D) of q and of k, and which are real (N,1,c)."""
        L = q.shape[2]
        c = min(self.landmarks, L)
        if mask is None and L % c == 0:
            return _means(q, c), _means(k, c), None
        if mask is None:
            mask = torch.ones(q.shape[0], L, dtype=torch.bool, device=q.device)
        (q_marks, k_marks), real = segment_means(mask, c, q, k)
        return q_marks.to(q.dtype), k_marks.to(k.dtype), real[:, None]


class NystromOriginal(Nystrom):
    """The released behaviour: padding pooled into the landmarks, one starting value of the inverse for the whole batch.

    Segments are length / landmarks wide and rows count as zero-padded up to ``length``, however far the batch is
    padded; landmarks = length is exact attention, plus the convolution. With pinv = cubic(init="batch"), as
    conf/attn/nystrom_original.yaml has it, the result of one example depends on the others in the batch. The two texts
    of a pair are two batches, as in the released code, which encodes one after the other.
    """

    pools_padding = True

    def product(self, q, k, v, mask):
        if self.landmarks == self.sizes.length:
            return F.scaled_dot_product_attention(q, k, v, None if mask is None else mask[:, None, None])
        return super().product(q, k, v, mask)

    def pool(self, q, k, mask):
        q, k = (F.pad(zero_padding(x, mask), (0, 0, 0, self.sizes.length - x.shape[2])) for x in (q, k))
        return _means(q, self.landmarks), _means(k, self.landmarks), None


def _means(x: Tensor, c: int) -> Tensor:
    """(N,H,L,D) -> means over c consecutive segments of equal width (N,H,c,D)."""
    return x.unflatten(2, (c, -1)).mean(3)
