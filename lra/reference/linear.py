"""Linear attention (Katharopoulos et al., ICML 2020) and Performer (Choromanski et al., ICLR 2021).

One head of one sequence of n tokens: queries Q (n, d), keys K (n, d), values V (n, e). Both are kernel attention

    out_i = Σ_j φ(q_i)ᵀφ(k_j) v_j / Σ_j φ(q_i)ᵀφ(k_j)              (Katharopoulos et al., equation 4)
          = φ(q_i)ᵀ Σ_j φ(k_j) v_jᵀ / φ(q_i)ᵀ Σ_j φ(k_j)           (equation 5)

The second form needs O(n F e) time for F features, because the sums over j are the same for every query.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor


def kernel_attention(
    phi_Q: Float[Tensor, "n F"],
    phi_K: Float[Tensor, "n F"],
    V: Float[Tensor, "n e"],
) -> Float[Tensor, "n e"]:
    """Compute equation 5 from features."""
    S = phi_K.T @ V  # (F, e)
    z = phi_K.sum(dim=0)  # (F,)
    numerator = phi_Q @ S  # (n, e)
    denominator = phi_Q @ z  # (n,)
    return numerator / denominator[:, None]


def causal_kernel_attention(
    phi_Q: Float[Tensor, "n F"], phi_K: Float[Tensor, "n F"], V: Float[Tensor, "n e"]
) -> Float[Tensor, "n e"]:
    """Compute equation 5 with sums over j <= i, as a recurrence over the tokens (sections 3.3 and 3.4)."""
    num_features = phi_K.shape[1]
    S = torch.zeros(num_features, V.shape[1], dtype=V.dtype)
    z = torch.zeros(num_features, dtype=V.dtype)
    out = []
    for phi_q, phi_k, v in zip(phi_Q, phi_K, V, strict=True):
        S = S + torch.outer(phi_k, v)
        z = z + phi_k
        numerator = phi_q @ S  # (e,)
        denominator = phi_q @ z
        out.append(numerator / denominator)
    return torch.stack(out)


def elu_features(X: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
    """Compute φ(x) = elu(x) + 1 (Katharopoulos et al., equation 7)."""
    return F.elu(X) + 1


def linear_attention(
    Q: Float[Tensor, "n d"], K: Float[Tensor, "n d"], V: Float[Tensor, "n e"], *, causal: bool = False
) -> Float[Tensor, "n e"]:
    """Compute linear attention."""
    phi_Q = elu_features(Q)
    phi_K = elu_features(K)
    if causal:
        return causal_kernel_attention(phi_Q, phi_K, V)
    return kernel_attention(phi_Q, phi_K, V)


def unnormalised_linear_attention(
    Q: Float[Tensor, "n d"], K: Float[Tensor, "n d"], V: Float[Tensor, "n e"], length: int
) -> Float[Tensor, "n e"]:
    """Compute linear attention of Nystromformer's code: no denominator, φ(q) and φ(k) divided by length^¼ each."""
    phi_Q = elu_features(Q)
    phi_K = elu_features(K)
    S = phi_K.T @ V  # (d, e)
    return phi_Q @ S / length**0.5


def positive_features(
    X: Float[Tensor, "n d"], W: Float[Tensor, "F d"], shift: Float[Tensor, "..."], eps: float
) -> Float[Tensor, "n F"]:
    """Compute Performer's φ(x) = exp(w·x - ‖x‖²/2 - shift) + eps, without 1/√F, for each row w of W (lemma 1).

    Args:
        X: queries or keys, divided by d^¼.
        W: random rows, Gaussian and orthogonal in blocks of d (section 2.4).
        shift: for numerical stability; with eps = 0 it cancels in equation 5.
        eps: as in the released code; 0 in the paper.
    """
    squared_norms = X.square().sum(dim=1, keepdim=True)  # (n, 1)
    exponents = X @ W.T - shift - squared_norms / 2
    return exponents.exp() + eps


def performer_attention(
    Q: Float[Tensor, "n d"],
    K: Float[Tensor, "n d"],
    V: Float[Tensor, "n e"],
    W: Float[Tensor, "F d"],
    *,
    eps: float = 1e-4,
    scalings: int = 1,
) -> Float[Tensor, "n e"]:
    """Compute FAVOR+ attention. Without shift and eps, φ(q)·φ(k) / F is an unbiased estimate of exp(q·k / √d).

    Q and K are divided ``scalings`` times by d^¼: twice in Nystromformer's code, which then estimates exp(q·k / d).
    """
    scale = Q.shape[1] ** (-0.25 * scalings)
    Q = Q * scale
    K = K * scale
    # The largest w·x of each query, and of all keys together.
    shift_Q = (Q @ W.T).amax(dim=1, keepdim=True)  # (n, 1)
    shift_K = (K @ W.T).max()
    phi_Q = positive_features(Q, W, shift_Q, eps)  # (n, F)
    phi_K = positive_features(K, W, shift_K, eps)  # (n, F)
    return kernel_attention(phi_Q, phi_K, V)


def generalised_attention(
    Q: Float[Tensor, "n d"], K: Float[Tensor, "n d"], V: Float[Tensor, "n e"], W: Float[Tensor, "F d"]
) -> Float[Tensor, "n e"]:
    """Compute attention with the features relu(w·x) + 0.001; the official LRA code has x for w·x by default."""
    scale = Q.shape[1] ** -0.25
    phi_Q = (Q * scale @ W.T).relu() + 0.001  # (n, F)
    phi_K = (K * scale @ W.T).relu() + 0.001
    return kernel_attention(phi_Q, phi_K, V)
