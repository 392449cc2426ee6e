"""The distance of a mechanism from the exact one, layer by layer, and the singular values of the exact map.

N examples, H heads, L length, E value size. All models are in evaluation mode, and no gradients are computed.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from ...data.datamodule import Batch
from ...maps.maps import matrix
from ...model.classifier import Classifier
from ..qkv import Intercepted, calls, mechanisms


@dataclass(frozen=True)
class Layer:
    """The distance of a mechanism's output O' (N,H,L,E) from the exact O over the real tokens of one layer.

    Both mechanisms get the queries, keys and values of the exact model. For the two ``stack_`` values each one is in
    its own model, so that errors of earlier layers add up.

    Args:
        path: path of the mechanism in the model.
        mean_abs, stack_mean_abs: mean |O - O'|, the measure of CURformer's ViT study.
        relative, stack_relative: ||O - O'||_F / ||O||_F.
        spectrum: singular values of the exact map, averaged over examples and heads; zero beyond the number of real
            tokens.
    """

    path: str
    mean_abs: float
    relative: float
    stack_mean_abs: float
    stack_relative: float
    spectrum: list[float]


def sums(exact: Tensor, other: Tensor, real: Tensor) -> Tensor:
    """Sum |O - O'|, |O - O'|², |O|² and the number of entries (4) of two outputs; ``real`` as in ``Intercepted``."""
    exact, difference = exact.double() * real, (exact.double() - other.double()) * real
    parts = difference.abs().sum(), difference.square().sum(), exact.square().sum(), real.expand_as(exact).sum()
    return torch.stack([part.cpu().double() for part in parts])


@torch.no_grad()
def layers(exact: Classifier, other: Classifier, batches: Iterable[Batch], spectrum: int = 0) -> list[Layer]:
    """Compare the mechanisms at the same places of two models; singular values are those of ``spectrum`` examples."""
    places = [path for path in mechanisms(exact) if path in mechanisms(other)]
    alone, stacked = ({path: torch.zeros(4, dtype=torch.float64) for path in places} for _ in range(2))
    spectra = {path: [] for path in places}
    encode_separately = exact.encode_separately or other.encode_separately
    for batch in batches:
        first, second = (calls(model, batch, encode_separately) for model in (exact, other))
        for path in places:
            swapped = mechanisms(other)[path]
            for ours, theirs in zip(first[path], second[path], strict=True):
                alone[path] += sums(ours.out, swapped(**ours.arguments), ours.real)
                stacked[path] += sums(ours.out, theirs.out, ours.real)
                spectra[path] += singular_values(mechanisms(exact)[path], ours, spectrum - len(spectra[path]))
    gaps = lambda total: ((total[0] / total[3]).item(), (total[1] / total[2]).sqrt().item())
    return [Layer(path, *gaps(alone[path]), *gaps(stacked[path]), average(spectra[path])) for path in places]


def singular_values(module: nn.Module, call: Intercepted, most: int) -> list[Tensor]:
    """Compute the singular values (L,) of the maps of a call's first examples, averaged over heads."""
    rows = []
    for i in range(min(most, len(call.out))):
        arguments = {k: v[i : i + 1] if isinstance(v, Tensor) else v for k, v in call.arguments.items()}
        real = Intercepted(arguments, call.out[i : i + 1]).real
        a = matrix(module, arguments) * real  # (1,H,L,L), zero in padded rows and columns
        rows.append(torch.linalg.svdvals(a.float()).mean((0, 1)).cpu())
    return rows


def average(rows: list[Tensor]) -> list[float]:
    """Average rows (L,), whose L may differ from batch to batch, to four significant digits."""
    mean = pad_sequence(rows, batch_first=True).mean(0).tolist() if rows else []
    return [float(f"{value:.4g}") for value in mean]
