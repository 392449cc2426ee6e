"""The encoder of a classifier, trained on inputs without labels to predict masked positions or the next one."""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .classifier import Classifier, over_towers

Objective = Literal["masked", "next"]
Loss = Literal["cross_entropy", "l1"]
MaskId = Literal["own", "padding"]
WHITE = 255  # the grey level that l1 counts as 1


class Pretrainer(nn.Module):
    """The embedding, blocks and norm of a classifier, and a linear map from each position to its prediction.

    Weights of the encoder have the same names as in the classifier; pooling and head are left out. Masked inputs are
    id 0 or zeros plus a learned vector. For real features and grey levels that equals the two channels [x (1 - m), m]
    of Amos et al. 2024, for ids an additional id, which no task has to reserve.

    Args:
        encoder: its parts are used, not copied.
        dim: size of its embedding.
        outputs: classes of ``cross_entropy``, else numbers of an input.
        loss: ``cross_entropy`` of ids | ``l1``: the absolute error of real features, or of ids / 255.
        objective: ``masked`` | ``next``.
        mask_id: ``own`` | ``padding``: id 0 alone, as released.
    """

    def __init__(
        self, encoder: Classifier, *, dim: int, outputs: int, loss: Loss, objective: Objective, mask_id: MaskId = "own"
    ):
        super().__init__()
        self.embed, self.blocks, self.norm = encoder.embed, encoder.blocks, encoder.norm
        self.encode_separately, self.loss, self.objective = encoder.encode_separately, loss, objective
        self.hole = nn.Parameter(0.02 * torch.randn(dim)) if objective == "masked" and mask_id == "own" else None
        self.predict = nn.Linear(encoder.encoded_width, outputs)

    def forward(self, inputs: Tensor, mask: Tensor | None, holes: Tensor | None = None) -> Tensor:
        """Encode inputs (B,T,L[,F]), with mask and holes (B,T,L): vectors (B,T,L,d)."""
        return over_towers(self._encode, self.encode_separately, inputs, mask, holes)

    def _encode(self, inputs: Tensor, mask: Tensor | None, holes: Tensor | None) -> Tensor:
        if holes is not None:
            inputs = inputs.masked_fill(holes if inputs.dim() == 2 else holes[..., None], 0)
        x, memory = self.embed(inputs), None
        if self.hole is not None:
            x = x + holes[..., None] * self.hole.to(x.dtype)
        for block in self.blocks:
            x, memory = block(x, mask, memory)
        return x if self.norm is None else self.norm(x, mask)

    def error(self, inputs: Tensor, mask: Tensor | None, holes: Tensor | None = None) -> tuple[Tensor, int]:
        """Sum the loss over the holes, or over all positions with a next token; returns the sum and their number."""
        x = self(inputs, mask, holes)
        if self.objective == "masked":
            targets, counted = inputs, holes
        else:
            x, targets = x[:, :, :-1], inputs[:, :, 1:]
            counted = targets.new_ones(targets.shape[:3], dtype=torch.bool) if mask is None else mask[:, :, 1:]
        predicted, targets = self.predict(x[counted]).float(), targets[counted]
        if self.loss == "cross_entropy":
            return F.cross_entropy(predicted, targets, reduction="sum"), len(targets)
        targets = targets.float() if targets.dim() == 2 else targets[:, None] / WHITE
        return F.l1_loss(predicted, targets, reduction="sum") / targets.shape[1], len(targets)


def draw_holes(ratio: float, inputs: Tensor, mask: Tensor | None) -> Tensor:
    """Draw holes (B,T,L), each real position with probability ``ratio``, by torch's generator of the device."""
    drawn = torch.rand(inputs.shape[:3], device=inputs.device) < ratio
    return drawn if mask is None else drawn & mask
