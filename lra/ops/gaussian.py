"""The Gaussian kernel of SOFT and Skyformer."""

from jaxtyping import Float
from torch import Tensor


def gaussian_kernel(
    x: Float[Tensor, "*heads i D"],
    y: Float[Tensor, "*heads j D"],
) -> Float[Tensor, "*heads i j"]:
    """Compute exp(-||x_i - y_j||² / 2) for every pair.

    The square is expanded, ||x||² + ||y||² - 2 x·y, so that the cost is one matrix product.
    """
    products = x @ y.mT  # (*heads,i,j)
    x_norms = x.square().sum(-1)  # (*heads,i)
    y_norms = y.square().sum(-1)  # (*heads,j)
    x_term = x_norms[..., :, None] / 2
    y_term = y_norms[..., None, :] / 2
    return (products - x_term - y_term).exp()
