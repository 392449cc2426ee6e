"""Self-pretraining: the encoder of a classifier learns to predict masked inputs or the next token, without labels.

A masked input is hidden from the encoder, which has to predict it: ``holes`` is True there. ``mask`` has nothing to do
with it; as everywhere, it is True at real tokens and False at padding.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Num
from torch import Tensor, nn

from .classifier import Classifier
from .pooling import over_towers

Objective = Literal["masked", "next"]
Loss = Literal["cross_entropy", "l1"]
MaskId = Literal["own", "padding"]
# Grey level that the l1 loss counts as 1.
WHITE = 255


class Pretrainer(nn.Module):
    """The embedding, blocks and norm of a classifier, and a linear map from each position to its prediction.

    The parameters of the encoder have the same names as in the classifier; pooling and head are left out. A masked
    input is id 0 or zeros; ``mask_id=own`` adds a learned vector. For embeddings that are linear in features or grey
    levels, that equals the two channels [x (1 - m), m] of Amos et al. 2024; for ids it equals an additional id, which
    no task has to reserve.

    Args:
        encoder: classifier whose parts are used, not copied.
        dim: width of its embedding.
        outputs: number of classes for ``cross_entropy``, else numbers per input.
        loss: ``cross_entropy`` of ids | ``l1``, the absolute error of float features, or of ids / 255.
        objective: ``masked`` | ``next``.
        mask_id: ``own``: id 0 or zeros plus the learned vector | ``padding``: id 0 alone.
    """

    def __init__(
        self,
        encoder: Classifier,
        *,
        dim: int,
        outputs: int,
        loss: Loss,
        objective: Objective,
        mask_id: MaskId = "own",
    ):
        super().__init__()
        self.embed = encoder.embed
        self.blocks = encoder.blocks
        self.norm = encoder.norm
        self.encode_separately = encoder.encode_separately
        self.loss = loss
        self.objective = objective
        # The learned vector of masked inputs.
        self.hole: nn.Parameter | None = None
        if objective == "masked" and mask_id == "own":
            self.hole = nn.Parameter(0.02 * torch.randn(dim))
        self.predict = nn.Linear(encoder.encoded_width, outputs)

    def forward(
        self,
        inputs: Num[Tensor, "batch towers L *F"],
        mask: Bool[Tensor, "batch towers L"] | None,
        holes: Bool[Tensor, "batch towers L"] | None = None,
    ) -> Float[Tensor, "batch towers L d"]:
        """Encode inputs.

        Args:
            inputs: token ids, or float features.
            mask: real tokens; None if all are real.
            holes: masked positions; None without any, for ``objective=next``.
        """
        return over_towers(self._encode, self.encode_separately, inputs, mask, holes)

    def _encode(
        self,
        inputs: Num[Tensor, "N L *F"],
        mask: Bool[Tensor, "N L"] | None,
        holes: Bool[Tensor, "N L"] | None,
    ) -> Float[Tensor, "N L d"]:
        # Replace masked inputs by id 0 or zeros; with mask_id=own, add the learned vector.
        if holes is not None:
            has_features = inputs.dim() == 3
            is_hidden = holes[..., None] if has_features else holes
            inputs = inputs.masked_fill(is_hidden, 0)
        x = self.embed(inputs)
        if self.hole is not None:
            assert holes is not None
            x = x + holes[..., None] * self.hole.to(x.dtype)

        # Apply the classifier's blocks. Unlike in the classifier, the residual stream stays in float32 under autocast.
        memory = None
        for block in self.blocks:
            x, memory = block(x, mask, memory)
        if self.norm is not None:
            x = self.norm(x, mask)
        return x

    def sum_loss(
        self,
        inputs: Num[Tensor, "batch towers L *F"],
        mask: Bool[Tensor, "batch towers L"] | None,
        holes: Bool[Tensor, "batch towers L"] | None = None,
    ) -> tuple[Float[Tensor, ""], int]:
        """Sum the loss over the masked positions, or over all positions whose next token is real.

        ``l1`` is the mean over the features of a position.

        Returns:
            The sum, and the number of positions.
        """
        x = self(inputs, mask, holes)
        if self.objective == "masked":
            targets = inputs
            is_counted = holes
        else:
            # Position i predicts token i + 1.
            x = x[:, :, :-1]
            targets = inputs[:, :, 1:]
            if mask is None:
                mask = inputs.new_ones(inputs.shape[:3], dtype=torch.bool)
            is_counted = mask[:, :, 1:]

        # Predictions and targets (n, ...) of the n counted positions.
        predictions = self.predict(x[is_counted]).float()
        targets = targets[is_counted]
        if self.loss == "cross_entropy":
            return F.cross_entropy(predictions, targets, reduction="sum"), len(targets)

        # Targets (n,F): float features, or one grey level from 0 to 1.
        has_features = targets.dim() == 2
        targets = targets.float() if has_features else targets[:, None] / WHITE
        loss_sum = F.l1_loss(predictions, targets, reduction="sum")
        num_targets, num_features = targets.shape
        return loss_sum / num_features, num_targets


def draw_holes(
    ratio: float,
    inputs: Num[Tensor, "batch towers L *F"],
    mask: Bool[Tensor, "batch towers L"] | None,
) -> Bool[Tensor, "batch towers L"]:
    """Draw masked positions: each real position with probability ``ratio``, by torch's RNG of the device."""
    uniform = torch.rand(inputs.shape[:3], device=inputs.device)
    holes = uniform < ratio
    return holes if mask is None else holes & mask
