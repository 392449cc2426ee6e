"""Synthesizer attention (Tay et al., ICML 2021, section 3).

One head of one sequence of n positions, padding included: token vectors X (n, d_model), values V (n, e).

    out = softmax(S) V

    Random:             S is a learned matrix (length, length)
    Factorised Random:  S = A Bᵀ with learned A and B (length, rank)
    Dense:              S_i = W_2 relu(W_1 x_i + b_1) + b_2, computed from token i alone

No score compares two tokens. A mixture with softmax attention adds q_i·k_j / √d to S, without the paper's learned
weights of the two. The paper's Factorised Dense is left out. A sequence shorter than ``length`` takes the first rows
and columns of the learned matrices.
"""

from jaxtyping import Bool, Float
from torch import Tensor


def random_scores(table: Float[Tensor, "length length"], n: int) -> Float[Tensor, "{n} {n}"]:
    """Compute S of Random Synthesizer."""
    return table[:n, :n]


def factorised_scores(
    A: Float[Tensor, "length rank"], B: Float[Tensor, "length rank"], n: int
) -> Float[Tensor, "{n} {n}"]:
    """Compute S of Factorised Random Synthesizer."""
    return A[:n] @ B[:n].T


def dense_scores(
    X: Float[Tensor, "n d_model"],
    W_1: Float[Tensor, "hidden d_model"],
    b_1: Float[Tensor, "hidden"],
    W_2: Float[Tensor, "length hidden"],
    b_2: Float[Tensor, "length"],
) -> Float[Tensor, "n n"]:
    """Compute S of Dense Synthesizer: each token predicts its scores for all positions."""
    n = len(X)
    hidden = (X @ W_1.T + b_1).relu()  # (n, hidden)
    scores = hidden @ W_2.T + b_2  # (n, length)
    return scores[:, :n]


def attention(
    S: Float[Tensor, "n n"],
    V: Float[Tensor, "n e"],
    Q: Float[Tensor, "n d"] | None = None,
    K: Float[Tensor, "n d"] | None = None,
    *,
    real: Bool[Tensor, "n"] | None = None,
) -> Float[Tensor, "n e"]:
    """Compute Synthesizer attention.

    Args:
        S: scores.
        V: values.
        Q, K: queries and keys, for the mixture with softmax attention.
        real: positions that hold a token; the others are padding and get no weight. None: all positions.
    """
    scores = S
    if Q is not None and K is not None:
        d = Q.shape[1]
        scores = scores + Q @ K.T / d**0.5
    if real is not None:
        scores = scores.masked_fill(~real, float("-inf"))
    return scores.softmax(dim=1) @ V
