"""Nystromformer attention (Xiong et al., AAAI 2021).

``lra/reference/nystrom.py`` has the equations for one head of one sequence, with F, A, B and m for F₁, F₂, F₃ and c.
"""

from functools import partial
from typing import ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from ..ops.attention_maps import Impl, check_kernels, ensure_nonempty, landmark_product
from ..ops.convolution import convolve_sequence
from ..ops.pinv import Inverse, cubic, is_batch_dependent
from ..ops.segment_means import segment_means
from ..options import Range, Whole, require_range
from .base import Attention, Sizes, as_attn_mask, zero_padding


class Nystrom(Attention):
    """Approximate softmax attention by c landmark queries q̃ and keys k̃.

        1. q̃, k̃ = means of c consecutive segments of the real tokens                       (N,H,c,D)
        2. F₁ = softmax(q k̃ᵀ / √D)    F₂ = softmax(q̃ k̃ᵀ / √D)    F₃ = softmax(q̃ kᵀ / √D)
        3. out = F₁ (F₂⁺ (F₃ v)),   F₂⁺ by the cubic iteration                             (N,H,L,E)
        4. out + convolution of v along the sequence, one filter per head

    Real token r of n (r = 0 .. n - 1) lies in segment floor(r c' / n) with c' = min(c, n): with fewer than c real
    tokens each is its own landmark, and the other landmarks are masked. O(L c (D + E) + c³) time.

    Args:
        sizes: see ``lra.attention.base.Sizes``.
        landmarks: c, from 1 to ``length``.
        kernel: odd width of the convolution, which has one filter per head; 0 for no convolution.
        pinv: pseudo-inverse of F₂.
        impl: ``eager``: F₁ and F₃ are materialised; ``sdpa``: torch's fused attention, except in bfloat16 on a CPU;
            ``triton*``: kernels. See ``lra.ops.attention_maps.landmark_product``.

    Raises:
        ValueError: an option is out of range, kernel is even, landmarks do not divide the length (``NystromOriginal``),
            or impl=triton does not support an option.
    """

    # Whether padding counts as zero vectors in the means of segments, as in the released code (``NystromOriginal``).
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
        require_range("landmarks", landmarks, Range(1, sizes.length), "length")
        if kernel and kernel % 2 == 0:
            raise ValueError(f"kernel must be odd, or 0 for no convolution, not {kernel}")
        if self.pools_padding and sizes.length % landmarks:
            raise ValueError(f"landmarks must divide length {sizes.length}, got {landmarks}")
        check_kernels(impl, count=landmarks, head_dim=sizes.head_dim, value_dim=sizes.value_dim, pinv=pinv)
        self.landmarks = landmarks
        self.pinv = pinv
        self.impl: Impl = impl
        self.batch_dependent = is_batch_dependent(pinv)
        # Both the convolution and segments with padding depend on positions.
        self.compactable = not kernel and not self.pools_padding

        # This nn.Conv2d only holds the filters, with their initial values and their name in the state dict. It is never
        # called: ``convolve_sequence`` applies the filters.
        self.conv: nn.Conv2d | None = None
        if kernel:
            heads = sizes.heads
            self.conv = nn.Conv2d(heads, heads, (kernel, 1), groups=heads, bias=False)

    def forward(
        self,
        q: Float[Tensor, "N H L D"],
        k: Float[Tensor, "N H L D"],
        v: Float[Tensor, "N H L E"],
        mask: Bool[Tensor, "N L"] | None = None,
    ) -> Float[Tensor, "N H L E"]:
        # Steps 1 to 3.
        out = self.product(q, k, v, mask)
        if self.conv is None:
            return out

        # 4. Add the convolution of v, in which padding counts as zero.
        real_v = zero_padding(v, mask)
        return out + convolve_sequence(real_v, self.conv.weight)

    def product(
        self,
        q: Float[Tensor, "N H L D"],
        k: Float[Tensor, "N H L D"],
        v: Float[Tensor, "N H L E"],
        mask: Bool[Tensor, "N L"] | None,
    ) -> Float[Tensor, "N H L E"]:
        """Attend through landmarks, steps 1 to 3, without the convolution."""
        mask = ensure_nonempty(mask)

        # 1. Landmarks.
        q_landmarks, k_landmarks, landmark_mask = self.pool(q, k, mask)

        # 2. and 3. F₁ (F₂⁺ (F₃ v)); in ``landmark_product``, C, U and R are F₁, F₂ and F₃.
        out, _ = landmark_product(
            q,
            k,
            v,
            q_landmarks,
            k_landmarks,
            mask=mask,
            q_landmark_mask=landmark_mask,
            k_landmark_mask=landmark_mask,
            pinv=self.pinv,
            impl=self.impl,
        )
        return out

    def pool(
        self,
        q: Float[Tensor, "N H L D"],
        k: Float[Tensor, "N H L D"],
        mask: Bool[Tensor, "N L"] | None,
    ) -> tuple[Float[Tensor, "N H c D"], Float[Tensor, "N H c D"], Bool[Tensor, "N 1 c"] | None]:
        """Average queries and keys over segments, step 1.

        Returns:
            The landmarks of q and of k, and a mask that is True for landmarks with a real token. The mask is None if
            there is no padding and c divides L, since every landmark then has a real token.
        """
        L = q.shape[2]
        c = min(self.landmarks, L)
        # Without padding, equal segments are a reshape.
        if mask is None and L % c == 0:
            return _equal_segment_means(q, c), _equal_segment_means(k, c), None

        # Otherwise segments may differ in width. ``segment_means`` returns float32 for 16-bit inputs.
        if mask is None:
            mask = torch.ones(q.shape[0], L, dtype=torch.bool, device=q.device)
        (q_landmarks, k_landmarks), landmark_mask = segment_means(mask, c, q, k)
        landmark_mask = landmark_mask[:, None]  # (N,1,c)
        return q_landmarks.to(q.dtype), k_landmarks.to(k.dtype), landmark_mask


class NystromOriginal(Nystrom):
    """Nystromformer attention as released, in O(L c (D + E) + c³) time.

    Differences from ``Nystrom``:

    * Segments include padding: q and k are zero-padded to ``length``, and each segment has length / landmarks tokens. c
      is always ``landmarks``. A segment without real tokens gives a zero landmark, which is not masked. Padded keys are
      still masked in F₃.
    * If landmarks = length, softmax attention is computed exactly; the convolution is still added.

    The class does not set the released start of the iteration, F₂ᵀ divided by the largest column sum of the whole
    batch: use pinv = cubic(init="batch"), as conf/attn/nystrom_original.yaml does. The examples of a batch then depend
    on each other, so ``Classifier`` encodes the two texts of a pair in separate batches, as the released code does.
    """

    pools_padding = True

    def product(
        self,
        q: Float[Tensor, "N H L D"],
        k: Float[Tensor, "N H L D"],
        v: Float[Tensor, "N H L E"],
        mask: Bool[Tensor, "N L"] | None,
    ) -> Float[Tensor, "N H L E"]:
        if self.landmarks == self.sizes.length:
            return F.scaled_dot_product_attention(q, k, v, as_attn_mask(mask))
        return super().product(q, k, v, mask)

    def pool(
        self,
        q: Float[Tensor, "N H L D"],
        k: Float[Tensor, "N H L D"],
        mask: Bool[Tensor, "N L"] | None,
    ) -> tuple[Float[Tensor, "N H c D"], Float[Tensor, "N H c D"], None]:
        # Set masked tokens to zero and append zeros up to the maximum length.
        num_appended = self.sizes.length - q.shape[2]
        q = F.pad(zero_padding(q, mask), (0, 0, 0, num_appended))  # (N,H,length,D)
        k = F.pad(zero_padding(k, mask), (0, 0, 0, num_appended))  # (N,H,length,D)
        q_landmarks = _equal_segment_means(q, self.landmarks)
        k_landmarks = _equal_segment_means(k, self.landmarks)
        return q_landmarks, k_landmarks, None


def _equal_segment_means(x: Float[Tensor, "N H L D"], c: int) -> Float[Tensor, "N H {c} D"]:
    """Average the tokens of each of c consecutive segments of equal width."""
    segments = x.unflatten(2, (c, -1))  # (N,H,c,L/c,D)
    return segments.mean(3)
