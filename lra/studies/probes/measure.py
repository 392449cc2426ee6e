"""Scores of a model on some examples, and the distances over which its last rows depend on its inputs."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from ...data.datamodule import Batch
from ...ops import metrics
from .confine import confined


def score(model: nn.Module, some: Iterable[Batch], metric: str) -> float:
    """The metric over all of the examples at once."""
    return getattr(metrics, metric)(*_answers(model, some))


def over_filled(model: nn.Module, some: list[Batch], metric: str) -> dict[str, float]:
    """The metric over the number of tokens of a row that are neither padding nor filler, which is token 0.

    Returns:
        ``own``, the metric over all examples, and by 2^i that over the rows of 2^i to 2^(i + 1) - 1 tokens.
    """
    real = (batch.inputs != 0 if batch.mask is None else (batch.inputs != 0) & batch.mask for batch in some)
    group = torch.cat([part.flatten(1).sum(1) for part in real]).clamp(min=1).log2().long().cpu()
    outputs, labels = _answers(model, some)
    rows = {"own": group >= 0} | {str(2**i): group == i for i in group.unique().tolist()}
    return {name: getattr(metrics, metric)(outputs[where], labels[where]) for name, where in rows.items()}


@torch.no_grad()
def _answers(model: nn.Module, some: Iterable[Batch]) -> tuple[Tensor, Tensor]:
    """The outputs of all examples, and their labels."""
    pairs = [(model(batch.inputs, batch.mask).float(), batch.label) for batch in some]
    outputs, labels = (torch.cat(part).cpu() for part in zip(*pairs, strict=True))
    return outputs, labels


def over_reach(model: nn.Module, some: list[Batch], metric: str, reaches: Iterable[int]) -> list[float]:
    """The score with every layer confined to each reach. Raises ValueError if it cannot be."""
    scores = []
    for reach in reaches:
        with confined(model, reach):
            scores.append(score(model, some, metric))
    return scores


def reaches(length: int) -> list[int]:
    """1, 2, 4, ... and the length, at which nothing is cut off."""
    return [*(2**i for i in range((length - 1).bit_length()) if 2**i < length), length]


def beyond(model: nn.Module, some: Iterable[Batch], reaches: list[int], rows: int) -> list[float]:
    """Share of the squared derivatives of rows i by inputs j that has |i - j| > k, for each reach k.

    Rows are those before the pooling, inputs those behind the embedding, of which each is a vector; the Frobenius norm
    of their Jacobian is the mean over random signs r of |Jᵀ r|², here one r for each of ``rows`` random real rows of an
    example.
    """
    generator = torch.Generator().manual_seed(0)
    sums = torch.zeros(max(reaches) + 2, dtype=torch.float64)  # by distance, the last one of all that are further away
    last = model.blocks[-1] if model.norm is None else model.norm
    inputs, outputs = [], []

    def leaf(_, __, made: Tensor) -> Tensor:
        inputs.append(made.detach().requires_grad_())
        return inputs[-1]

    def keep(_, __, made: Tensor | tuple) -> None:
        outputs.append(made[0] if isinstance(made, tuple) else made)

    for batch in some:
        del inputs[:], outputs[:]
        with model.embed.register_forward_hook(leaf), last.register_forward_hook(keep), torch.enable_grad():
            model(batch.inputs, batch.mask)
        # A model whose mechanism mixes the batch encodes one tower after the other, others all of them at once.
        mask, apart = batch.mask, len(inputs) > 1
        masks = [None] * len(inputs) if mask is None else mask.unbind(1) if apart else [mask.flatten(0, 1)]
        for x, y, mask in zip(inputs, outputs, masks, strict=True):  # (N,L,d)
            real = torch.ones(x.shape[:2]) if mask is None else mask.float().cpu()
            at = torch.multinomial(real, rows, replacement=True, generator=generator)  # (N,rows)
            for i in at.unbind(1):
                signs = torch.randint(0, 2, (len(y), y.shape[-1]), generator=generator).to(y) * 2 - 1
                read = (y[torch.arange(len(y)), i.to(y.device)] * signs).sum()
                (slope,) = torch.autograd.grad(read, x, retain_graph=True)
                distance = (torch.arange(x.shape[1]) - i[:, None]).abs().clamp(max=len(sums) - 1)
                sums.index_add_(0, distance.flatten(), slope.square().sum(-1).double().cpu().flatten())
    whole = sums.sum()
    return [float(sums[k + 1 :].sum() / whole) for k in reaches]
