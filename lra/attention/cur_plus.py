"""CUR+, CUR attention without an inverse: a mechanism of this suite, without a paper (docs/cur.md)."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..ops.cluster_attention import Impl, cur_plus
from ..ops.cur import CUROptions
from ..ops.selection import Pairing, Resample, Score
from ..options import Range, require_range
from .base import Attention, Sizes


class CURPlus(Attention):
    """Attend to clusters of keys around the selected keys, and correct the result by exact outputs of selected queries.

        1. I, J = select(q, k): positions of c queries q_I and of c keys k_J
        2. k̄, v̄, n = mean keys, mean values and sizes of c clusters: each key belongs to the nearest selected key
        3. C = softmax(q k̄ᵀ / √D + log n),   U = rows I of C,   R = softmax(q_I kᵀ / √D)
        4. out = C v̄ + S g,   S = softmax(-|q - q_I|² / h),   g = Σ_(t<5) (1 - T)^t (R v - U v̄),   T = rows I of S
        5. If copy_rv: out_I = R v, the exact outputs of the selected queries

    h is the mean squared distance of a query to the nearest selected one, with a lower bound for rounding errors; 1 in
    step 4 is the identity matrix. In a model that was trained with softmax, ``CURPlus`` is closer to softmax than
    ``CUR`` with the same count (docs/transfer.md); with every token selected it equals softmax.
    ``lra.ops.cluster_attention.cur_plus`` computes these steps. O(L c (D + E)) time. In plain torch:
    ``lra/reference/cur_plus.py``.

    Args:
        sizes: see ``lra.attention.base.Sizes``.
        count, score, pairing, copy_rv, class_token, resample: see ``lra.attention.cur.CUR``.
        impl: ``eager`` materialises every map in float32 or wider; ``sdpa`` uses torch's fused attention.

    Raises:
        ValueError: count is outside 1 .. length.
    """

    def __init__(
        self,
        sizes: Sizes,
        *,
        count: int = 64,
        score: Score = "farthest",
        pairing: Pairing = "separate",
        copy_rv: bool = True,
        class_token: bool | None = False,
        resample: Resample = "train",
        impl: Impl = "sdpa",
    ):
        super().__init__(sizes)
        require_range("count", count, Range(1, sizes.length), "length")
        self.options = CUROptions(
            count=count,
            score=score,
            pairing=pairing,
            class_token=bool(class_token),
            copy_rv=copy_rv,
            impl=impl,
        )
        self.resample = resample
        # As in ``CUR``, which gives the reasons for both conditions.
        self.compactable = score != "random" and not class_token

        # Random numbers for evaluation, one per side (queries, keys), head and position: (2,H,length).
        draw = torch.rand(2, sizes.heads, sizes.length) if score == "random" else None
        self.draw: Tensor | None
        self.register_buffer("draw", draw)

    def forward(
        self,
        q: Float[Tensor, "N H L D"],
        k: Float[Tensor, "N H L D"],
        v: Float[Tensor, "N H L E"],
        mask: Bool[Tensor, "N L"] | None = None,
    ) -> Float[Tensor, "N H L E"]:
        draw = None if self.training or self.resample == "always" else self.draw
        return cur_plus(q, k, v, mask, self.options, draw=draw)
