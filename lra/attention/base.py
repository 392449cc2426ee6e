"""The contract of a mechanism.

N examples (towers count as examples), H heads, L length, D key size, E value size, c kept or landmark tokens, d width.
A mask is bool (N, L): True is a real token, None means that all are.

Laws, tested over every conf/attn/*.yaml: padded positions never change a real row; an example gives the same result
alone and in a batch; evaluation is repeatable; every parameter gets a finite gradient; mask=None equals an all-True
mask; fewer real tokens than c works and equals c = that many. A mechanism owns its scaling and its precision and keeps
no state between calls.
"""

from abc import abstractmethod
from typing import ClassVar

from torch import Tensor, nn

from ..ops.varlen import VarlenLayout


class Attention(nn.Module):
    """Mixes values by queries and keys: q, k (N,H,L,D), v (N,H,L,E), mask (N,L) -> (N,H,L,E).

    The projections around it live in ``lra.model.multihead``. ``length`` is the longest row the task can hand over.
    """

    shares_qk: ClassVar[bool] = False  # True: one projection serves q and k
    mixes_batch: bool = False  # True: examples of a batch change each other's result; each tower is then a batch
    packs: bool = (
        False  # True: q, k, v may be packed (1,H,T,·), with ``lra.ops.varlen.VarlenLayout`` in the place of the mask
    )

    def __init__(self, *, heads: int, head_dim: int, value_dim: int, length: int, dropout: float = 0.0):
        super().__init__()
        _check(dropout)
        self.heads, self.head_dim, self.value_dim, self.length = heads, head_dim, value_dim, length
        self.dropout = dropout

    @abstractmethod
    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | VarlenLayout | None = None) -> Tensor: ...


class Mixer(nn.Module):
    """What a block holds when the mechanism needs the token vectors: x (N,L,d), mask (N,L) -> (N,L,d)."""

    def __init__(self, *, dim: int, heads: int, head_dim: int, length: int, dropout: float = 0.0):
        super().__init__()
        _check(dropout)
        self.dim, self.heads, self.head_dim, self.length = dim, heads, head_dim, length
        self.width = dim  # of the rows it puts out
        self.dropout = dropout

    @abstractmethod
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor: ...

    def attention_map(self, x: Tensor, mask: Tensor | None = None) -> Tensor | None:
        """What multiplies the values, (N,H,L,L): the result for the identity in their place.

        None, unless a mechanism says otherwise: where values do not enter linearly there is no such map.
        """
        return None


def _check(dropout: float) -> None:
    if not 0 <= dropout <= 1:
        raise ValueError(f"attn.dropout must be between 0 and 1, not {dropout}")
