"""The interfaces of attention mechanisms.

Letters of shapes: N examples (each text of a pair counts as one), H heads, L length of the padded sequence, D size of a
query or key, E size of a value, c selected tokens or landmarks, d width of a token vector, T real tokens of all packed
sequences together. A mask is bool (N,L): True marks a real token, None means that all are real.

Every mechanism passes the checks of ``lra.checks``: padding never changes the output of a real token; an example has
the same result alone and in a batch; evaluation is repeatable; every parameter gets a finite gradient; mask=None equals
a mask of ones; fewer real tokens than c give the result of c = that number. A mechanism does its own scaling, chooses
its own precision and keeps no state between calls.
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from torch import Tensor, nn

from ..options import Checked, Share

if TYPE_CHECKING:
    from ..varlen import VarlenLayout


@dataclass(frozen=True, kw_only=True)
class Sizes(Checked):
    """The sizes that a model gives to its mechanism.

    Args:
        heads: number of heads.
        head_dim: size of a query or key.
        value_dim: size of a value.
        length: maximum sequence length of the task.
        dropout: attention dropout; must be 0 unless the class sets ``drops = True``.
    """

    heads: int
    head_dim: int
    value_dim: int
    length: int
    dropout: Share = 0.0


class Mechanism(Checked, nn.Module):
    """Base class of ``Attention`` and ``Mixer``. Options are keyword-only arguments of the constructor after ``sizes``.

    Args:
        sizes: see ``Sizes``.

    Raises:
        ValueError: an option is outside the choices or the range of its annotation, or sizes.dropout is not 0 although
            the mechanism has no dropout.
    """

    # Whether sizes.dropout acts in training; otherwise it must be 0.
    drops: ClassVar[bool] = False
    # Whether no output depends on a later token.
    causal: bool = False
    # Whether the order-preserving removal of masked tokens changes no output (data.pad=compact).
    hole_free: bool = False
    # Real numbers that the layer carries from one token to the next in one direction, over all heads and channels;
    # None for a mechanism that is not a recurrence. Buffers of short convolutions do not count.
    state_size: int | None = None

    def __init__(self, sizes: Sizes):
        super().__init__()
        if sizes.dropout and not self.drops:
            name = type(self).__name__
            raise ValueError(
                f"dropout must be 0, not {sizes.dropout:g}: {name} has none; model.dropout acts on its result"
            )
        self.sizes = sizes


class Attention(Mechanism):
    """A function of queries, keys and values: q, k (N,H,L,D), v (N,H,L,E), mask (N,L) -> (N,H,L,E).

    ``lra.model.multihead`` has the projections around it.
    """

    # Whether queries and keys are one projection.
    shares_qk: ClassVar[bool] = False
    # Whether examples of a batch change each other's results; the texts of a pair are then encoded separately.
    mixes_batch: bool = False
    # Whether ``forward`` has an argument ``bias``, a function of positions (rows, cols) that returns a score bias.
    takes_bias: bool = False

    @abstractmethod
    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor: ...

    def varlen(self, q: Tensor, k: Tensor, v: Tensor, layout: "VarlenLayout") -> Tensor:
        """Mix packed sequences, q, k, v (1,H,T,·) -> (1,H,T,E).

        This default pads them. Mechanisms with a padding-free form override it.
        """
        padded = [layout.unpack(x, 2) for x in (q, k, v)]
        return layout.pack(self(*padded, layout.mask), 2)


class Mixer(Mechanism):
    """A function of token vectors: x (N,L,d), mask (N,L) -> (N,L,width).

    An encoder block contains one Mixer: ``Multihead`` around an Attention, or a mechanism. Like any module it may have
    ``rates``: learning-rate factors by parameter name. Parameters in ``rates`` have no weight decay unless their names
    are in ``decayed`` (``lra.train.optim``).

    Args:
        sizes: see ``Sizes``.
        dim: d.
    """

    def __init__(self, sizes: Sizes, *, dim: int):
        super().__init__(sizes)
        self.width = dim

    @abstractmethod
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor: ...

    def attention_map(self, x: Tensor, mask: Tensor | None = None) -> Tensor | None:
        """Return the map (N,H,L,L) that multiplies the values, or None.

        None stands for values that do not enter linearly, and for recurrences, which never form the map.
        """
        return None
