"""Self-pretraining: the encoder of a classifier learns to predict masked inputs or the next token, without labels."""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .classifier import Classifier, over_towers

Objective = Literal["masked", "next"]
Loss = Literal["cross_entropy", "l1"]
MaskId = Literal["own", "padding"]
# Grey level that the l1 loss counts as 1.
WHITE = 255


class Pretrainer(nn.Module):
    """The embedding, blocks and norm of a classifier, and a linear map from each position to its prediction.

    The parameters of the encoder have the same names as in the classifier; pooling and head are left out. A masked
    input is id 0 or zeros, plus a learned vector. For real features and grey levels that equals the two channels
    [x (1 - m), m] of Amos et al. 2024; for ids it equals an additional id, which no task has to reserve.

    Args:
        encoder: classifier whose parts are used, not copied.
        dim: width of its embedding.
        outputs: number of classes for ``cross_entropy``, else numbers per input.
        loss: ``cross_entropy`` of ids | ``l1``, the absolute error of real features, or of ids / 255.
        objective: ``masked`` | ``next``.
        mask_id: ``own``, with the learned vector | ``padding``, id 0 alone, as released.
    """

    def __init__(
        self, encoder: Classifier, *, dim: int, outputs: int, loss: Loss, objective: Objective, mask_id: MaskId = "own"
    ):
        super().__init__()
        self.embed = encoder.embed
        self.blocks = encoder.blocks
        self.norm = encoder.norm
        self.encode_separately = encoder.encode_separately
        self.loss = loss
        self.objective = objective
        has_mask_vector = objective == "masked" and mask_id == "own"
        self.hole = nn.Parameter(0.02 * torch.randn(dim)) if has_mask_vector else None
        self.predict = nn.Linear(encoder.encoded_width, outputs)

    def forward(self, inputs: Tensor, mask: Tensor | None, holes: Tensor | None = None) -> Tensor:
        """Encode inputs (B,T,L[,F]), with mask and holes, the masked positions, (B,T,L): vectors (B,T,L,d)."""
        return over_towers(self._encode, self.encode_separately, inputs, mask, holes)

    def _encode(self, inputs: Tensor, mask: Tensor | None, holes: Tensor | None) -> Tensor:
        # Masked inputs are id 0 or zeros, plus the learned vector.
        if holes is not None:
            hidden = holes if inputs.dim() == 2 else holes[..., None]
            inputs = inputs.masked_fill(hidden, 0)
        x = self.embed(inputs)
        if self.hole is not None:
            x = x + holes[..., None] * self.hole.to(x.dtype)
        memory = None
        for block in self.blocks:
            x, memory = block(x, mask, memory)
        return x if self.norm is None else self.norm(x, mask)

    def error(self, inputs: Tensor, mask: Tensor | None, holes: Tensor | None = None) -> tuple[Tensor, int]:
        """Sum the loss over the masked positions, or over all positions that have a next token.

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
            has_next = targets.new_ones(targets.shape[:3], dtype=torch.bool)
            is_counted = has_next if mask is None else mask[:, :, 1:]
        # Predictions and targets (n, ...) of the n counted positions.
        predictions = self.predict(x[is_counted]).float()
        targets = targets[is_counted]
        if self.loss == "cross_entropy":
            return F.cross_entropy(predictions, targets, reduction="sum"), len(targets)

        # Targets (n,F): real features, or one grey level from 0 to 1.
        targets = targets.float() if targets.dim() == 2 else targets[:, None] / WHITE
        loss_sum = F.l1_loss(predictions, targets, reduction="sum")
        return loss_sum / targets.shape[1], len(targets)


def draw_holes(ratio: float, inputs: Tensor, mask: Tensor | None) -> Tensor:
    """Draw masked positions (B,T,L): each real position with probability ``ratio``, by torch's RNG of the device."""
    holes = torch.rand(inputs.shape[:3], device=inputs.device) < ratio
    return holes if mask is None else holes & mask
