"""Encoder blocks: forward(x (N,L,d), mask (N,L), memory) -> (x, memory).

Around a mixer with ``varlen`` they take packed rows too: varlen(x (1,T,d), layout) -> x.
"""

from collections.abc import Callable

from torch import Tensor, nn

from ..attention.base import Mixer
from ..ops.varlen import VarlenLayout
from .dropout import Dropout


class PreNorm(nn.Module):
    """x + dropout(mixer(LN x)), then x + MLP(LN x) (docs/sources.md, Nystromformer).

    MLP: Linear d -> hidden, GELU, dropout, Linear hidden -> d, dropout. mixer: a factory of no arguments.
    """

    def __init__(self, mixer: Callable[[], Mixer], *, dim: int, hidden: int, dropout: float):
        super().__init__()
        self.mixer_norm = nn.LayerNorm(dim)
        self.mixer = mixer()
        if self.mixer.width != dim:
            raise ValueError(
                f"rows of {dim} and of {self.mixer.width} from the mixer do not add up; block=plain adds none"
            )
        self.dropout = Dropout(dropout)
        self.mlp_norm = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(
            nn.Linear(dim, hidden), nn.GELU(), Dropout(dropout), nn.Linear(hidden, dim), Dropout(dropout)
        )

    def forward(self, x: Tensor, mask: Tensor | None, memory=None):
        return self._add(x, self.mixer(self.mixer_norm(x), mask)), memory

    def varlen(self, x: Tensor, layout: VarlenLayout) -> Tensor:
        return self._add(x, self.mixer.varlen(self.mixer_norm(x), layout))

    def _add(self, x: Tensor, mixed: Tensor) -> Tensor:
        x = x + self.dropout(mixed)
        return x + self.mlp(self.mlp_norm(x))


class Plain(nn.Module):
    """The mixer and nothing else, as in PSF's own model: no norm, no residual, no MLP, hence none of their sizes.

    Rows are as wide as the mixer makes them.
    """

    def __init__(self, mixer: Callable[[], Mixer], *, dim: int, hidden: int, dropout: float):
        super().__init__()
        self.mixer = mixer()
        self.width = self.mixer.width

    def forward(self, x: Tensor, mask: Tensor | None, memory=None):
        return self.mixer(x, mask), memory

    def varlen(self, x: Tensor, layout: VarlenLayout) -> Tensor:
        return self.mixer.varlen(x, layout)
