"""How much each position of a row counts for another: attention maps of a trained model.

N rows (towers count as rows), H heads, L length, R readings: a reading is a set of weights over queries, so that one
position (a one-hot) and the pooling (a mean) are read the same way.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from ..attention.base import Mixer
from ..data.task import Batch
from ..model.multihead import Multihead


def attention_map(model: nn.Module, batch: Batch, layer: int) -> Tensor:
    """What multiplies the values in a layer, (N,H,L,L): the mechanism's result for the identity in their place.

    H = 1 for a mechanism without heads. Raises NotImplementedError for one whose values do not enter linearly.
    """
    mixer = getattr(model.blocks[layer], "mixer", None)
    if isinstance(mixer, Multihead):
        q, k, v, mask = _inputs(model, batch, mixer.attention)
        eye = torch.eye(v.shape[2], dtype=v.dtype, device=v.device).expand(*v.shape[:2], -1, -1)
        with torch.no_grad():
            return mixer.attention(q, k, eye, mask)
    if not isinstance(mixer, Mixer):
        raise NotImplementedError(f"{type(model.blocks[layer]).__name__} is a whole block without values of its own")
    x, mask = _inputs(model, batch, mixer)
    with torch.no_grad():
        return mixer.attention_map(x, mask)


def jacobian(model: nn.Module, batch: Batch, layer: int, readings: Tensor) -> Tensor:
    """Frobenius norm of the derivative of each reading of a layer's output by each vector of its input, (N,1,R,L).

    readings (N,R,L). Of the mixer where there is one, else of the whole block, its residual path included.
    """
    block = model.blocks[layer]
    part = getattr(block, "mixer", block)
    x, *rest = _inputs(model, batch, part)
    x = x.detach().requires_grad_()
    with torch.enable_grad():
        out = part(x, *rest)
        out = out[0] if isinstance(out, tuple) else out  # (N,L,d)
        read = readings.to(out.dtype) @ out  # (N,R,d)
        squares = torch.stack([_squares(read[:, r], x) for r in range(read.shape[1])], 1)  # (N,R,L)
    return squares.sqrt()[:, None]


def _squares(read: Tensor, x: Tensor) -> Tensor:
    """read (N,d) of x (N,L,d) -> (N,L): squared derivatives, summed over both widths."""
    gradients = (torch.autograd.grad(read[:, c].sum(), x, retain_graph=True)[0] for c in range(read.shape[1]))
    return sum(gradient.square().sum(-1) for gradient in gradients)


def _inputs(model: nn.Module, batch: Batch, part: nn.Module) -> tuple:
    """What a part of the model is called with on a batch."""
    with _recording(part) as calls, torch.no_grad():
        model(batch.inputs, batch.mask)
    return calls[0]


@contextmanager
def _recording(part: nn.Module) -> Iterator[list[tuple]]:
    calls: list[tuple] = []
    handle = part.register_forward_pre_hook(lambda _, inputs: calls.append(inputs))
    try:
        yield calls
    finally:
        handle.remove()
