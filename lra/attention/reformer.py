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
OWN = -1e5  # added to a token's score with itself (appendix A): it sees itself only where it sees nothing else


class Reformer(Attention):
    """Tokens attend within chunks of a row that is sorted by hash; queries and keys are one projection, x.

    Each of ``hashes`` rounds takes bucket(x) = argmax [x R, -x R] with a Gaussian R (section 2), sorts the real tokens
    by bucket and position, cuts them into chunks of ``chunk`` and lets each see its own chunk and the one before.
    The first chunk has none before it, as in the paper; in the released libraries it sees the last one. Padding comes
    last in the sorted row, so the chunks of an example do not depend on it. Scores are x_i·x_j / |x_j| · D^power.

    buckets: null for 2 length / chunk rounded up (chunks of twice the mean bucket, section 2); otherwise 1 or even.
    chunk: null for length / buckets. scope: ``chunk``, every key of both chunks, and a key met in several rounds counts
    in each, as in the released libraries; ``bucket``, the paper: keys of the query's own bucket only, a key met in
    several rounds once (the log N_ij of appendix A). power: -0.5 as in the paper, 0 as in the library behind the
    PyTorch LRA code, 0.5 as in the official LRA code. unit_keys, own_last: the division by |x_j| and the rule about a
    token's own key, both of which the official LRA code leaves out.

    R is drawn anew at every call while training; evaluation keeps one draw.
    O(L chunk hashes) time. Raises ValueError for odd buckets above 1, or if neither they nor a chunk are given.
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
        self.hashes, self.scope, self.power = hashes, scope, power
        self.unit_keys, self.own_last = unit_keys, own_last
        self.chunk = -(-sizes.length // buckets) if chunk is None else chunk
        self.buckets = 2 * -(-sizes.length // self.chunk) if buckets is None else buckets
        self.register_buffer("rotations", torch.randn(sizes.heads, hashes, sizes.head_dim, self.buckets // 2))

    @full_precision
    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        N, H, L, D = q.shape
        size, R = min(self.chunk, L), self.hashes
        real = (q.new_ones(1, L, dtype=torch.bool) if mask is None else mask)[:, None].expand(N, H, L)
        bucket = self.hash(q).masked_fill(~real[:, :, None], self.buckets)  # (N,H,R,L), padding last
        order = bucket.argsort(dim=-1, stable=True)  # sorted place -> position
        place = order.argsort(-1)  # position -> sorted place
        cut = lambda x: blocks(gather_blocks(x, order), size, 3)  # (N,H,L,.) -> (N,H,R,C,c,.)
        x = cut(q)
        keys = back(F.normalize(x, dim=-1) if self.unit_keys else x)  # (N,H,R,C,2c,D)
        scores = x @ keys.mT * D**self.power  # (N,H,R,C,c,2c)
        allowed = back(cut(real))[..., None, :]
        if self.scope == "bucket":
            hashed = blocks(bucket.gather(-1, order), size, 3)[..., None]  # (N,H,R,C,c,1)
            allowed = allowed & (hashed == back(hashed).mT)
            scores = scores - self._meetings(cut, bucket, place // size).to(x.dtype).log()
        if self.own_last:
            scores = scores + F.pad(OWN * torch.eye(size, dtype=x.dtype, device=x.device), (size, 0))
        part = torch.cat([t.flatten(3, 4) for t in weigh(scores, back(cut(v)), allowed)], -1)  # (N,H,R,C c,E+2)
        start = torch.arange(R, device=q.device)[:, None] * part.shape[3]
        part = gather_blocks(part.flatten(2, 3), place + start)  # (N,H,R,L,E+2)
        return merge([Part(*t.split([v.shape[-1], 1, 1], -1)) for t in part.unbind(2)])

    @torch.no_grad()
    def hash(self, x: Tensor) -> Tensor:
        """x (N,H,L,D) -> the bucket of each round, int64 (N,H,R,L)."""
        N, H, L, _ = x.shape
        if self.buckets == 1:
            return torch.zeros(N, H, self.hashes, L, dtype=torch.int64, device=x.device)
        rotations = torch.randn_like(self.rotations) if self.training else self.rotations
        turned = x[:, :, None] @ rotations.to(x.dtype)  # (N,H,R,L,buckets / 2)
        nearest = turned.abs().argmax(-1, keepdim=True)
        return (nearest + (turned.gather(-1, nearest) < 0) * turned.shape[-1])[..., 0]

    def _meetings(self, cut, bucket: Tensor, chunk: Tensor) -> Tensor:
        """In how many rounds, at least 1, a query sees a key; bucket and chunk (N,H,R,L) -> (N,H,R,C,c,2c)."""
        buckets, chunks = cut(bucket.mT), cut(chunk.mT)  # of every round, in each round's order: (N,H,R,C,c,R)
        count = 0
        for r in range(self.hashes):
            mine, theirs = buckets[..., r, None], back(buckets)[..., r]
            step = chunks[..., r, None] - back(chunks)[..., None, :, r]
            count = count + ((mine == theirs[..., None, :]) & ((step == 0) | (step == 1))).int()
        return count.clamp(min=1)


def back(x: Tensor) -> Tensor:
    """Chunks (N,H,R,C,c,*rest) -> each behind the one before it (N,H,R,C,2c,*rest); before the first one is padding."""
    before = torch.cat([torch.zeros_like(x[:, :, :, :1]), x[:, :, :, :-1]], 3)
    return torch.cat([before, x], 4)
