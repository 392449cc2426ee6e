"""LSH attention (Reformer: Kitaev et al., ICLR 2020)."""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from ..ops.blocks import Part, blocks, gather_blocks, merge, weigh
from ..ops.precision import full_precision
from ..options import Positive
from .base import Attention, Sizes

Scope = Literal["chunk", "bucket"]
SELF_PENALTY = -1e5  # added to a token's score with itself (appendix A)


class Reformer(Attention):
    """Tokens attend within chunks of the sequence sorted by hash; queries and keys are one projection x.

    Each of ``hashes`` rounds

        1. hashes every token: bucket(x) = argmax [x R, -x R] with a Gaussian R (section 2),
        2. sorts the real tokens by bucket and position and cuts them into chunks of ``chunk``,
        3. lets each chunk attend to itself and to the chunk before it, with scores x_i·x_j / |x_j| · D^power.

        4. One softmax joins the keys of all rounds.

    The first chunk has none before it, as in the paper; in the released libraries it attends to the last one. Padding
    is sorted to the end, so the chunks of an example do not depend on it. R is drawn again at every call in training;
    evaluation keeps one draw. O(L chunk hashes) time.

    Args:
        sizes: see ``lra.attention.base.Sizes``.
        hashes: number of rounds.
        chunk: tokens per chunk; null: length / buckets.
        buckets: number of buckets, 1 or even; null: 2 length / chunk rounded up, for chunks of twice the mean bucket
            size (section 2).
        scope: ``chunk``, all keys of both chunks, and a key that is met in several rounds counts in each of them, as in
            the released libraries; ``bucket``, the paper: only keys of the query's own bucket, and each key counts once
            (the log N_ij of appendix A).
        power: -0.5 as in the paper, 0 as in the library behind the PyTorch LRA code, 0.5 as in the official LRA code.
        unit_keys: whether scores are divided by |x_j|; the official LRA code does not.
        own_last: whether a token attends to itself only if it has no other key; not in the official LRA code.

    Raises:
        ValueError: odd buckets above 1, or neither buckets nor chunk.
    """

    shares_qk = True
    hole_free = True

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
        self.chunk = -(-sizes.length // buckets) if chunk is None else chunk
        self.buckets = 2 * -(-sizes.length // self.chunk) if buckets is None else buckets
        self.rotations: Tensor
        self.register_buffer("rotations", torch.randn(sizes.heads, hashes, sizes.head_dim, self.buckets // 2))

    @full_precision
    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        N, H, L, D = q.shape
        size = min(self.chunk, L)
        rounds = self.hashes
        mask = q.new_ones(1, L, dtype=torch.bool) if mask is None else mask
        real = mask[:, None].expand(N, H, L)

        # 1. Hash; padding gets an additional bucket, the last.
        bucket = self.hash(q).masked_fill(~real[:, :, None], self.buckets)  # (N,H,R,L)

        # 2. Sort and cut: ``order`` maps sorted places to positions, ``place`` positions to sorted places.
        order = bucket.argsort(dim=-1, stable=True)
        place = order.argsort(-1)
        cut = lambda x: blocks(gather_blocks(x, order), size, 3)  # (N,H,L,·) -> (N,H,R,C,c,·)

        # 3. Attend to the own chunk and the one before it.
        x = cut(q)  # (N,H,R,C,c,D)
        keys = F.normalize(x, dim=-1) if self.unit_keys else x
        keys = with_previous(keys)  # (N,H,R,C,2c,D)
        values = with_previous(cut(v))  # (N,H,R,C,2c,E)
        scores = x @ keys.mT * D**self.power  # (N,H,R,C,c,2c)
        allowed = with_previous(cut(real))[..., None, :]  # (N,H,R,C,1,2c)
        if self.scope == "bucket":
            sorted_bucket = blocks(bucket.gather(-1, order), size, 3)[..., None]  # (N,H,R,C,c,1)
            key_bucket = with_previous(sorted_bucket).mT  # (N,H,R,C,1,2c)
            allowed = allowed & (sorted_bucket == key_bucket)
            # A key that is met in several rounds counts once.
            num_rounds = self._count_meetings(cut, bucket, place // size)
            scores = scores - num_rounds.to(x.dtype).log()
        if self.own_last:
            penalty = SELF_PENALTY * torch.eye(size, dtype=x.dtype, device=x.device)
            scores = scores + F.pad(penalty, (size, 0))
        sums = [part.flatten(3, 4) for part in weigh(scores, values, allowed)]  # (N,H,R,C c,·)

        # 4. Undo the sorting and join the rounds in one softmax.
        sorted_sums = torch.cat(sums, -1)  # (N,H,R,C c,E + 2)
        first = torch.arange(rounds, device=q.device)[:, None] * sorted_sums.shape[3]
        token_sums = gather_blocks(sorted_sums.flatten(2, 3), place + first)  # (N,H,R,L,E + 2)
        widths = [v.shape[-1], 1, 1]
        parts = [Part(*round_sums.split(widths, -1)) for round_sums in token_sums.unbind(2)]
        return merge(parts)

    @torch.no_grad()
    def hash(self, x: Tensor) -> Tensor:
        """Compute the bucket of x (N,H,L,D) in each round, int64 (N,H,R,L)."""
        N, H, L, _ = x.shape
        if self.buckets == 1:
            return torch.zeros(N, H, self.hashes, L, dtype=torch.int64, device=x.device)
        rotations = torch.randn_like(self.rotations) if self.training else self.rotations
        rotated = x[:, :, None] @ rotations.to(x.dtype)  # (N,H,R,L,buckets / 2)
        # The largest entry of [x R, -x R] has the largest absolute value; its sign chooses the half.
        largest = rotated.abs().argmax(-1, keepdim=True)
        is_negative = rotated.gather(-1, largest) < 0
        return (largest + is_negative * rotated.shape[-1])[..., 0]

    def _count_meetings(self, cut, bucket: Tensor, chunk: Tensor) -> Tensor:
        """Count the rounds in which a query attends to a key, at least 1: bucket, chunk (N,H,R,L) -> (N,H,R,C,c,2c)."""
        # Buckets and chunks of every round, in the order of each round: (N,H,R,C,c,R).
        buckets = cut(bucket.mT)
        chunks = cut(chunk.mT)
        count = 0
        for r in range(self.hashes):
            same_bucket = buckets[..., r, None] == with_previous(buckets)[..., r][..., None, :]
            chunk_distance = chunks[..., r, None] - with_previous(chunks)[..., None, :, r]
            in_reach = (chunk_distance == 0) | (chunk_distance == 1)
            count = count + (same_bucket & in_reach).int()
        return count.clamp(min=1)


def with_previous(x: Tensor) -> Tensor:
    """Put each chunk behind the one before it, zeros before the first: (N,H,R,C,c,*rest) -> (N,H,R,C,2c,*rest)."""
    previous = torch.cat([torch.zeros_like(x[:, :, :, :1]), x[:, :, :, :-1]], 3)
    return torch.cat([previous, x], 4)
