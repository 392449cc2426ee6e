"""A square matrix as a product of sparse factors W_1 W_2 ... W_M on Chord links, and as a truncated SVD.

Khalitov et al., Neural Networks 2022, section 5.1: the numbers are free parameters, fitted to one matrix, so the error
is a bound for any network that computes them. Every factor has the K = 1 + floor(log2 n) entries i, i + 1, i + 2,
i + 4, ... (mod n) of row i; M = ceil(log2 n).

Shapes: ... batch, n rows, M factors, K links; numbers are float64.
"""

import math

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

from . import compiled


def offsets(n: int) -> list[int]:
    """The offsets of links: 0, 1, 2, 4, ..., the largest at most n / 2."""
    return [0, *(2**j for j in range(n.bit_length() - 1))]


def factors(n: int) -> int:
    """The number of factors M."""
    return math.ceil(math.log2(n))


def start(n: int, *, seed: int, init: str = "code") -> Tensor:
    """Draw initial factors (M,n,K).

    Args:
        n: rows of the matrix.
        seed: seed of the draw.
        init: ``code``, 1/K plus 0.01 of uniform noise whose rows of n sum to one; ``paper``, uniform in
            [1/K, 1/K + 0.01].
    """
    M, K, random = factors(n), len(offsets(n)), np.random.default_rng(seed)
    if init == "paper":
        return torch.from_numpy(random.uniform(1 / K, 1 / K + 0.01, (M, n, K)))
    noise = random.uniform(size=(M, n, n))
    columns = (np.arange(n)[:, None] + offsets(n)) % n
    noise /= noise.sum(-1, keepdims=True)
    return torch.from_numpy(1 / K + 0.01 * np.take_along_axis(noise, columns[None], -1))


def apply(w: Tensor, s: Tensor) -> Tensor:
    """Multiply one factor by a matrix: sum_k w[i,k] s[i + offset_k], w (...,n,K), s (...,n,c) -> (...,n,c)."""
    n = s.shape[-2]
    around = torch.cat([s, s], -2)  # offsets are below n, so that indices need no modulus
    out = w[..., :1] * s
    for k, o in enumerate(offsets(n)[1:], start=1):
        out.addcmul_(w[..., k, None], around[..., o : o + n, :])
    return out


def product(w: Tensor) -> Tensor:
    """The product W_1 ... W_M, (...,M,n,K) -> (...,n,n)."""
    n = w.shape[-2]
    out = torch.eye(n, dtype=w.dtype, device=w.device).expand(*w.shape[:-3], n, n)
    for m in reversed(range(w.shape[-3])):
        out = apply(w[..., m, :, :], out)
    return out


def loss_and_gradient(w: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Compute |x - W_1 ... W_M|² / 2 of each matrix and its gradient, w (...,M,n,K), x (...,n,n) -> (...), (...,M,n,K).

    With L and R the products left and right of W_m, its gradient is Lᵀ (W_1 ... W_M - x) Rᵀ at its own entries. Lᵀ is
    updated from factor to factor, and all R are stored.
    """
    n, M = w.shape[-2], w.shape[-3]
    right = [torch.eye(n, dtype=w.dtype, device=w.device).expand(*w.shape[:-3], n, n)]
    for m in reversed(range(M)):
        right.append(apply(w[..., m, :, :], right[-1]))
    left = right.pop() - x  # Lᵀ (W_1 ... W_M - x), L = 1
    loss, gradient = left.square().sum((-2, -1)) / 2, torch.empty_like(w)
    for m in range(M):
        r = right.pop()
        around, back = torch.cat([r, r], -2), torch.zeros(*left.shape[:-2], 2 * n, n, dtype=w.dtype, device=w.device)
        for k, o in enumerate(offsets(n)):
            gradient[..., m, :, k] = (left * around[..., o : o + n, :]).sum(-1)
            back[..., o : o + n, :].addcmul_(w[..., m, :, k, None], left)
        left = back[..., :n, :] + back[..., n:, :]
    return loss, gradient


def fit(
    x: np.ndarray, *, iterations: int, seed: int = 1, init: str = "code", impl: str = "compiled"
) -> tuple[np.ndarray, np.ndarray, str]:
    """Fit factors by SciPy's L-BFGS.

    The published program uses BFGS with its dense matrix of second derivatives, at most 1e5 iterations.

    Args:
        x: (n,n).
        iterations: largest number of iterations.
        seed: seed of the start.
        init: kind of start, ``code`` or ``paper``.
        impl: implementation of loss and gradient, ``compiled`` loops or ``torch``.

    Returns:
        The factors (M,n,K), |x - W_1 ... W_M| after each iteration, and SciPy's reason for stopping.
    """
    target = np.ascontiguousarray(x, np.float64)
    first, links = start(len(x), seed=seed, init=init), np.array(offsets(len(x)))

    def objective(flat: np.ndarray) -> tuple[float, np.ndarray]:
        if impl == "compiled":
            loss, gradient = compiled.loss_and_gradient(flat.reshape(first.shape), target, links)
            return loss, gradient.ravel()
        loss, gradient = loss_and_gradient(torch.from_numpy(flat).view_as(first), torch.from_numpy(target))
        return loss.item(), gradient.numpy().ravel()

    errors = []
    # SciPy passes it by this name.
    keep = lambda intermediate_result: errors.append(math.sqrt(2 * intermediate_result.fun))
    options = {"maxiter": iterations, "maxfun": 10 * iterations, "maxcor": 20, "ftol": 1e-12, "gtol": 1e-10}
    solution = minimize(objective, first.numpy().ravel(), jac=True, method="L-BFGS-B", callback=keep, options=options)
    return solution.x.reshape(first.shape), np.array(errors), str(solution.message)


def numbers(n: int) -> int:
    """The number of entries of the factors."""
    return factors(n) * n * len(offsets(n))


def ranks(n: int) -> dict[str, int]:
    """The ranks of the SVD: ``paper``, ceil(M² / 2); ``equal``, the largest r with 2 n r + r numbers at most."""
    return {"paper": min(n, math.ceil(factors(n) ** 2 / 2)), "equal": min(n, numbers(n) // (2 * n + 1))}


def truncated(x: np.ndarray, rank: int) -> np.ndarray:
    """The nearest matrix of a rank, by the SVD."""
    u, s, vt = np.linalg.svd(x)
    return (u[:, :rank] * s[:rank]) @ vt[:rank]
