"""``chord.loss_and_gradient`` of one matrix as one compiled loop, about ten times as fast on one core.

The columns of W_1 ... W_M - x do not depend on each other, nor do those of the products for the gradient. A strip of
WIDTH columns passes through all factors in both directions, and its (M + 1) n WIDTH numbers stay in the cache.
"""

import numpy as np
from numba import njit

WIDTH = 64


@njit(nogil=True, fastmath={"reassoc", "contract"}, cache=True)
def loss_and_gradient(w, x, links):
    """Compute |x - W_1 ... W_M|² / 2 and its gradient (M,n,K).

    Args:
        w: (M,n,K), float64.
        x: (n,n), float64.
        links: (K,), ``chord.offsets(n)``.
    """
    M, n, K = w.shape
    right = np.empty((M + 1, n, WIDTH))  # columns of W_m ... W_M, of the identity at M
    left, back, row = np.empty((n, WIDTH)), np.empty((n, WIDTH)), np.empty(WIDTH)
    loss, gradient = 0.0, np.zeros(w.shape)
    for first in range(0, n, WIDTH):
        width = min(WIDTH, n - first)
        right[M] = 0.0
        for c in range(width):
            right[M, first + c, c] = 1.0
        for m in range(M - 1, -1, -1):
            for i in range(n):
                row[:] = 0.0
                for k in range(K):
                    j, number = (i + links[k]) % n, w[m, i, k]
                    for c in range(WIDTH):
                        row[c] += number * right[m + 1, j, c]
                right[m, i] = row
        left[:, width:] = 0.0
        for i in range(n):
            for c in range(width):
                left[i, c] = right[0, i, c] - x[i, first + c]
                loss += left[i, c] ** 2
        for m in range(M):  # left: columns of (W_1 ... W_(m-1))ᵀ (W_1 ... W_M - x)
            back[:] = 0.0
            for i in range(n):
                for k in range(K):
                    j, number, slope = (i + links[k]) % n, w[m, i, k], 0.0
                    for c in range(WIDTH):
                        slope += left[i, c] * right[m + 1, j, c]
                        back[j, c] += number * left[i, c]
                    gradient[m, i, k] += slope
            left, back = back, left
    return loss / 2, gradient
