"""LSH attention (Reformer: Kitaev et al., ICLR 2020, section 2 and appendix A).

One head of one sequence of n tokens. Queries and keys are one projection X (n, d); values V (n, e). In each round

    b(x) = argmax [x W; -x W],   W (d, buckets / 2) Gaussian                                 (1)
    sort the tokens by bucket, then by position, and cut them into chunks                    (2)
    token i sees the tokens of its own chunk and of the chunk before it                      (3)

and one softmax joins all rounds: with N_ij, the number of rounds in which token i sees token j,

    out_i = Σ_j N_ij exp(s_ij) v_j / Σ_j N_ij exp(s_ij),   s_ij = x_i·x_j / |x_j| / √d       (4)

Numbers refer to this list. In the paper a chunk has 2 n / buckets tokens, twice the mean size of a bucket. The first
chunk has none before it; the released libraries sort the tokens of all rounds together, so there it sees the last chunk
of the round before, and in the first round the last chunk of all. The paper restricts (3) to the tokens of both chunks
that share the bucket of token i, and replaces N_ij in (4) by 1 unless it is 0; the released libraries do neither. A
token sees itself only if it sees no other token.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


def hash_tokens(X: Float[Tensor, "n d"], W: Float[Tensor, "d half"]) -> Int[Tensor, "n"]:
    """Compute the buckets, step 1; a W without columns gives one bucket."""
    if W.shape[1] == 0:
        return torch.zeros(len(X), dtype=torch.int64)
    rotated = X @ W
    return torch.cat([rotated, -rotated], dim=1).argmax(dim=1)


def visible(bucket: Int[Tensor, "n"], chunk: int, *, same_bucket: bool) -> Bool[Tensor, "n n"]:
    """Mark the tokens that each token sees in one round, steps 2 and 3.

    Args:
        bucket: bucket of each token.
        chunk: number of tokens in a chunk.
        same_bucket: whether a token sees only tokens of the same bucket, as in the paper.
    """
    # A stable sort keeps the order of the positions within a bucket.
    order = bucket.argsort(stable=True)
    place = order.argsort()
    number = place // chunk  # chunk of each token, (n,)
    distance = number[:, None] - number
    sees = (distance == 0) | (distance == 1)
    if same_bucket:
        sees = sees & (bucket[:, None] == bucket)
    return sees


def attention(
    X: Float[Tensor, "n d"],
    V: Float[Tensor, "n e"],
    rotations: Float[Tensor, "rounds d half"],
    chunk: int,
    *,
    scope: str = "chunk",
    power: float = -0.5,
    unit_keys: bool = True,
    own_last: bool = True,
) -> Float[Tensor, "n e"]:
    """Compute LSH attention.

    Args:
        X: queries, which are the keys too.
        V: values.
        rotations: W of each round. Each head has its own, drawn again at every call in training.
        chunk: number of tokens in a chunk.
        scope: ``chunk`` as in the released libraries, ``bucket`` as in the paper.
        power: s_ij has the factor d^power: -0.5 in the paper and in (4), 0 in the library behind Nystromformer's code,
            0.5 in the official code of the Long Range Arena.
        unit_keys: whether s_ij is divided by |x_j|; the official code of the Long Range Arena does not divide.
        own_last: whether a token sees itself only if it sees no other token; not so in that code.
    """
    d = X.shape[1]
    N = torch.zeros(len(X), len(X), dtype=X.dtype)
    for W in rotations:
        bucket = hash_tokens(X.detach(), W)
        N = N + visible(bucket, chunk, same_bucket=scope == "bucket")
    if scope == "bucket":
        N = N.clamp(max=1)

    # Without the token itself, unless nothing else is left.
    if own_last:
        others = N - N.diagonal().diag()  # (n, n)
        has_others = others.sum(dim=1, keepdim=True) > 0  # (n, 1)
        N = torch.where(has_others, others, N)

    # Step 4.
    keys = X
    if unit_keys:
        keys = X / X.norm(dim=1, keepdim=True)
    scores = X @ keys.T * d**power
    weights = N * scores.exp()
    return weights @ V / weights.sum(dim=1, keepdim=True)
