"""The contract of a mechanism.

N examples (towers count as examples), H heads, L length, D key size, E value size, c kept or landmark tokens, d width,
T the real tokens of all rows together.
A mask is bool (N, L): True is a real token, None means that all are.

Laws, tested over every conf/attn/*.yaml: padded positions never change a real row; an example gives the same result
alone and in a batch; evaluation is repeatable; every parameter gets a finite gradient; mask=None equals an all-True
mask; fewer real tokens than c works and equals c = that many. A mechanism owns its scaling and its precision and keeps
no state between calls.
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from ..options import Checked, Share
from ..varlen import VarlenLayout


@dataclass(frozen=True, kw_only=True)
class Sizes(Checked):
    """The sizes of a mechanism's place in a model, which its shell knows and ``Attention`` and ``Mixer`` share.

    ``length`` is that of the longest row the task can hand over. ``dropout`` is the mechanism's own, for those that
    ``drops`` says.
    """

    heads: int
    head_dim: int
    value_dim: int
    length: int
    dropout: Share = 0.0


class Mechanism(Checked, nn.Module):
    """An ``Attention`` or a ``Mixer``. Its own options are keyword-only arguments of its constructor behind ``sizes``.

    A mechanism without options needs no constructor.

    Raises:
        ValueError: an option is outside the choices or the range of its annotation, or there is a dropout that the
            mechanism lacks.
    """

    drops: ClassVar[bool] = False  # True: sizes.dropout acts in training; otherwise it must be 0
    causal: bool = False  # True: no result depends on a token ahead
    hole_free: bool = False  # True: removing masked positions, the order kept, changes no real row (data.pad=compact)

    def __init__(self, sizes: Sizes):
        super().__init__()
        if sizes.dropout and not self.drops:
            name = type(self).__name__
            raise ValueError(
                f"dropout must be 0, not {sizes.dropout:g}: {name} has none; model.dropout acts on its result"
            )
        self.sizes = sizes


class Attention(Mechanism):
    """Mixes values by queries and keys: q, k (N,H,L,D), v (N,H,L,E), mask (N,L) -> (N,H,L,E).

    The projections around it live in ``lra.model.multihead``.
    """

    shares_qk: ClassVar[bool] = False  # True: one projection serves q and k
    mixes_batch: bool = False  # True: examples of a batch change each other's result; each tower is then a batch
    takes_bias: bool = False  # True: forward has an argument ``bias``, a function of positions (rows, cols)

    @abstractmethod
    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor: ...

    def varlen(self, q: Tensor, k: Tensor, v: Tensor, layout: VarlenLayout) -> Tensor:
        """Mix packed rows, q, k, v (1,H,T,·) -> (1,H,T,E): padded, unless a mechanism does it without."""
        return layout.pack(self(*(layout.unpack(x, 2) for x in (q, k, v)), layout.mask), 2)


class Mixer(Mechanism):
    """Mixes token vectors, d = ``dim``: x (N,L,d), mask (N,L) -> (N,L,width).

    A block holds one, ``Multihead`` or a mechanism. Like any module it may have ``rates``: factors of the learning rate
    by the names of its own parameters, which then have no weight decay unless ``decayed`` has their names too
    (``lra.train.optim``).
    """

    def __init__(self, sizes: Sizes, *, dim: int):
        super().__init__(sizes)
        self.width = dim  # of the rows it puts out

    @abstractmethod
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor: ...

    def attention_map(self, x: Tensor, mask: Tensor | None = None) -> Tensor | None:
        """The map that multiplies the values, (N,H,L,L): the result for the identity in their place.

        None, unless a mechanism says otherwise: if values do not enter linearly there is no such map.
        """
        return None
