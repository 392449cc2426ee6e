"""Batches of sequences of different lengths with little padding: packed, or in groups of similar lengths.

Packed sequences are the real tokens of a batch, without the padding between them.

Shapes: N sequences of at most L tokens, T packed tokens, H heads, width D or E per head, c selected tokens.
"""

from collections.abc import Callable, Iterable, Sequence

import torch
from jaxtyping import Bool, Float, Int, Num
from torch import Tensor

# Number of sequences of similar lengths that are processed together.
GROUP_SIZE = 8
# Widths of groups are rounded up to a multiple of this, so that products have few shapes.
WIDTH_MULTIPLE = 64


class VarlenLayout:
    """The layout of the real tokens of N sequences as T packed tokens, in order.

    Attributes:
        mask: the mask (N,L).
        num_real: number of real tokens (N,) of each sequence.
        lengths: the same as a list.
        starts: packed index (N,) of the first token of each sequence.
        positions: position (T,) of each packed token in its padded sequence, 0 to L - 1.
        is_real: True (1,T) for real tokens among the T, False for added ones; None if all are real.
        groups: indices of the sequences in the order of their lengths, ``GROUP_SIZE`` at a time.
        num_added: number of tokens that were added to make T a multiple of ``multiple``.

    Args:
        mask: real tokens.
        multiple: T is padded to a multiple of this number, so that products have few shapes. The added tokens are
            copies of the first real token. They change no other token, and have no gradient because ``unpack``,
            ``split`` and ``sum`` leave them out.
    """

    def __init__(self, mask: Bool[Tensor, "N L"], multiple: int = 1):
        self.mask = mask
        # Lengths, and groups of similar lengths.
        self.num_real = mask.sum(-1)
        self.lengths: list[int] = self.num_real.tolist()
        num_sequences = len(self.lengths)
        order = sorted(range(num_sequences), key=self.lengths.__getitem__)
        self.groups = []
        for first in range(0, num_sequences, GROUP_SIZE):
            group = order[first : first + GROUP_SIZE]
            self.groups.append(group)

        # Index of each position (N,L) among the packed tokens, valid where the mask is True.
        ends = self.num_real.cumsum(0)
        self.starts = ends - self.num_real
        rank = mask.cumsum(-1) - 1  # (N,L)
        self._packed_index = self.starts[:, None] + rank

        # Index of each packed token in the flattened batch (N L,), without and with the tokens added at the end.
        flat_mask = mask.flatten()
        self._flat_index = flat_mask.nonzero()[:, 0]
        num_tokens = len(self._flat_index)
        self.num_added = -num_tokens % multiple
        first_real = self._flat_index[:1]
        added = first_real.expand(self.num_added)
        self._filled_flat_index = torch.cat([self._flat_index, added])  # (T,)
        self.positions = self._filled_flat_index % mask.shape[1]

        # Which of the T packed tokens are real; None: all.
        self.is_real = None
        if self.num_added:
            index = torch.arange(num_tokens + self.num_added, device=mask.device)
            self.is_real = index[None] < num_tokens

    def pack(self, x: Tensor, dim: int = 1) -> Tensor:
        """Pack (N,...,L,...), L at ``dim``, as (1,...,T,...)."""
        tokens_first = x.movedim(dim, 1)
        flat = tokens_first.flatten(0, 1)
        packed = flat.index_select(0, self._filled_flat_index)
        return packed[None].movedim(1, dim)

    def unpack(self, x: Tensor, dim: int = 1, fill: float = 0.0) -> Tensor:
        """Unpack (1,...,T,...), T at ``dim``, as (N,...,L,...) with ``fill`` at padded positions."""
        num_tokens = len(self._flat_index)
        tokens_first = x.movedim(dim, 1)
        tokens = tokens_first[0, :num_tokens]
        flat = tokens.new_full((self.mask.numel(), *tokens.shape[1:]), fill)
        flat = flat.index_copy(0, self._flat_index, tokens)
        unpacked = flat.unflatten(0, self.mask.shape)
        return unpacked.movedim(1, dim)

    def split(self, x: Tensor, dim: int) -> tuple[Tensor, ...]:
        """Split a packed x along ``dim`` into the real tokens of its N sequences."""
        num_tokens = len(self._flat_index)
        real = x.narrow(dim, 0, num_tokens)
        return real.split(self.lengths, dim)

    def sum(self, x: Float[Tensor, "1 T d"]) -> Float[Tensor, "N d"]:
        """Sum over the tokens of each sequence, in float32 at least."""
        dtype = torch.promote_types(x.dtype, torch.float32)
        sums = [tokens.sum(1, dtype=dtype) for tokens in self.split(x, 1)]
        return torch.cat(sums)

    def strided_indices(self, count: int) -> Int[Tensor, "N count"]:
        """Return packed indices at equal distances in each sequence."""
        # Selected token i is number floor(i num_real / count) of the real tokens of its sequence.
        i = torch.arange(count, device=self.num_real.device)
        rank = i * self.num_real[:, None] // count  # (N,count)
        return self.starts[:, None] + rank

    def top(self, scores: Float[Tensor, "1 H T"], count: int) -> Int[Tensor, "N H count"]:
        """Return the packed indices of the ``count`` highest scores of each sequence.

        No sequence may be shorter than ``count``.
        """
        # The highest scores per sequence, at padded positions -inf; then positions become packed indices.
        unpacked = self.unpack(scores, 2, float("-inf"))  # (N,H,L)
        highest = unpacked.topk(count, sorted=False)
        positions = highest.indices
        H = positions.shape[1]
        packed_index = self._packed_index[:, None].expand(-1, H, -1)  # (N,H,L)
        return packed_index.gather(2, positions)

    def is_packed(self, x: Tensor) -> bool:
        """Whether x is packed, (1,H,T,D), rather than selected tokens of each sequence, (N,H,c,D).

        c = T only for a single sequence of which all tokens are selected; both are the same then.
        """
        num_packed = len(self.positions)
        return x.shape[2] == num_packed

    def sequences(self, x: Tensor) -> Sequence[Tensor]:
        """Split x, packed (1,H,T,D) or selected (N,H,c,D), into N sequences (H,·,D)."""
        if self.is_packed(x):
            return self.split(x[0], 1)
        return x.unbind()

    def join(self, sequences: Iterable[Float[Tensor, "H _ D"]]) -> Float[Tensor, "1 H T D"]:
        """Join sequences to packed tokens, which are (1,T,H,D) in memory."""
        parts = [sequence.transpose(0, 1) for sequence in sequences]
        # The added tokens get zeros.
        if self.num_added:
            token_shape = parts[0].shape[1:]
            zeros = parts[0].new_zeros(self.num_added, *token_shape)
            parts.append(zeros)
        tokens = torch.cat(parts)  # (T,H,D)
        return tokens[None].transpose(1, 2)


def encode_in_groups(
    encode: Callable[[Tensor, Tensor], Tensor],
    inputs: Num[Tensor, "N L *F"],
    mask: Bool[Tensor, "N L"],
) -> Float[Tensor, "N pooled"]:
    """Encode ``GROUP_SIZE`` sequences of similar lengths at a time, padded to the longest of them.

    Args:
        encode: function of inputs (n,l[,F]) and mask (n,l) that returns one vector for each sequence, whatever the
            other sequences are.
        inputs: token ids or features.
        mask: real tokens.
    """
    L = mask.shape[1]
    num_positions = 1 + last_real(mask)  # (N,)
    order = num_positions.argsort(stable=True)
    encoded = []
    for group in order.split(GROUP_SIZE):
        longest = int(num_positions[group[-1]])
        width = min(L, -(-longest // WIDTH_MULTIPLE) * WIDTH_MULTIPLE)
        group_vectors = encode(inputs[group, :width], mask[group, :width])
        encoded.append(group_vectors)
    return torch.cat(encoded)[order.argsort()]


def last_real(mask: Bool[Tensor, "N L"]) -> Int[Tensor, " N"]:
    """Return the index of the last real token of each sequence, L - 1 for a sequence without one."""
    distance_from_end = mask.flip(1).int().argmax(1)
    return mask.shape[1] - 1 - distance_from_end


def gather_packed(x: Float[Tensor, "1 H T D"], index: Int[Tensor, "N H c"]) -> Float[Tensor, "N H c D"]:
    """Gather the tokens of a packed x at ``index``."""
    N, _, c = index.shape
    tokens_first = x.transpose(1, 2)  # (1,T,H,D)
    token_index = _expand(index, x.shape[-1])
    tokens = tokens_first.gather(1, token_index)  # (1,N c,H,D)
    grouped = tokens[0].unflatten(0, (N, c))  # (N,c,H,D)
    return grouped.transpose(1, 2)


def scatter_packed(
    x: Float[Tensor, "1 H T E"],
    index: Int[Tensor, "N H c"],
    tokens: Float[Tensor, "N H c E"],
) -> Float[Tensor, "1 H T E"]:
    """Replace the tokens of a packed x at ``index`` by ``tokens``."""
    tokens = tokens.to(x.dtype)
    flat = tokens.transpose(1, 2).flatten(0, 1)  # (N c,H,E)
    tokens_first = x.transpose(1, 2)  # (1,T,H,E)
    token_index = _expand(index, x.shape[-1])
    out = tokens_first.scatter(1, token_index, flat[None])
    return out.transpose(1, 2)


def _expand(index: Int[Tensor, "N H c"], width: int) -> Int[Tensor, "1 Nc H width"]:
    """Repeat an index over the features, for ``gather`` along T of (1,T,H,width)."""
    flat = index.transpose(1, 2).flatten(0, 1)  # (N c,H)
    return flat[None, ..., None].expand(-1, -1, -1, width)
