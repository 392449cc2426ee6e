"""LSH attention (Reformer: Kitaev et al., ICLR 2020)."""

import math
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from ..ops.blocks import Part, attend_part, gather_blocks, normalise_parts, split_blocks
from ..ops.precision import full_precision
from ..options import Positive
from .base import Attention, Sizes

Scope = Literal["chunk", "bucket"]
# Added to a token's score with itself (appendix A).
SELF_PENALTY = -1e5


class Reformer(Attention):
    """Tokens attend within chunks of the sequence sorted by hash; queries and keys are one projection x.

    Each of ``hashes`` rounds

        1. hashes every token: bucket(x) = argmax [x W, -x W] with a Gaussian W (section 2, where W is called R),
        2. sorts the real tokens by bucket and position and cuts them into chunks of ``chunk``,
        3. lets each chunk attend to itself and to the chunk before it, with scores x_i·x_j / |x_j| · D^power.

        4. One softmax joins the keys of all rounds.

    The first chunk has none before it, as in the paper; in the released libraries it attends to the last one of the
    round before. Padding is sorted to the end, so no chunk depends on it. W is drawn again at every call in training;
    evaluation keeps one draw. O(L hashes chunk (D + E) + L hashes D buckets) time. With buckets=null the second term,
    the hashing, is quadratic in L, because buckets is 2 length / chunk. In plain torch: ``lra/reference/reformer.py``.

    Shapes: R rounds, C chunks of c tokens.

    Args:
        sizes: see ``lra.attention.base.Sizes``.
        hashes: number of rounds.
        chunk: tokens per chunk; null: ceil(length / buckets).
        buckets: number of buckets, 1 or even; null: 2 ceil(length / chunk), for chunks of twice the mean bucket size
            (section 2).
        scope: the keys that a query sees. ``chunk``, as in the released libraries: all keys of both chunks, and a key
            that is met in several rounds counts once per round. ``bucket``, as in the paper: only keys of the query's
            own bucket, and each key counts once (the log N_ij of appendix A).
        power: -0.5 as in the paper, 0 as in the library behind Nystromformer's code, 0.5 as in the official LRA code.
        unit_keys: whether scores are divided by |x_j|; the official LRA code does not.
        own_last: whether a token attends to itself only if it has no other key; not in the official LRA code.

    Raises:
        ValueError: odd buckets above 1, or neither buckets nor chunk.
    """

    shared_qk = True
    compactable = True

    def __init__(
        self,
        sizes: Sizes,
        *,
        hashes: Positive = 2,
        chunk: Positive | None = 64,
        buckets: Positive | None = None,
        scope: Scope = "chunk",
        power: float = -0.5,
        unit_keys: bool = True,
        own_last: bool = True,
    ):
        super().__init__(sizes)
        if chunk is None and buckets is None:
            raise ValueError("chunk and buckets must not both be null")
        if buckets is not None and buckets > 1 and buckets % 2:
            raise ValueError(f"buckets must be 1, even, or null for 2 length / chunk, not {buckets}")
        self.hashes = hashes
        self.scope = scope
        self.power = power
        self.unit_keys = unit_keys
        self.own_last = own_last
        # Each of chunk and buckets has a default that follows from the other.
        if chunk is None:
            assert buckets is not None
            chunk = math.ceil(sizes.length / buckets)
        if buckets is None:
            num_chunks = math.ceil(sizes.length / chunk)
            buckets = 2 * num_chunks
        self.chunk = chunk
        self.buckets = buckets
        # W of each head and round in evaluation.
        rotations = torch.randn(sizes.heads, hashes, sizes.head_dim, buckets // 2)
        self.rotations: Tensor
        self.register_buffer("rotations", rotations)

    @full_precision
    def forward(
        self,
        q: Float[Tensor, "N H L D"],
        k: Float[Tensor, "N H L D"],
        v: Float[Tensor, "N H L E"],
        mask: Bool[Tensor, "N L"] | None = None,
    ) -> Float[Tensor, "N H L E"]:
        N, H, L, _ = q.shape
        size = min(self.chunk, L)
        if mask is None:
            mask = q.new_ones(1, L, dtype=torch.bool)
        real = mask[:, None].expand(N, H, L)

        # 1. Hash; padding gets an additional bucket, the last.
        is_padding = ~real[:, :, None]  # (N,H,1,L)
        bucket = self.hash(q).masked_fill(is_padding, self.buckets)  # (N,H,R,L)

        # 2. Sort: ``order`` maps sorted places to positions, ``place`` maps positions to sorted places.
        order = bucket.argsort(dim=-1, stable=True)
        place = order.argsort(-1)

        # 3. Attend within chunks.
        sorted_part = self._attend(q, v, real, bucket, order, place, size)

        # 4. Undo the sorting, with one gather for the values, totals and maxima; join the rounds in one softmax.
        sums = torch.cat(sorted_part, -1).flatten(3, 4)  # (N,H,R,C c,E + 2)
        num_places = sums.shape[3]
        first_place = torch.arange(self.hashes, device=q.device)[:, None] * num_places  # (R,1)
        token_sums = gather_blocks(sums.flatten(2, 3), place + first_place)  # (N,H,R,L,E + 2)
        widths = [v.shape[-1], 1, 1]
        parts = []
        for round_sums in token_sums.unbind(2):
            values, total, top = round_sums.split(widths, -1)
            parts.append(Part(values, total, top))
        return normalise_parts(parts)

    def _attend(
        self,
        q: Float[Tensor, "N H L D"],
        v: Float[Tensor, "N H L E"],
        real: Bool[Tensor, "N H L"],
        bucket: Int[Tensor, "N H R L"],
        order: Int[Tensor, "N H R L"],
        place: Int[Tensor, "N H R L"],
        size: int,
    ) -> Part:
        """Compute step 3 at the sorted places of each round: the sums of a ``Part``, (N,H,R,C,c,.)."""
        D = q.shape[-1]
        x = _sort_and_cut(q, order, size)  # (N,H,R,C,c,D)
        keys = F.normalize(x, dim=-1) if self.unit_keys else x
        keys = _with_previous(keys)  # (N,H,R,C,2 c,D)
        values = _with_previous(_sort_and_cut(v, order, size))  # (N,H,R,C,2 c,E)
        scores = (x @ keys.mT) * D**self.power  # (N,H,R,C,c,2 c)
        is_real = _with_previous(_sort_and_cut(real, order, size))  # (N,H,R,C,2 c)
        allowed = is_real[..., None, :]  # (N,H,R,C,1,2 c)

        # Only keys of the query's bucket. A key that is met in several rounds counts once.
        if self.scope == "bucket":
            sorted_bucket = split_blocks(bucket.gather(-1, order), size, 3)  # (N,H,R,C,c)
            query_bucket = sorted_bucket[..., None]  # (N,H,R,C,c,1)
            key_bucket = _with_previous(query_bucket).mT  # (N,H,R,C,1,2 c)
            allowed = allowed & (query_bucket == key_bucket)
            num_rounds = self._count_meetings(bucket, order, place, size)
            scores = scores - num_rounds.to(x.dtype).log()

        # A token attends to itself only if it has no other key. The second half of the keys is the query's own chunk.
        if self.own_last:
            penalty = SELF_PENALTY * torch.eye(size, dtype=x.dtype, device=x.device)
            scores = scores + F.pad(penalty, (size, 0))
        return attend_part(scores, values, allowed)

    @torch.no_grad()
    def hash(self, x: Float[Tensor, "N H L D"]) -> Int[Tensor, "N H R L"]:
        """Compute the bucket of each token in each round."""
        N, H, L, _ = x.shape
        if self.buckets == 1:
            return torch.zeros(N, H, self.hashes, L, dtype=torch.int64, device=x.device)
        rotations = torch.randn_like(self.rotations) if self.training else self.rotations
        rotated = x[:, :, None] @ rotations.to(x.dtype)  # (N,H,R,L,buckets / 2)
        # The largest entry of [x W, -x W] has the largest absolute value; its sign chooses the half.
        largest = rotated.abs().argmax(-1, keepdim=True)  # (N,H,R,L,1)
        is_negative = rotated.gather(-1, largest) < 0
        half = rotated.shape[-1]
        bucket = largest + is_negative * half
        return bucket[..., 0]

    def _count_meetings(
        self,
        bucket: Int[Tensor, "N H R L"],
        order: Int[Tensor, "N H R L"],
        place: Int[Tensor, "N H R L"],
        size: int,
    ) -> Int[Tensor, "N H R C c 2*c"]:
        """Count the rounds in which a query attends to a key, at least 1."""
        # For the order of each round (first R): bucket and chunk of every token in all rounds (last R).
        chunk = place // size
        buckets = _sort_and_cut(bucket.mT, order, size)  # (N,H,R,C,c,R)
        chunks = _sort_and_cut(chunk.mT, order, size)  # (N,H,R,C,c,R)
        key_buckets = _with_previous(buckets)  # (N,H,R,C,2 c,R)
        key_chunks = _with_previous(chunks)
        count = torch.zeros((), dtype=torch.int32, device=bucket.device)
        for r in range(self.hashes):
            same_bucket = buckets[..., r, None] == key_buckets[..., None, :, r]  # (N,H,R,C,c,2 c)
            distance = chunks[..., r, None] - key_chunks[..., None, :, r]
            in_reach = (distance == 0) | (distance == 1)
            count = count + (same_bucket & in_reach).int()
        return count.clamp(min=1)


def _sort_and_cut(
    x: Shaped[Tensor, "N H L *rest"],
    order: Int[Tensor, "N H R L"],
    size: int,
) -> Shaped[Tensor, "N H R C {size} *rest"]:
    """Sort tokens and cut them into chunks of ``size``, in every round."""
    # ``gather_blocks`` takes entries of dimension 2, which are single tokens here.
    return split_blocks(gather_blocks(x, order), size, 3)


def _with_previous(x: Shaped[Tensor, "N H R C c *rest"]) -> Shaped[Tensor, "N H R C 2*c *rest"]:
    """Put each chunk behind the one before it, zeros before the first."""
    before_first = torch.zeros_like(x[:, :, :, :1])
    previous = torch.cat([before_first, x[:, :, :, :-1]], 3)
    return torch.cat([previous, x], 4)
