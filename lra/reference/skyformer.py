"""Skyformer attention (Chen, Zeng, Ji and Yang, NeurIPS 2021, section 4).

One head of one sequence of n tokens: queries Q (n, d), keys K (n, d), values V (n, e).

    S = m landmarks: drawn queries, then drawn keys                                          (1)
    M = κ(S, S) + ridge I,   κ(x, y) = exp(-‖x - y‖² / (2 √d))                               (2)
    M⁻¹ = R^-½ (R^-½ M R^-½)⁻¹ R^-½,   R = diag(row sums of M)                               (3)
    out = κ(Q, S) M⁻¹ κ(S, K) V                                                              (4)

Numbers refer to this list. κ(Q, K) is a block of the positive definite matrix κ([Q; K], [Q; K]); (4) takes the same
block of that matrix's Nyström approximation. The paper draws the landmarks from all 2 n queries and keys, the released
code half from each. The scaling in (3) helps the iterative inverse of the paper; this file inverts exactly. The weights
of a query do not sum to one.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor


def kernel(X: Float[Tensor, "i d"], Y: Float[Tensor, "j d"]) -> Float[Tensor, "i j"]:
    """Compute κ, by ‖x - y‖² = ‖x‖² - 2 x·y + ‖y‖²."""
    d = X.shape[1]
    norms_X = X.square().sum(dim=1)[:, None]  # (i, 1)
    norms_Y = Y.square().sum(dim=1)  # (j,)
    squared_distances = norms_X - 2 * X @ Y.T + norms_Y  # (i, j)
    return torch.exp(-squared_distances / (2 * d**0.5))


def attention(
    Q: Float[Tensor, "n d"],
    K: Float[Tensor, "n d"],
    V: Float[Tensor, "n e"],
    query_index: Int[Tensor, "half"],
    key_index: Int[Tensor, "half"],
    *,
    ridge: float = 0.1,
) -> Float[Tensor, "n e"]:
    """Compute Skyformer attention.

    Args:
        Q, K, V: queries, keys and values.
        query_index, key_index: positions of the m/2 drawn queries and of the m/2 drawn keys, uniform and with
            replacement; the same in all heads.
        ridge: added to the diagonal of M, as in the released code. Without it M is singular if a token is drawn twice.
    """
    # Steps 1 and 2.
    S = torch.cat([Q[query_index], K[key_index]])  # (m, d)
    M = kernel(S, S) + ridge * torch.eye(len(S), dtype=S.dtype)

    # Step 3.
    scaling = M.sum(dim=1).rsqrt().diag()  # R^-½
    inverse = scaling @ torch.linalg.inv(scaling @ M @ scaling) @ scaling

    # Step 4.
    return kernel(Q, S) @ inverse @ kernel(S, K) @ V
