"""Confinement of a trained model: the same weights, each layer limited to tokens at most k positions away."""

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...attention.base import Attention
from ...attention.conv import Conv
from ...attention.s4d import S4D
from ...attention.sdpa import SDPA
from ...attention.softmax import Softmax
from ...maps.maps import matrix
from ...model.classifier import Classifier
from ...ops.blocks import MIN_SCORE
from ..qkv import mechanisms

Method = Literal["mask", "map", "kernel"]


class LayerConfinement(NamedTuple):
    """How layers of one class are confined.

    Args:
        method: confinement method, see ``confinement``.
        attribute: name of the function of the module that is replaced.
        replacement: gets the module, its original function and the reach before the arguments of the call.
    """

    method: Method
    attribute: str
    replacement: Callable


def confinement(model: Classifier) -> Method | None:
    """Return the confinement method of all layers of a model.

    Returns:
        ``mask``: exact attention masks keys beyond the reach, so the softmax is over the others. ``map``: the matrix
        that multiplies the values is set to zero beyond the reach and not normalised again, since weights of CUR may be
        negative. ``kernel``: the taps of a convolution are set to zero beyond the reach; ``Conv`` divides by the sum of
        the remaining magnitudes. None if a layer has no method, or layers have different methods.
    """
    methods: set[Method | None] = set()
    for block in model.blocks:
        mixer = _mixer(block)
        methods.add(None if mixer is None else _confinement_of(mixer).method)
    return methods.pop() if len(methods) == 1 else None


@contextlib.contextmanager
def confined(model: Classifier, reach: int) -> Iterator[None]:
    """Inside the ``with`` block, confine every layer: its output i sees tokens j with |i - j| <= ``reach`` only.

    Parts of a block outside the mechanism, such as MEGA's moving average, keep their reach.

    Raises:
        ValueError: ``confinement`` finds no method.
    """
    if confinement(model) is None:
        raise ValueError("a layer of this model has no mask, map or kernel to confine")
    with contextlib.ExitStack() as stack:
        for mixer in filter(None, map(_mixer, model.blocks)):
            layer = _confinement_of(mixer)
            # The instance attribute hides the method of the class until it is deleted.
            original = getattr(mixer, layer.attribute)
            setattr(mixer, layer.attribute, partial(layer.replacement, mixer, original, reach))
            stack.callback(delattr, mixer, layer.attribute)
        yield


def _mixer(block: nn.Module) -> nn.Module | None:
    """Return the mechanism of a block: its only Attention, else a Conv or S4D, else None."""
    attentions = list(mechanisms(block).values())
    if len(attentions) == 1:
        return attentions[0]
    mixer = getattr(block, "mixer", None)
    return mixer if isinstance(mixer, Conv | S4D) else None


def _confinement_of(mixer: nn.Module) -> LayerConfinement:
    """Return how a mixer is confined."""
    return next(layer for kind, layer in _CONFINEMENTS.items() if isinstance(mixer, kind))


def _band(length: int, reach: int, device) -> Tensor:
    """Mark the pairs of positions with |i - j| <= reach: bool (L,L)."""
    positions = torch.arange(length, device=device)
    return (positions[:, None] - positions).abs() <= reach


# Each function below replaces one method of a mixer. Its arguments: the mixer, its original method (which some do not
# need), the reach, and then the arguments of the method.
def _confine_sdpa(mixer: SDPA, forward: Callable, reach: int, q, k, v, mask=None) -> Tensor:
    visible = _band(q.shape[2], reach, q.device)
    if mixer.causal:
        visible = visible.tril()
    if mask is not None:
        # A padded query may have no other visible key, so every query sees itself.
        itself = torch.eye(len(visible), dtype=torch.bool, device=q.device)
        visible = (visible & mask[:, None, None]) | itself
    return F.scaled_dot_product_attention(q, k, v, visible)


def _confine_softmax(mixer: Softmax, forward: Callable, reach: int, q, k, v, mask=None, bias=None) -> Tensor:
    band = _band(q.shape[2], reach, q.device)
    band_bias = torch.zeros(band.shape, device=q.device).masked_fill(~band, MIN_SCORE)

    # ``Softmax`` passes all positions as ``rows`` and ``cols``, so this is the bias of the whole matrix.
    def confined_bias(rows: Tensor, cols: Tensor) -> Tensor:
        return band_bias + (0 if bias is None else bias(rows, cols))

    return forward(q, k, v, mask, confined_bias)


def _confine_map(mixer: Attention, forward: Callable, reach: int, q, k, v, mask=None, **options) -> Tensor:
    weights = matrix(forward, {"q": q, "k": k, "v": v, "mask": mask} | options)
    band = _band(v.shape[2], reach, v.device)
    return (weights * band) @ v.to(weights.dtype)


def _confine_s4d(mixer: S4D, kernel: Callable, reach: int, length: int) -> Tensor:
    values = kernel(length)
    width = values.shape[-1]
    lag = torch.arange(width, device=values.device)
    # A bidirectional kernel is circular: its second half holds negative lags, the last entry lag -1.
    if not mixer.causal:
        lag = torch.minimum(lag, width - lag)
    return values * (lag <= reach)


def _confine_conv(mixer: Conv, mix: Callable, reach: int, v: Tensor, mask: Tensor | None) -> Tensor:
    filters = mixer.filters.data
    width = filters.shape[1]
    centre = width - 1 if mixer.causal else width // 2
    lag = (torch.arange(width, device=v.device) - centre).abs()
    # ``mix`` reads the filters of the module.
    mixer.filters.data = filters * (lag <= reach)
    try:
        return mix(v, mask)
    finally:
        mixer.filters.data = filters


# The first class that matches counts.
_CONFINEMENTS = {
    SDPA: LayerConfinement("mask", "forward", _confine_sdpa),
    Softmax: LayerConfinement("mask", "forward", _confine_softmax),
    Conv: LayerConfinement("kernel", "_mix", _confine_conv),
    S4D: LayerConfinement("kernel", "kernel", _confine_s4d),
    Attention: LayerConfinement("map", "forward", _confine_map),
}
