"""The interfaces of attention mechanisms, and the handling of heads and masks that they share.

The letters of tensor shapes, in this package and in ``lra.model``:

    N   sequences of a batch; a pair of texts has two
    L   length of the padded sequence
    T   packed tokens of all sequences: the real ones, and those that ``lra.varlen`` adds
    H   heads
    D   size of a query or key
    E   size of a value
    F   features of a query or key
    d   width of a token vector
    c   selected tokens or landmarks
    B   blocks of a sequence, of b tokens each

Signatures declare shapes with jaxtyping, and the tests of mechanisms and models check them at every call. A mask is
True at real tokens; None means that all tokens are real.

Every mechanism passes the checks of ``lra.checks``, except in the cases that ``lra/checks/exceptions.py`` lists. The
checks require, among other things: padding never changes the output of a real token; an example has the same result
alone and in a batch; evaluation is repeatable; every parameter has a finite gradient, not all zero; mask=None
equals a mask of ones; with r < c real tokens the result is the same as with c = r. A mechanism scales its own scores,
keeps no state between calls, and may return float32 for 16-bit inputs.
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from ..options import Checked, Share

if TYPE_CHECKING:
    from ..varlen import VarlenLayout

# Class attributes of version 0.2 and the attributes that replace them.
RENAMED = {
    "shares_qk": "shared_qk",
    "takes_bias": "supports_bias",
    "mixes_batch": "batch_dependent",
    "drops": "has_dropout",
    "hole_free": "compactable",
}


@dataclass(frozen=True, kw_only=True)
class Sizes(Checked):
    """The sizes that a model gives to its mechanism.

    Args:
        heads: number of heads.
        head_dim: size of a query or key; in ``Based`` and ``GLA`` the size of a value.
        value_dim: size of a value of an Attention. Mechanisms that are a Mixer do not read it.
        length: maximum length of the sequences that the mechanism receives: the maximum length of the task, one more
            with a class vector (model.pool=class), or the length of a chunk of MEGA.
        dropout: dropout of the mechanism, mostly of the attention weights; must be 0 unless the class sets
            ``has_dropout = True``. The whole layers Luna and DBA get model.dropout by default.
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
        TypeError: a subclass sets a class attribute by its former name.
    """

    # Whether sizes.dropout acts in training; otherwise it must be 0.
    has_dropout: ClassVar[bool] = False
    # Whether no output depends on a later token.
    causal: bool = False
    # Whether examples of a batch change each other's results; the texts of a pair are then encoded separately.
    batch_dependent: bool = False
    # Whether the order-preserving removal of masked tokens changes no output (data.pad=compact).
    compactable: bool = False
    # Size of the recurrent state: the real numbers that the layer carries from one token to the next in one direction,
    # over all heads and channels, without the buffers of short convolutions. None if the mechanism has no recurrent
    # form or does not declare one. ``causal`` does not matter: without it Linear and Based sum over all tokens and
    # carry no state, but they still declare the size.
    state_size: int | None = None

    def __init_subclass__(cls, **kwargs: Any):
        super().__init_subclass__(**kwargs)
        for old, new in RENAMED.items():
            if old in vars(cls):
                raise TypeError(f"{cls.__name__}.{old} is now called {new}; rename the attribute")

    def __init__(self, sizes: Sizes):
        super().__init__()
        if sizes.dropout and not self.has_dropout:
            name = type(self).__name__
            raise ValueError(
                f"dropout must be 0, not {sizes.dropout:g}: {name} has no dropout; model.dropout acts on its output"
            )
        self.sizes = sizes


class Attention(Mechanism):
    """A function of queries, keys and values. ``lra.model.multihead`` has the projections around it."""

    # Whether ``Multihead`` has one projection for queries and keys, which are then one tensor: ``forward`` may ignore q
    # or k.
    shared_qk: ClassVar[bool] = False
    # Whether ``forward`` takes an argument ``bias``: a function of the positions of queries and of keys that returns
    # the bias to add to their scores.
    supports_bias: bool = False

    @abstractmethod
    def forward(
        self,
        q: Float[Tensor, "N H L D"],
        k: Float[Tensor, "N H L D"],
        v: Float[Tensor, "N H L E"],
        mask: Bool[Tensor, "N L"] | None = None,
    ) -> Float[Tensor, "N H L E"]:
        # nn.Module does not enforce ``abstractmethod``.
        raise NotImplementedError(f"{type(self).__name__} must define forward")

    def varlen(
        self,
        q: Float[Tensor, "1 H T D"],
        k: Float[Tensor, "1 H T D"],
        v: Float[Tensor, "1 H T E"],
        layout: "VarlenLayout",
    ) -> Float[Tensor, "1 H T E"]:
        """Mix packed sequences.

        This default pads them. Mechanisms with a padding-free form override it.
        """
        padded = [layout.unpack(x, 2) for x in (q, k, v)]
        return layout.pack(self(*padded, layout.mask), 2)


class Mixer(Mechanism):
    """A function of token vectors, whose result may have another ``width``.

    The blocks of ``lra.model.blocks`` contain one Mixer: ``Multihead`` around an Attention, or a Mixer that is itself
    the mechanism. Like any module it may have ``rates``: learning-rate factors by parameter name. Parameters in
    ``rates`` have no weight decay unless their names are in ``decayed`` (``lra.train.optim``).

    Args:
        sizes: see ``Sizes``.
        dim: d.
    """

    def __init__(self, sizes: Sizes, *, dim: int):
        super().__init__(sizes)
        self.width = dim

    @abstractmethod
    def forward(
        self,
        x: Float[Tensor, "N L d"],
        mask: Bool[Tensor, "N L"] | None = None,
    ) -> Float[Tensor, "N L width"]:
        raise NotImplementedError(f"{type(self).__name__} must define forward")

    def attention_map(
        self,
        x: Float[Tensor, "N L d"],
        mask: Bool[Tensor, "N L"] | None = None,
    ) -> Float[Tensor, "N H L L"] | None:
        """Return the attention map that multiplies the values, or None (the default) for a mixer without one.

        Only a mixer whose output is linear in its values has a map. Convolutions and recurrences do not compute theirs.
        ``lra.maps`` computes the map of a ``Multihead``: it passes the identity as values to the Attention.
        """
        return None


def split_heads(x: Float[Tensor, "N L HD"], heads: int) -> Float[Tensor, "N {heads} L D"]:
    """Split the last dimension into heads."""
    by_head = x.unflatten(-1, (heads, -1))  # (N,L,H,D)
    return by_head.transpose(1, 2)


def merge_heads(x: Float[Tensor, "N H L D"]) -> Float[Tensor, "N L HD"]:
    """Join the heads in the last dimension."""
    by_token = x.transpose(1, 2)  # (N,L,H,D)
    return by_token.flatten(2)


def zero_padding(
    x: Float[Tensor, "N H L F"],
    mask: Bool[Tensor, "N L"] | None,
) -> Float[Tensor, "N H L F"]:
    """Set x, which must be finite, to zero at padded positions."""
    if mask is None:
        return x
    return x * mask[:, None, :, None]


def divide_sums(
    sums: Float[Tensor, "N H L E_plus_1"],
    mask: Bool[Tensor, "N L"] | None,
) -> Float[Tensor, "N H L E"]:
    """Divide weighted sums of values by the sum of the weights, which is the last column.

    Padded queries may see no key, so for them the result is 1.
    """
    if mask is not None:
        is_real = mask[:, None, :, None]  # (N,1,L,1)
        sums = torch.where(is_real, sums, 1)
    numerator = sums[..., :-1]
    denominator = sums[..., -1:]
    return numerator / denominator


def as_attn_mask(mask: Bool[Tensor, "N L"] | None) -> Bool[Tensor, "N 1 1 L"] | None:
    """Give a mask of keys the shape of the ``attn_mask`` of ``scaled_dot_product_attention``.

    A sequence without real tokens gets all keys, because a softmax over no key may be NaN.
    """
    if mask is None:
        return None
    has_real = mask.any(-1, keepdim=True)
    keys = mask | ~has_real
    return keys[:, None, None]
