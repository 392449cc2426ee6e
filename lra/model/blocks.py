"""Encoder blocks: forward(x, mask, memory) -> (x, memory).

``PreNorm`` and ``Plain`` around a mixer with ``varlen`` also take packed sequences: varlen(x, layout) -> x. A block
inherits ``compactable`` from its mixer.

``memory`` goes from block to block, as the latents of Luna do; the blocks of this module pass it on unchanged.
"""

from collections.abc import Callable
from typing import Any, Literal, cast

import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from ..attention.base import Mixer
from ..options import Checked, Share, Whole
from ..varlen import VarlenLayout
from .dropout import Dropout
from .multihead import Multihead
from .norm import Norm, make_norm

# Names as in the S5 code.
Activation = Literal["full_glu", "half_glu1", "half_glu2"]
Gelu = Literal["exact", "tanh"]


class PreNorm(nn.Module):
    """x + dropout(mixer(LN x)), then x + MLP(LN x) (docs/sources.md, Nystromformer).

    MLP: Linear d -> hidden, GELU, dropout, Linear hidden -> d, dropout.

    Args:
        mixer: a factory without arguments.
        dim: d.
        hidden: hidden units of the MLP.
        dropout: dropout rate of the mixer's output and in the MLP.

    Raises:
        ValueError: the width of the mixer's output is not d.
    """

    def __init__(self, mixer: Callable[[], Mixer], *, dim: int, hidden: int, dropout: float):
        super().__init__()
        # Keep this order: the modules draw their initial weights from one RNG, one after the other.
        self.mixer_norm = nn.LayerNorm(dim)
        self.mixer = mixer()
        self.compactable = self.mixer.compactable
        _check_width(self.mixer, dim)
        self.dropout = Dropout(dropout)
        self.mlp_norm = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(
            nn.Linear(dim, hidden), nn.GELU(), Dropout(dropout), nn.Linear(hidden, dim), Dropout(dropout)
        )

    def forward(
        self,
        x: Float[Tensor, "N L d"],
        mask: Bool[Tensor, "N L"] | None,
        memory: Any = None,
    ) -> tuple[Float[Tensor, "N L d"], Any]:
        mixed = self.mixer(self.mixer_norm(x), mask)
        return self._add_mixed_then_mlp(x, mixed), memory

    def varlen(self, x: Float[Tensor, "1 T d"], layout: VarlenLayout) -> Float[Tensor, "1 T d"]:
        mixer = cast(Multihead, self.mixer)
        mixed = mixer.varlen(self.mixer_norm(x), layout)
        return self._add_mixed_then_mlp(x, mixed)

    def _add_mixed_then_mlp(self, x: Float[Tensor, "N L d"], mixed: Float[Tensor, "N L d"]) -> Float[Tensor, "N L d"]:
        """Add the mixer's output to the residual stream, and then the MLP's."""
        x = x + self.dropout(mixed)
        return x + self.mlp(self.mlp_norm(x))


class GLU(Checked, nn.Module):
    """x + dropout(GLU(y)), y = mixer(norm(x)), without a feed-forward layer: the block of S4D, S5 and LRU.

    Args:
        mixer: a factory without arguments.
        dim: d.
        hidden: unused; ``PreNorm`` has an MLP of this width.
        dropout: dropout rate of GELU(y) and of GLU(y).
        norm: name of a normalisation in ``lra.model.norm``.
        prenorm: whether the norm comes first, y = mixer(norm(x)). False: y = mixer(x), and norm(x + dropout(GLU(y))) is
            the output, as in S4 on ListOps and Image.
        tied: whether all positions of a sequence share one dropout mask.
        activation: activation function. With g = dropout(GELU(y)), GLU(y) is W₁ g σ(W₂ g) (``full_glu``), g σ(W g)
            (``half_glu1``) or y σ(W g) (``half_glu2``); each W is a Linear d -> d.
        gelu: ``exact`` | ``tanh``, the approximation.
        momentum: weight of a batch in the running averages of a batch norm.
        mixer_dropout: whether y has dropout too, drawn for each position.

    Raises:
        ValueError: the width of the mixer's output is not d, or an option has an invalid value.

    Source: docs/ssm.md, S4D and S5.
    """

    def __init__(
        self,
        mixer: Callable[[], Mixer],
        *,
        dim: int,
        hidden: int,
        dropout: float,
        norm: Norm = "batch",
        prenorm: bool = True,
        tied: bool = False,
        activation: Activation = "full_glu",
        gelu: Gelu = "exact",
        momentum: Share = 0.1,
        mixer_dropout: bool = False,
    ):
        super().__init__()
        # Keep this order: the modules draw their initial weights from one RNG, one after the other.
        self.prenorm = prenorm
        self.activation = activation
        self.norm = make_norm(norm, dim, momentum=momentum)
        self.mixer = mixer()
        self.compactable = self.mixer.compactable
        _check_width(self.mixer, dim)
        self.mixed_dropout = Dropout(dropout if mixer_dropout else 0.0)
        self.inner = nn.Sequential(nn.GELU("none" if gelu == "exact" else gelu), Dropout(dropout, tied=tied))
        gate_width = 2 * dim if activation == "full_glu" else dim
        self.gate = nn.Linear(dim, gate_width)
        self.dropout = Dropout(dropout, tied=tied)

    def forward(
        self,
        x: Float[Tensor, "N L d"],
        mask: Bool[Tensor, "N L"] | None,
        memory: Any = None,
    ) -> tuple[Float[Tensor, "N L d"], Any]:
        # y = mixer(norm(x)), then the residual connection around GLU(y).
        normed = self.norm(x, mask) if self.prenorm else x
        y = self.mixed_dropout(self.mixer(normed, mask))
        x = x + self.dropout(self._apply_gate(y))
        if not self.prenorm:
            x = self.norm(x, mask)
        return x, memory

    def _apply_gate(self, y: Float[Tensor, "N L d"]) -> Float[Tensor, "N L d"]:
        g = self.inner(y)
        # One Linear d -> 2 d holds W₁ and W₂.
        if self.activation == "full_glu":
            return F.glu(self.gate(g), -1)
        gated = g if self.activation == "half_glu1" else y
        return gated * self.gate(g).sigmoid()


class Gated(Checked, nn.Module):
    """x + dropout(mixer(norm x)), then x + dropout(W_3(SiLU(W_1 n) ⊙ W_2 n)) with n = norm x: the block of HGRN2.

    Args:
        mixer: a factory without arguments.
        dim: d.
        hidden: unused; ``expand`` gives the width of the feed-forward layer.
        dropout: dropout rate of the mixer's output and of the feed-forward layer's.
        norm: name of a normalisation in ``lra.model.norm``.
        expand: width of the feed-forward layer as a multiple of d; 0 for no feed-forward layer, as in Mamba.

    Raises:
        ValueError: the width of the mixer's output is not d, or an option has an invalid value.

    Source: docs/recurrent.md.
    """

    def __init__(
        self,
        mixer: Callable[[], Mixer],
        *,
        dim: int,
        hidden: int,
        dropout: float,
        norm: Norm = "layer",
        expand: Whole = 1,
    ):
        super().__init__()
        self.mixer_norm = make_norm(norm, dim)
        self.mixer = mixer()
        self.compactable = self.mixer.compactable
        _check_width(self.mixer, dim)
        self.dropout = Dropout(dropout)
        self.has_mlp = expand > 0
        if self.has_mlp:
            self.mlp_norm = make_norm(norm, dim)
            # W_1 and W_2 in one map.
            self.mlp_inputs = nn.Linear(dim, 2 * expand * dim)
            self.mlp_output = nn.Linear(expand * dim, dim)

    def forward(
        self,
        x: Float[Tensor, "N L d"],
        mask: Bool[Tensor, "N L"] | None,
        memory: Any = None,
    ) -> tuple[Float[Tensor, "N L d"], Any]:
        mixed = self.mixer(self.mixer_norm(x, mask), mask)
        x = x + self.dropout(mixed)
        if not self.has_mlp:
            return x, memory

        # W_3(SiLU(W_1 n) ⊙ W_2 n)
        normed = self.mlp_norm(x, mask)
        gate, value = self.mlp_inputs(normed).chunk(2, dim=-1)
        hidden = F.silu(gate) * value
        x = x + self.dropout(self.mlp_output(hidden))
        return x, memory


class Plain(nn.Module):
    """The mixer alone, as in the model of PSF-Attn, without norm, residual connection and MLP.

    The output has the mixer's width; ``dim``, ``hidden`` and ``dropout`` are unused.
    """

    def __init__(self, mixer: Callable[[], Mixer], *, dim: int, hidden: int, dropout: float):
        super().__init__()
        self.mixer = mixer()
        self.width = self.mixer.width
        self.compactable = self.mixer.compactable

    def forward(
        self,
        x: Float[Tensor, "N L d"],
        mask: Bool[Tensor, "N L"] | None,
        memory: Any = None,
    ) -> tuple[Float[Tensor, "N L width"], Any]:
        return self.mixer(x, mask), memory

    def varlen(self, x: Float[Tensor, "1 T d"], layout: VarlenLayout) -> Float[Tensor, "1 T width"]:
        mixer = cast(Multihead, self.mixer)
        return mixer.varlen(x, layout)


def _check_width(mixer: Mixer, dim: int) -> None:
    if mixer.width != dim:
        raise ValueError(
            f"residual width mismatch: model.dim is {dim}, the mixer returns {mixer.width}; use block=plain"
        )
