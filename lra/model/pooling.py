"""Towers, class tokens and pooling: how a model encodes the sequences of an example and gets one vector from each."""

from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from ..varlen import last_real

Pool = Literal["mean", "cls", "class", "last", "flatten"]
MeanOver = Literal["length", "real"]
# Rules that take the first vector: ``cls``, a token before the sequence, or ``class``, a learned vector.
FIRST_VECTOR = ("cls", "class")


def over_towers(
    encode: Callable[..., Tensor],
    separately: bool,
    inputs: Shaped[Tensor, "batch towers ..."],
    *tensors: Shaped[Tensor, "batch towers ..."] | None,
) -> Shaped[Tensor, "batch towers ..."]:
    """Encode the towers of a batch as one batch of N sequences, or one tower after the other.

    Args:
        encode: function of tensors whose first dimension counts sequences: N = batch · towers, or ``batch`` if
            ``separately``.
        separately: whether each tower is a separate batch.
        inputs: first argument of ``encode``.
        tensors: further arguments of ``encode``, or None.

    Returns:
        The results of ``encode``, with the dimensions batch and towers.
    """
    arguments = (inputs, *tensors)
    if not separately:
        flat_arguments = [None if x is None else x.flatten(0, 1) for x in arguments]
        encoded = encode(*flat_arguments)
        return encoded.unflatten(0, inputs.shape[:2])
    encoded_towers = []
    for tower in range(inputs.shape[1]):
        tower_arguments = [None if x is None else x[:, tower] for x in arguments]
        encoded_towers.append(encode(*tower_arguments))
    return torch.stack(encoded_towers, 1)


def pool_tokens(
    x: Float[Tensor, "N L d"],
    mask: Bool[Tensor, "N L"] | None,
    positions: Int[Tensor, "N tokens"] | None = None,
    *,
    pool: Pool,
    length: int,
) -> Float[Tensor, "N pooled"]:
    """Pool sequences by any rule except the mean.

    Args:
        x: token vectors.
        mask: real tokens.
        positions: positions of the tokens after compaction, used by pool=flatten only; None for 0 .. L-1. With
            pool=class there is one position fewer than vectors, because the learned vector has none.
        pool: rule, see ``lra.model.classifier.Classifier``.
        length: maximum sequence length.

    Returns:
        One vector for each sequence, of width d or, with pool=flatten, length · d.
    """
    if pool in FIRST_VECTOR:
        return x[:, 0]
    if pool == "last":
        if mask is None:
            return x[:, -1]
        example = torch.arange(len(x), device=x.device)
        return x[example, last_real(mask)]

    # flatten: every token at its position, zeros elsewhere.
    if mask is not None:
        x = x * mask[..., None]
    if positions is not None:
        index = positions[..., None].expand_as(x)  # (N,L,d)
        full = x.new_zeros(len(x), length, x.shape[2])
        return full.scatter(1, index, x).flatten(1)
    num_missing = length - x.shape[1]
    return F.pad(x, (0, 0, 0, num_missing)).flatten(1)


def mean_of_sum(
    total: Float[Tensor, "N d"],
    mask: Bool[Tensor, "N L"] | None,
    *,
    num_tokens: int,
    mean_over: MeanOver,
    length: int,
) -> Float[Tensor, "N d"]:
    """Divide the sums over the real tokens of sequences by a length.

    Args:
        total: sums.
        mask: real tokens; None if all tokens are real.
        num_tokens: L.
        mean_over: divisor: the maximum ``length``, or the number of ``real`` tokens.
        length: maximum sequence length.
    """
    if mean_over == "length":
        return total / length
    if mask is None:
        return total / num_tokens
    num_real = mask.sum(1, keepdim=True).clamp(min=1)  # (N,1)
    return total / num_real


def prepend_class_token(
    inputs: Int[Tensor, "N L"],
    mask: Bool[Tensor, "N L"] | None,
    positions: Int[Tensor, "N L"] | None,
    *,
    class_id: int,
    length: int,
) -> tuple[Int[Tensor, "N l"], Bool[Tensor, "N l"] | None, Int[Tensor, "N l"] | None]:
    """Put the class token in front of each sequence; a token that this moves to position ``length`` is dropped.

    Args:
        inputs: token ids.
        mask: real tokens.
        positions: positions of the tokens after compaction; None for 0 .. L-1.
        class_id: id of the class token.
        length: maximum sequence length.
    """
    class_tokens = inputs.new_full((len(inputs), 1), class_id)
    inputs = torch.cat([class_tokens, inputs], 1)
    inputs = inputs[:, :length]
    if mask is not None:
        mask = F.pad(mask, (1, 0), value=True)[:, :length]
    if positions is not None:
        # Compacted tokens keep their original positions, here shifted by 1. The last position becomes ``length``,
        # without an embedding, but its token may be at a smaller index and thus not be cut off. Mask that token, and
        # clamp its position so that the lookup is valid.
        assert mask is not None
        positions = F.pad(positions + 1, (1, 0))
        positions = positions[:, :length]
        mask = mask & (positions < length)
        positions = positions.clamp(max=length - 1)
    return inputs, mask, positions
