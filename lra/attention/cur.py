"""CUR attention (CURformer: Francois et al., Machine Learning 114:139, 2025).

``lra/reference/cur.py`` has the same equations for one head of one sequence.
"""

from functools import partial
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..ops.attention_maps import Impl, Weights, check_kernels, uses_kernels
from ..ops.cur import Bias, CUROptions, cur
from ..ops.pinv import Inverse, cubic, is_batch_dependent
from ..ops.selection import Pairing, Resample, Score
from ..options import Range, in_range
from .base import Attention, Sizes

if TYPE_CHECKING:
    from ..varlen import VarlenLayout


class CUR(Attention):
    """Approximate softmax attention by c selected queries I and c selected keys J.

        1. I, J = select(q, k): positions of c queries and of c keys                       (N,H,c)
        2. C = softmax(q k_Jᵀ)    U = softmax(q_I k_Jᵀ)    R = softmax(q_I kᵀ)             scores / √D
        3. out = C (U⁺ (R v)),   U⁺ by the cubic iteration                                 (N,H,L,E)
        4. out_I = R v, the output of softmax attention for the selected queries

    ``lra.ops.cur.cur`` computes these steps. O(L c (D + E) + c³) time.

    Args:
        sizes: see ``lra.attention.base.Sizes``.
        count: c, from 1 to the sequence length.
        score: how step 1 rates the tokens, see ``lra.ops.selection.SelectionOptions``.
        pairing: how step 1 chooses I and J, see the same class.
        pinv: pseudo-inverse of U.
        copy_rv: whether the outputs of selected queries are replaced by R v, step 4.
        class_token: whether the first real token, where the class token is, is always selected; None counts as False.
        resample: when score=random draws numbers. ``train``: at every call in training; evaluation uses numbers drawn
            once in the constructor, the same for all examples. ``always``: at every call, as published.
        weights: ``softmax``, or ``laplace`` as in MegaCUR, which only impl=eager computes. Its rows do not sum to one,
            so set pinv to cubic(init="two_norms"); this is not checked.
        impl: see ``lra.ops.attention_maps.landmark_product``.

    Raises:
        ValueError: count is out of range, impl=triton does not support an option, or weights=laplace without
            impl=eager.
    """

    def __init__(
        self,
        sizes: Sizes,
        *,
        count: int = 64,
        score: Score = "abs",
        pairing: Pairing = "separate",
        pinv: Inverse = partial(cubic, steps=4),
        copy_rv: bool = True,
        class_token: bool | None = False,
        resample: Resample = "train",
        weights: Weights = "softmax",
        impl: Impl = "sdpa",
    ):
        super().__init__(sizes)
        in_range("count", count, Range(1, sizes.length), "length")
        check_kernels(impl, count=count, head_dim=sizes.head_dim, value_dim=sizes.value_dim, pinv=pinv)
        self.options = CUROptions(
            count=count,
            score=score,
            pairing=pairing,
            class_token=bool(class_token),
            pinv=pinv,
            copy_rv=copy_rv,
            weights=weights,
            impl=impl,
        )
        self.resample = resample
        self.batch_dependent = is_batch_dependent(pinv)
        self.supports_bias = not uses_kernels(impl)
        # Compaction moves tokens to other positions, and random numbers belong to positions. It is not used with a
        # class token either.
        self.compactable = score != "random" and not class_token

        # Buffer of random numbers for evaluation, (2,H,length): one per side (queries, keys), head and position.
        draw = torch.rand(2, sizes.heads, sizes.length) if score == "random" else None
        self.draw: Tensor | None
        self.register_buffer("draw", draw)

    @property
    def pinv(self) -> Inverse:
        return self.options.pinv

    def forward(
        self,
        q: Float[Tensor, "N H L D"],
        k: Float[Tensor, "N H L D"],
        v: Float[Tensor, "N H L E"],
        mask: Bool[Tensor, "N L"] | None = None,
        bias: Bias | None = None,
    ) -> Float[Tensor, "N H L E"]:
        return cur(q, k, v, mask, self.options, draw=self._random_numbers(), bias=bias)

    def varlen(
        self,
        q: Float[Tensor, "1 H T D"],
        k: Float[Tensor, "1 H T D"],
        v: Float[Tensor, "1 H T E"],
        layout: "VarlenLayout",
    ) -> Float[Tensor, "1 H T E"]:
        options = self.options
        # The padding-free form needs impl=sdpa, a score other than farthest, and at least c tokens in every sequence.
        options_fit = options.impl == "sdpa" and options.score != "farthest"
        if not options_fit or min(layout.lengths) < options.count:
            return super().varlen(q, k, v, layout)
        return cur(q, k, v, None, options, layout=layout, draw=self._random_numbers())

    def _random_numbers(self) -> Float[Tensor, "2 H length"] | None:
        """Return the stored numbers in evaluation; None if every call draws new ones or the score needs none."""
        if self.training or self.resample == "always":
            return None
        return self.draw
