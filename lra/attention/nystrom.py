"""Nystromformer attention (Xiong et al., AAAI 2021).

``lra/reference/nystrom.py`` has the same equations for one head of one sequence.
"""

from functools import partial
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..ops.attention_maps import Impl, check_kernels, ensure_nonempty, landmark_product
from ..ops.convolution import convolve_sequence
from ..ops.pinv import Inverse, cubic, is_batch_dependent
from ..ops.segment_means import segment_means
from ..options import Range, Whole, in_range
from .base import Attention, Sizes


class Nystrom(Attention):
    """Approximate softmax attention by c landmark queries q̃ and keys k̃.

        1. q̃, k̃ = means of c consecutive segments of the real tokens                       (N,H,c,D)
        2. F₁ = softmax(q k̃ᵀ)    F₂ = softmax(q̃ k̃ᵀ)    F₃ = softmax(q̃ kᵀ)                 scores / √D
        3. out = F₁ (F₂⁺ (F₃ v)),   F₂⁺ by the cubic iteration                             (N,H,L,E)
        4. out + depth-wise convolution of v along the sequence

    With n real tokens, token r lies in segment floor(r c / n), and c = min(landmarks, n). Padding enters no mean.
    O(L c (D + E) + c³) time.

    Args:
        sizes: see ``lra.attention.base.Sizes``.
        landmarks: c, from 1 to the sequence length.
        kernel: odd width of the convolution, which has one filter per head; 0 for no convolution.
        pinv: pseudo-inverse of F₂.
        impl: see ``lra.ops.attention_maps.landmark_product``.

    Raises:
        ValueError: an option is out of range, or the kernels of impl=triton do not support it.
    """

    # Whether segments include padding, as in the released code.
    pools_padding: ClassVar[bool] = False

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
        check_kernels(impl, count=landmarks, head_dim=sizes.head_dim, value_dim=sizes.value_dim, pinv=pinv)
        self.landmarks = landmarks
        self.pinv = pinv
        self.impl = impl
        self.mixes_batch = is_batch_dependent(pinv)
        # Both the convolution and segments with padding depend on positions.
        self.hole_free = not kernel and not self.pools_padding
        # The module holds the filters; ``convolve_sequence`` applies them.
        self.conv = None
        if kernel:
            self.conv = nn.Conv2d(sizes.heads, sizes.heads, (kernel, 1), groups=sizes.heads, bias=False)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        out = self.product(q, k, v, mask)  # (N,H,L,E)
        if self.conv is None:
            return out
        # 4. The convolution of v.
        real_v = _zero_padding(v, mask)
        return out + convolve_sequence(real_v, self.conv.weight)

    def product(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """Compute steps 1 to 3: (N,H,L,E)."""
        mask = ensure_nonempty(mask)
        q_landmarks, k_landmarks, landmark_mask = self.pool(q, k, mask)
        masks = {"mask": mask, "q_landmark_mask": landmark_mask, "k_landmark_mask": landmark_mask}
        options = {"pinv": self.pinv, "impl": self.impl}
        out, _ = landmark_product(q, k, v, q_landmarks, k_landmarks, **options, **masks)
        return out

    def pool(self, q: Tensor, k: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
        """Compute step 1: landmarks (N,H,c,D) of q and of k, and which of them are real (N,1,c), None for all."""
        L = q.shape[2]
        c = min(self.landmarks, L)
        # Segments of equal width.
        if mask is None and L % c == 0:
            return _equal_segment_means(q, c), _equal_segment_means(k, c), None

        # Segments of the real tokens, which may differ in width.
        if mask is None:
            mask = torch.ones(q.shape[0], L, dtype=torch.bool, device=q.device)
        (q_landmarks, k_landmarks), landmark_mask = segment_means(mask, c, q, k)
        return q_landmarks.to(q.dtype), k_landmarks.to(k.dtype), landmark_mask[:, None]


class NystromOriginal(Nystrom):
    """Nystromformer attention as released.

    Differences from ``Nystrom``:

    * Segments include padding: every sequence counts as zero-padded to ``length``, and segments are length / landmarks
      wide.
    * landmarks = length is exact attention, plus the convolution.
    * With pinv = cubic(init="batch"), as in conf/attn/nystrom_original.yaml, the iteration starts from the largest
      column sum of the whole batch, so examples of a batch depend on each other. The two texts of a pair are encoded
      one after the other, as in the released code.
    """

    pools_padding = True

    def product(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        if self.landmarks == self.sizes.length:
            attn_mask = None if mask is None else mask[:, None, None]
            return F.scaled_dot_product_attention(q, k, v, attn_mask)
        return super().product(q, k, v, mask)

    def pool(self, q: Tensor, k: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, None]:
        # Fill up to ``length`` with zeros.
        num_missing = self.sizes.length - q.shape[2]
        q = F.pad(_zero_padding(q, mask), (0, 0, 0, num_missing))
        k = F.pad(_zero_padding(k, mask), (0, 0, 0, num_missing))
        q_landmarks = _equal_segment_means(q, self.landmarks)
        k_landmarks = _equal_segment_means(k, self.landmarks)
        return q_landmarks, k_landmarks, None


def _equal_segment_means(x: Tensor, c: int) -> Tensor:
    """Average c consecutive segments of equal width: (N,H,L,D) -> (N,H,c,D)."""
    return x.unflatten(2, (c, -1)).mean(3)


def _zero_padding(x: Tensor, mask: Tensor | None) -> Tensor:
    """Set padding of x (N,H,L,D) to zero."""
    if mask is None:
        return x
    return x * mask[:, None, :, None]
