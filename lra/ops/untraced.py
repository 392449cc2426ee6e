"""Functions that torch.compile runs without tracing them."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

# The functions of this package's operators by name, such as "lra::boundary_states".
FUNCTIONS: dict[str, Callable[..., Any]] = {}


def untraced(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return the function; while torch.compile traces, a wrapper that stays uncompiled in forward and backward pass.

    torch.compile would unroll a loop over tokens, and compile a size such as ceil(√L) again for every length. As a
    decorator, ``torch.compiler.disable`` would import the compiler and Triton with the module.
    """
    if torch.compiler.is_compiling():
        return torch.compiler.disable(function)
    return function


def operator(name: str) -> Callable[[Callable[..., Any]], Any]:
    """Make a function an operator of PyTorch that changes none of its arguments, ``torch.ops.lra.<name>``.

    torch.compile does not trace an operator, so it does not unroll a loop over chunks, which it would compile again for
    each number of chunks. The operator still needs ``register_fake`` and, for gradients, ``register_autograd``.

    A ``TorchDispatchMode`` sees an operator as one call. A mode that counts or checks every tensor finds the function
    in ``FUNCTIONS`` and calls it instead.
    """

    def register(function: Callable[..., Any]) -> Any:
        qualified_name = f"lra::{name}"
        FUNCTIONS[qualified_name] = function
        return torch.library.custom_op(qualified_name, function, mutates_args=())

    return register
