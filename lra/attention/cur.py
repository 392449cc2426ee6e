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
from ..options import Range, require_range
from .base import Attention, Sizes

if TYPE_CHECKING:
    from ..varlen import VarlenLayout


class CUR(Attention):
    """Approximate softmax attention from c selected queries q_I and c selected keys k_J.

        1. I, J = select(q, k): positions of c queries and of c keys                       (N,H,c)
        2. C = softmax(q k_Jᵀ / √D)    U = softmax(q_I k_Jᵀ / √D)    R = softmax(q_I kᵀ / √D)
        3. out = C (U⁺ (R v)),   U⁺ by the cubic iteration                                 (N,H,L,E)
        4. If copy_rv: out_I = R v, the exact outputs of the selected queries

    ``lra.ops.cur.cur`` computes these steps. O(L c (D + E) + c³) time.

    Args:
        sizes: see ``lra.attention.base.Sizes``.
        count: c, from 1 to the maximum length; a sequence with fewer tokens selects all of them.
        score: how tokens are scored in step 1, see ``lra.ops.selection.SelectionOptions``.
        pairing: which vectors, queries or keys, are scored to select I and which to select J, see the same class.
        pinv: pseudo-inverse of U.
        copy_rv: whether the outputs of selected queries are replaced by R v, step 4.
        class_token: whether the first real token (the class token) is always selected. None counts as False.
        resample: at which calls score=random draws new numbers. ``train``: at every training call; evaluation uses one
            fixed draw, made in the constructor and shared by all examples. ``always``: at every call, as published.
        weights: ``softmax``, or ``laplace`` as in MegaCUR on images. With ``laplace`` the scores are divided by the
            number of real keys instead of √D, and impl=eager is required. The rows of its U do not sum to one, so set
            pinv to cubic(init="two_norms"); this is not checked.
        impl: ``eager``: C and R are materialised; ``sdpa``: torch's fused attention, except in bfloat16 on a CPU;
            ``triton*``: kernels. See ``lra.ops.attention_maps.landmark_product``.

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
        require_range("count", count, Range(1, sizes.length), "length")
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
        # Random numbers are tied to positions, which compaction changes. With ``class_token`` compaction would be
        # correct, but data.pad=auto would become ``compact``, which would change the fingerprints of published runs.
        self.compactable = score != "random" and not class_token

        # Random numbers for evaluation, one per side (queries, keys), head and position: (2,H,length).
        self.draw: Tensor | None
        draw = torch.rand(2, sizes.heads, sizes.length) if score == "random" else None
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
        # The packed form needs impl=sdpa, a score other than farthest, and at least c tokens in every sequence.
        options_fit = options.impl == "sdpa" and options.score != "farthest"
        if options_fit and min(layout.lengths) >= options.count:
            return cur(q, k, v, None, options, layout=layout, draw=self._random_numbers())
        # The base class pads.
        return super().varlen(q, k, v, layout)

    def _random_numbers(self) -> Float[Tensor, "2 H length"] | None:
        """Return the stored numbers for evaluation; None if new ones are drawn or the score is not ``random``."""
        if self.training or self.resample == "always":
            return None
        return self.draw
