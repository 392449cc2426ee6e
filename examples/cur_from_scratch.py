"""CUR attention from scratch, compared with exact attention: python examples/cur_from_scratch.py [length]

CUR attention (Francois et al. 2025) selects queries I and keys J and never builds the (length, length) matrix:
softmax(q kᵀ) v ≈ C U⁺ (R v) with C = softmax(q k_Jᵀ), U = softmax(q_I k_Jᵀ) and R = softmax(q_I kᵀ).
"""

import sys

import matplotlib.pyplot as plt
import torch
from torch import Tensor

HEAD_DIM = 32


def weights(q: Tensor, k: Tensor) -> Tensor:
    """Compute the attention weights softmax(q kᵀ / √d): (i,d), (j,d) -> (i,j)."""
    return (q @ k.T / q.shape[1] ** 0.5).softmax(dim=-1)


def pinv(U: Tensor, steps: int = 6) -> Tensor:
    """Approximate the pseudo-inverse of U by the cubic iteration of Nystromformer, from Uᵀ / ‖U‖₁."""
    I = torch.eye(len(U))
    Z = U.T / U.abs().sum(dim=0).max()
    for _ in range(steps):
        UZ = U @ Z
        Z = Z @ (13 * I - UZ @ (15 * I - UZ @ (7 * I - UZ))) / 4
    return Z


def select(x: Tensor, count: int, score: str) -> Tensor:
    """Select positions at equal distances (``step``), or the vectors with the largest absolute sums (``abs``)."""
    if score == "step":
        return torch.arange(count) * len(x) // count
    return x.abs().sum(dim=-1).topk(count).indices


def cur_attention(q: Tensor, k: Tensor, v: Tensor, count: int, score: str) -> Tensor:
    """Approximate softmax attention in O(length · count) time and memory."""
    I = select(q, count, score)
    J = select(k, count, score)
    C = weights(q, k[J])  # (length,count)
    U = weights(q[I], k[J])  # (count,count)
    R = weights(q[I], k)  # (count,length)
    RV = R @ v  # (count,d)
    out = C @ (pinv(U) @ RV)
    # The selected queries have their exact outputs already.
    out[I] = RV
    return out


def main(length: str = "512") -> dict[str, list[float]]:
    torch.manual_seed(0)
    # A redundant sequence: every token is one of a few vectors, plus noise.
    centres = torch.randn(16, HEAD_DIM)
    x = centres[torch.randint(16, (int(length),))] + 0.3 * torch.randn(int(length), HEAD_DIM)
    q = x + 0.3 * torch.randn_like(x)
    v = x @ torch.randn(HEAD_DIM, HEAD_DIM) / HEAD_DIM**0.5
    exact = weights(q, x) @ v

    counts = [count for count in (4, 8, 16, 32, 64, 128) if count <= int(length)]
    errors = {}
    for score in ("step", "abs"):
        outputs = [cur_attention(q, x, v, count, score) for count in counts]
        errors[score] = [((out - exact).norm() / exact.norm()).item() for out in outputs]
        plt.loglog(counts, errors[score], "o-", base=2, label=f"CUR, score={score}")
        for count, error in zip(counts, errors[score], strict=True):
            print(f"score={score}, {count} queries and keys: relative error {error:.3f}")

    # The mean of all values is what a model without attention computes.
    control = ((v.mean(dim=0) - exact).norm() / exact.norm()).item()
    plt.axhline(control, color="gray", linestyle="--", label="mean of the values")
    plt.gca().set(xlabel="selected queries and keys", ylabel="relative error", title=f"length {length}")
    plt.legend()
    plt.savefig("cur_from_scratch.png", dpi=120)
    return errors


if __name__ == "__main__":
    main(*sys.argv[1:])
