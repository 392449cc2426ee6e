"""CUR attention (CURformer: Francois et al., Machine Learning 114:139, 2025).

``lra/reference/cur.py`` has the same equations for one head of one sequence.
"""

from functools import partial

import torch
from torch import Tensor

from ..ops.attention_maps import Impl, Weights, check_kernels, uses_kernels
from ..ops.cur import Bias, CUROptions, cur
from ..ops.pinv import Inverse, cubic, is_batch_dependent
from ..ops.selection import Pairing, Resample, Score
from ..options import Range, in_range
from .base import Attention, Sizes


class CUR(Attention):
    """Approximate softmax attention by c selected queries I and c selected keys J.

        1. I, J = select(q, k)                                                             (N,H,c)
        2. C = softmax(q k_Jᵀ)    U = softmax(q_I k_Jᵀ)    R = softmax(q_I kᵀ)             scores / √D
        3. out = C (U⁺ (R v)),   U⁺ by the cubic iteration                                 (N,H,L,E)
        4. out_I = R v: selected queries have their exact outputs

    ``lra.ops.cur.cur`` computes these steps. O(L c (D + E) + c³) time.

    Args:
        sizes: see ``lra.attention.base.Sizes``.
        count: c, from 1 to the sequence length.
        score, pairing, class_token: options of step 1, see ``lra.ops.selection.SelectionOptions``. class_token: null is
            false.
        pinv: pseudo-inverse of U.
        copy_rv: whether step 4 is done.
        resample: draws of score=random. ``train`` draws new numbers at every call in training and keeps one draw in
            evaluation, the same for every example; ``always`` draws new numbers in evaluation too, as published.
        weights: ``softmax``, or ``laplace`` as in MegaCUR, which needs impl=eager and an inverse for rows that do not
            sum to one, such as cubic(init="two_norms").
        impl: see ``lra.ops.attention_maps.landmark_product``.

    Raises:
        ValueError: count is out of range, or the kernels of impl=triton do not support an option.
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
        selection = {"count": count, "score": score, "pairing": pairing, "class_token": bool(class_token)}
        self.options = CUROptions(**selection, pinv=pinv, copy_rv=copy_rv, weights=weights, impl=impl)
        self.resample = resample
        self.mixes_batch = is_batch_dependent(pinv)
        self.takes_bias = not uses_kernels(impl)
        # Random numbers belong to positions, and a class token is at a position.
        self.hole_free = score != "random" and not class_token
        # The random numbers of evaluation, one for each side, head and position.
        self.draw: Tensor | None
        self.register_buffer("draw", torch.rand(2, sizes.heads, sizes.length) if score == "random" else None)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, bias: Bias | None = None) -> Tensor:
        return cur(q, k, v, mask, self.options, draw=self._random_numbers(), bias=bias)

    def varlen(self, q, k, v, layout):
        options = self.options
        # The padding-free form needs c tokens in every sequence.
        if options.impl != "sdpa" or options.score == "farthest" or min(layout.lengths) < options.count:
            return super().varlen(q, k, v, layout)
        return cur(q, k, v, None, options, layout=layout, draw=self._random_numbers())

    @property
    def pinv(self) -> Inverse:
        return self.options.pinv

    def _random_numbers(self) -> Tensor | None:
        """Return the numbers of evaluation, None for new ones."""
        return None if self.training or self.resample == "always" else self.draw
