"""Functions that torch.compile runs without tracing them."""

from collections.abc import Callable

import torch
from torch import Tensor


def untraced(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return the function, excluded from compilation in forward and backward pass while torch.compile traces.

    torch.compile would unroll a loop over tokens, and compile a size such as ceil(√L) again for every length. As a
    decorator, ``torch.compiler.disable`` would import the compiler and Triton with the module.
    """
    if torch.compiler.is_compiling():
        return torch.compiler.disable(function)
    return function
