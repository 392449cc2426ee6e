"""A square matrix as a product of sparse factors W_1 W_2 ... W_M on Chord links, and as a truncated SVD.

Khalitov et al., Neural Networks 2022, section 5.1: the entries are free parameters, fitted to one matrix. The error of
the best fit is a lower bound for any network that computes such factors. Row i of every factor has entries in the
K = 1 + floor(log2 n) columns i, i + 1, i + 2, i + 4, ... (mod n); M = ceil(log2 n).

Shapes: n rows, M factors, K entries in each row of a factor; arrays are float64.
"""

import math

import numpy as np
import torch
from numba import njit
from scipy.optimize import minimize
from torch import Tensor

# Number of columns that pass through the compiled loop together.
WIDTH = 64


def offsets(n: int) -> list[int]:
    """List the K offsets from a row to its columns: 0, 1, 2, 4, ..., the largest at most n / 2."""
    return [0, *(2**j for j in range(n.bit_length() - 1))]


def num_factors(n: int) -> int:
    """Return the number of factors M."""
    return math.ceil(math.log2(n))


def init_factors(n: int, *, seed: int, init: str = "code") -> Tensor:
    """Draw initial factors (M,n,K).

    Args:
        n: number of rows.
        seed: seed of the draw.
        init: ``code``: 1/K + 0.01 u, where u are the linked entries of uniform noise (M,n,n) whose rows are divided by
            their sums. ``paper``: uniform in [1/K, 1/K + 0.01].
    """
    M = num_factors(n)
    K = len(offsets(n))
    random = np.random.default_rng(seed)
    if init == "paper":
        return torch.from_numpy(random.uniform(1 / K, 1 / K + 0.01, (M, n, K)))

    # Normalise whole rows, then take the linked columns.
    noise = random.uniform(size=(M, n, n))
    noise /= noise.sum(-1, keepdims=True)
    columns = (np.arange(n)[:, None] + offsets(n)) % n  # (n,K)
    linked = np.take_along_axis(noise, columns[None], -1)
    return torch.from_numpy(1 / K + 0.01 * linked)


def product(w: Tensor) -> Tensor:
    """Multiply the factors from the right, W_1 (W_2 (... W_M)): (M,n,K) -> (n,n)."""
    n = w.shape[1]
    links = offsets(n)
    out = torch.eye(n, dtype=w.dtype)
    # Row i of W S is the sum over k of w[i,k] times row i + offset_k (mod n) of S.
    for factor in w.flip(0):
        out = sum(factor[:, k, None] * out.roll(-offset, 0) for k, offset in enumerate(links))
    return out


def loss_and_gradient(w: np.ndarray, x: np.ndarray) -> tuple[float, np.ndarray]:
    """Compute |x - W_1 ... W_M|² / 2 and its gradient (M,n,K) by autograd: w (M,n,K), x (n,n)."""
    parameters = torch.from_numpy(w).requires_grad_()
    difference = torch.from_numpy(x) - product(parameters)
    loss = difference.square().sum() / 2
    (gradient,) = torch.autograd.grad(loss, parameters)
    return loss.item(), gradient.numpy()


@njit(nogil=True, fastmath={"reassoc", "contract"}, cache=True)
def compiled(w, x, links):
    """Compute ``loss_and_gradient`` by one compiled loop, over ten times as fast on one core.

    The columns of W_1 ... W_M - x do not depend on each other, nor do the columns of the products for the gradient. A
    strip of WIDTH columns passes through all factors in both directions, and its (M + 1) n WIDTH numbers stay in the
    cache.

    Args:
        w: factors (M,n,K).
        x: target (n,n).
        links: ``offsets(n)`` (K,).
    """
    M, n, K = w.shape
    # m counts from 0, so w[m] is W_(m+1). right[m]: columns of W_(m+1) ... W_M; the identity at M.
    right = np.empty((M + 1, n, WIDTH))
    # Columns of (W_1 ... W_m)ᵀ (W_1 ... W_M - x) for the current m, and for the next one.
    left = np.empty((n, WIDTH))
    back = np.empty((n, WIDTH))
    row = np.empty(WIDTH)
    loss = 0.0
    gradient = np.zeros(w.shape)
    for first in range(0, n, WIDTH):
        width = min(WIDTH, n - first)

        # Forward: multiply the strip of the identity by W_M, ..., W_1.
        right[M] = 0.0
        for c in range(width):
            right[M, first + c, c] = 1.0
        for m in range(M - 1, -1, -1):
            for i in range(n):
                row[:] = 0.0
                for k in range(K):
                    j = (i + links[k]) % n
                    number = w[m, i, k]
                    for c in range(WIDTH):
                        row[c] += number * right[m + 1, j, c]
                right[m, i] = row

        # The difference from x, and the loss. Columns beyond the width of the last strip stay zero.
        left[:, width:] = 0.0
        for i in range(n):
            for c in range(width):
                left[i, c] = right[0, i, c] - x[i, first + c]
                loss += left[i, c] ** 2

        # Backward: the gradient of w[m], and the product of its transpose with ``left``.
        for m in range(M):
            back[:] = 0.0
            for i in range(n):
                for k in range(K):
                    j = (i + links[k]) % n
                    number = w[m, i, k]
                    slope = 0.0
                    for c in range(WIDTH):
                        slope += left[i, c] * right[m + 1, j, c]
                        back[j, c] += number * left[i, c]
                    gradient[m, i, k] += slope
            left, back = back, left
    return loss / 2, gradient


def fit(
    x: np.ndarray,
    *,
    iterations: int,
    seed: int = 1,
    init: str = "code",
    impl: str = "compiled",
) -> tuple[np.ndarray, np.ndarray, str]:
    """Fit factors by SciPy's L-BFGS.

    The published program runs at most 1e5 iterations of BFGS, whose approximation of the inverse Hessian is dense.

    Args:
        x: the matrix (n,n).
        iterations: maximum number of iterations; there are at most ten times as many evaluations of the loss.
        seed: seed of the initial factors.
        init: see ``init_factors``.
        impl: implementation of loss and gradient, ``compiled`` loops or ``torch``.

    Returns:
        The factors (M,n,K), |x - W_1 ... W_M| after each iteration, and SciPy's reason for stopping.
    """
    target = np.ascontiguousarray(x, np.float64)
    n = len(x)
    initial = init_factors(n, seed=seed, init=init).numpy()
    links = np.array(offsets(n))

    def objective(flat: np.ndarray) -> tuple[float, np.ndarray]:
        w = flat.reshape(initial.shape)
        if impl == "compiled":
            loss, gradient = compiled(w, target, links)
        else:
            loss, gradient = loss_and_gradient(w, target)
        return loss, gradient.ravel()

    errors = []

    # SciPy passes the argument by this name. Its loss is |x - W_1 ... W_M|² / 2.
    def record_error(intermediate_result) -> None:
        errors.append(math.sqrt(2 * intermediate_result.fun))

    solution = minimize(
        objective,
        initial.ravel(),
        jac=True,
        method="L-BFGS-B",
        callback=record_error,
        options={"maxiter": iterations, "maxfun": 10 * iterations, "maxcor": 20, "ftol": 1e-12, "gtol": 1e-10},
    )
    return solution.x.reshape(initial.shape), np.array(errors), str(solution.message)


def num_parameters(n: int) -> int:
    """Return the number of entries of all factors."""
    return num_factors(n) * n * len(offsets(n))


def ranks(n: int) -> dict[str, int]:
    """Return the ranks at which the SVD is truncated, at most n.

    Returns:
        ``paper``: ceil(M² / 2). ``equal``: the largest rank r whose 2 n r + r numbers are no more than the entries of
        the factors.
    """
    paper = math.ceil(num_factors(n) ** 2 / 2)
    equal = num_parameters(n) // (2 * n + 1)
    return {"paper": min(n, paper), "equal": min(n, equal)}


def truncated_svd(x: np.ndarray, rank: int) -> np.ndarray:
    """Compute the nearest matrix of at most the given rank: the truncated SVD."""
    u, s, vt = np.linalg.svd(x)
    return (u[:, :rank] * s[:rank]) @ vt[:rank]
