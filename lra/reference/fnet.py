"""FNet, Fourier transforms instead of attention (Lee-Thorp et al., NAACL 2022, section 3).

One sequence of n token vectors X (n, d).

    out = Re(F_seq(F_hidden(X)))                                                             (equation 3)

F is the discrete Fourier transform, X_k = Σ_j x_j exp(-2πi j k / n) (equation 1), over the n tokens (F_seq) and over
the d features (F_hidden). This layer has no parameters. Here the transforms are matrices, O(n² d + n d²) time.
"""

import math

import torch
from jaxtyping import Complex, Float
from torch import Tensor


def dft_matrix(n: int) -> Complex[Tensor, "{n} {n}"]:
    """Write the transform of n numbers as a matrix with the entries exp(-2πi j k / n)."""
    index = torch.arange(n, dtype=torch.float64)
    angles = -2 * math.pi * torch.outer(index, index) / n
    return torch.polar(torch.ones_like(angles), angles)


def mix(X: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
    """Compute equation 3 in float64."""
    n, d = X.shape
    spectrum = dft_matrix(n) @ X.to(torch.complex128) @ dft_matrix(d)
    return spectrum.real
