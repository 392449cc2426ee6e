"""Attention maps of a trained model: the weight of each position of a row for another.

N rows (towers count as rows), H heads, L length, R readings: a reading is a set of weights over queries, so that one
position (a one-hot) and the pooling (a mean) are read the same way.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from ..attention.base import Attention, Mixer
from ..data.datamodule import Batch

WIDTH = 128  # columns of the identity at a time; no mechanism has to take wider values


def attention_map(model: nn.Module, batch: Batch, layer: int) -> Tensor | None:
    """The matrix that multiplies the values of a layer, (N,H,L,L): the result of the mechanism for the identity.

    H = 1 for a mechanism without heads. None for one whose values do not enter linearly, or that has none of its own.
    """
    block = model.blocks[layer]
    mixer = getattr(block, "mixer", block)
    attention = getattr(mixer, "attention", None)
    if isinstance(attention, Attention):
        N, L = _inputs(model, batch, block)[0].shape[:2]
        towers = []  # one call, or one for each tower
        for (q, k, v, mask), options in _calls(model, batch, attention):
            eye = torch.eye(v.shape[2], dtype=v.dtype, device=v.device).expand(*v.shape[:2], -1, -1)
            with torch.no_grad():
                parts = [attention(q, k, values, mask, **options) for values in eye.split(WIDTH, -1)]
            towers.append(_whole(torch.cat(parts, -1), N)[..., :L, :L])
        return torch.stack(towers, 1).flatten(0, 1)
    if not isinstance(mixer, Mixer):
        return None
    x, mask = _inputs(model, batch, mixer)
    with torch.no_grad():
        return mixer.attention_map(x, mask)


def _whole(found: Tensor, rows: int) -> Tensor:
    """Maps (N B,H,c,c) of consecutive chunks of the rows, as blocks on the diagonal of (N,H,Bc,Bc); N = ``rows``."""
    chunks = found.unflatten(0, (rows, -1)).transpose(1, 2)  # (N,H,B,c,c)
    B = chunks.shape[2]
    here = torch.eye(B, dtype=chunks.dtype, device=chunks.device)[:, None, :, None]  # (B,1,B,1)
    return (chunks[..., None, :] * here).flatten(4, 5).flatten(2, 3) if B > 1 else chunks[:, :, 0]


def jacobian(model: nn.Module, batch: Batch, layer: int, readings: Tensor) -> Tensor:
    """Frobenius norm of the derivative of each reading of a layer's output by each vector of its input, (N,1,R,L).

    readings (N,R,L). Of the mixer if there is one, else of the whole block, its residual path included.
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
    """The arguments of a part of the model on a batch."""
    return _call(model, batch, part)[0]


def _call(model: nn.Module, batch: Batch, part: nn.Module) -> tuple[tuple, dict]:
    return _calls(model, batch, part)[0]


def _calls(model: nn.Module, batch: Batch, part: nn.Module) -> list[tuple[tuple, dict]]:
    with _recording(part) as calls, torch.no_grad():
        model(batch.inputs, batch.mask)
    return calls


@contextmanager
def _recording(part: nn.Module) -> Iterator[list[tuple[tuple, dict]]]:
    calls: list[tuple[tuple, dict]] = []
    handle = part.register_forward_pre_hook(lambda _, *inputs: calls.append(inputs), with_kwargs=True)
    try:
        yield calls
    finally:
        handle.remove()
