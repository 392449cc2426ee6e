"""minGRU and minLSTM, recurrent networks whose gates do not read the state (Feng et al., 2024)."""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from ..ops.diagonal_recurrence import diagonal_recurrence
from ..ops.precision import full_precision
from ..options import Above
from .base import Mixer, Sizes
from .recurrent_parts import mask_tokens


class MinGRU(Mixer):
    """h_t = (1 - z_t) h_(t-1) + z_t g(W_h x_t) with z = σ(W_z x), g(x) = x + ½ for x >= 0 and σ(x) below; then W_o h.

    O(L d) time; a state of d = expand · dim numbers per direction. The result equals the paper's scan of
    logarithms, which is less accurate in float32.

    Args:
        causal: whether a token sees only itself and earlier tokens, as published. Otherwise the recurrence also runs
            from the right, with the same parameters, and both outputs are added; the token itself counts once.
        expand: channels as a multiple of dim.

    Source: the paper, section 3.1 and appendix B; no map has a bias, unlike in the authors' code (BorealisAI/minRNNs).
    In plain torch: ``lra/reference/selective_scan.py``.
    """

    compactable = True
    # Linear maps of the input: W_h and W_z.
    num_maps = 2

    def __init__(self, sizes: Sizes, *, dim: int, causal: bool = False, expand: Above = 1.5):
        super().__init__(sizes, dim=dim)
        self.causal = causal
        inner = max(1, int(expand * dim))
        self.state_size = inner
        self.inputs = nn.Linear(dim, self.num_maps * inner, bias=False)
        self.output = nn.Linear(inner, dim, bias=False)

    def forward(
        self,
        x: Float[Tensor, "N L dim"],
        mask: Bool[Tensor, "N L"] | None = None,
    ) -> Float[Tensor, "N L dim"]:
        states = self.recurrence(self.inputs(x), mask)  # (N,L,d)
        return self.output(states.to(x.dtype))

    @full_precision
    def recurrence(
        self,
        projected: Float[Tensor, "N L maps_d"],
        mask: Bool[Tensor, "N L"] | None,
    ) -> Float[Tensor, "N L d"]:
        """Run the recurrence over the projections of the tokens."""
        candidate, log_forget, log_write = self.gates(projected)
        # g(W_h x_t), then the write z_t g(W_h x_t); minLSTM has i'_t for z_t.
        candidate = torch.where(candidate >= 0, candidate + 0.5, candidate.sigmoid())
        write = log_write.exp() * candidate
        inputs = mask_tokens(write, mask)
        # Padding leaves the state unchanged: its decay is 1.
        log_decay = mask_tokens(log_forget, mask)
        return diagonal_recurrence(log_decay, inputs, bidirectional=not self.causal)

    def gates(
        self,
        projected: Float[Tensor, "N L maps_d"],
    ) -> tuple[Float[Tensor, "N L d"], Float[Tensor, "N L d"], Float[Tensor, "N L d"]]:
        """Compute W_h x, log(1 - z) and log z from the projections."""
        candidate, gate = projected.chunk(2, dim=-1)
        return candidate, F.logsigmoid(-gate), F.logsigmoid(gate)


class MinLSTM(MinGRU):
    """h_t = f'_t h_(t-1) + i'_t g(W_h x_t) with f' = f / (f + i), i' = i / (f + i).

    f = σ(W_f x), i = σ(W_i x). g, the output map W_o and the options are as in ``MinGRU``. O(L d) time; a state of
    d = expand · dim numbers per direction.

    Source: the paper, section 3.2 and appendix B. In plain torch: ``lra/reference/selective_scan.py``.
    """

    # W_h, W_f and W_i.
    num_maps = 3

    def gates(
        self,
        projected: Float[Tensor, "N L maps_d"],
    ) -> tuple[Float[Tensor, "N L d"], Float[Tensor, "N L d"], Float[Tensor, "N L d"]]:
        """Compute W_h x, log f' and log i' from the projections."""
        candidate, forget, write = projected.chunk(3, dim=-1)
        # log f' = -log(1 + i / f), log i' = -log(1 + f / i)
        difference = F.logsigmoid(write) - F.logsigmoid(forget)
        return candidate, -F.softplus(difference), -F.softplus(-difference)
