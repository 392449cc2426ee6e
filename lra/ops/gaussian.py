"""The Gaussian kernel of SOFT and Skyformer."""

from torch import Tensor


def gaussian_kernel(x: Tensor, y: Tensor) -> Tensor:
    """Compute exp(-||x_i - y_j||² / 2) for every pair: (...,i,D), (...,j,D) -> (...,i,j).

    The square is expanded, ||x||² + ||y||² - 2 x·y, so that the cost is one matrix product.
    """
    products = x @ y.mT
    x_norms = x.square().sum(-1)[..., :, None]
    y_norms = y.square().sum(-1)[..., None, :]
    return (products - x_norms / 2 - y_norms / 2).exp()
