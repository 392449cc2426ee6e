"""Scores of a model on examples, and the distances over which its last hidden states depend on its inputs."""

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor

from ...data.datamodule import Batch
from ...model.classifier import Classifier
from ...ops import metrics
from .local_window import confined


def score(model: Classifier, batches: Iterable[Batch], metric: metrics.Metric) -> float:
    """Compute the metric over all examples at once."""
    outputs, labels = _predict(model, batches)
    return metrics.metric_function(metric)(outputs, labels)


def over_filled(model: Classifier, batches: list[Batch], metric: metrics.Metric) -> dict[str, float]:
    """Compute the metric over the number of tokens that are neither padding nor filler, which is token 0.

    Returns:
        The metric over all examples by the name ``own``, then by 2^i over the examples of 2^i to 2^(i + 1) - 1 tokens,
        in all towers together. An example without tokens counts as one of a single token. A group of one class is left
        out if the metric needs both.
    """
    # The number of tokens of each example, then its power of two.
    counts = []
    for batch in batches:
        is_token = batch.inputs != 0
        if batch.mask is not None:
            is_token = is_token & batch.mask
        counts.append(is_token.flatten(1).sum(1))
    exponents = torch.cat(counts).clamp(min=1).log2().long().cpu()

    outputs, labels = _predict(model, batches)
    # The metric of each group; the first group is everything.
    compute = metrics.metric_function(metric)
    scores = {"own": compute(outputs, labels)}
    for exponent in exponents.unique().tolist():
        in_group = exponents == exponent
        try:
            scores[str(2**exponent)] = compute(outputs[in_group], labels[in_group])
        except ValueError:
            # The group lacks one of the two classes that the metric needs.
            continue
    return scores


@torch.no_grad()
def _predict(model: Classifier, batches: Iterable[Batch]) -> tuple[Tensor, Tensor]:
    """Return the outputs and the labels of all examples, on the CPU."""
    outputs = []
    labels = []
    for batch in batches:
        outputs.append(model(batch.inputs, batch.mask).float())
        labels.append(batch.label)
    return torch.cat(outputs).cpu(), torch.cat(labels).cpu()


def over_reach(model: Classifier, batches: list[Batch], metric: metrics.Metric, reaches: Iterable[int]) -> list[float]:
    """Compute the score with every layer confined to each reach.

    Raises:
        ValueError: a layer cannot be confined.
    """
    scores = []
    for reach in reaches:
        with confined(model, reach):
            scores.append(score(model, batches, metric))
    return scores


def reaches(length: int) -> list[int]:
    """List the powers of two below the length, and the length, at which nothing is cut off."""
    powers = [2**i for i in range((length - 1).bit_length())]
    return [*(power for power in powers if power < length), length]


def beyond(model: Classifier, batches: Iterable[Batch], reaches: list[int], rows: int) -> list[float]:
    """Compute the share of the squared derivatives of hidden states i by inputs j with |i - j| > k, for each reach k.

    Hidden states are taken before the pooling, inputs behind the embedding; both are vectors. The squared Frobenius
    norm of their Jacobian J is the mean of |Jᵀ r|² over random signs r (Hutchinson's estimator), with one r for each of
    ``rows`` random real positions of an example. The token of ``pool=cls`` is one of the positions; the vector of
    ``pool=class``, which is behind the embedding, is not.
    """
    generator = torch.Generator().manual_seed(0)
    # Sums by distance; the last entry collects everything that is further away than the largest reach.
    sums = torch.zeros(max(reaches) + 2, dtype=torch.float64)
    last_module = model.blocks[-1] if model.norm is None else model.norm
    inputs: list[Tensor] = []
    outputs: list[Tensor] = []

    def replace_by_leaf(_module, _args, out: Tensor) -> Tensor:
        inputs.append(out.detach().requires_grad_())
        return inputs[-1]

    def record_output(_module, _args, out: Tensor | tuple) -> None:
        outputs.append(out[0] if isinstance(out, tuple) else out)

    for batch in batches:
        inputs.clear()
        outputs.clear()
        embed_hook = model.embed.register_forward_hook(replace_by_leaf)
        output_hook = last_module.register_forward_hook(record_output)
        with embed_hook, output_hook, torch.enable_grad():
            model(batch.inputs, batch.mask)
        masks = _masks_of_calls(batch.mask, len(inputs))
        for x, hidden, mask in zip(inputs, outputs, masks, strict=True):
            # x and hidden: (N,L,d). Positions are drawn from the real tokens of each example.
            num_examples, length, _ = x.shape
            if model.pool == "class":
                # The class vector has a hidden state but no input.
                hidden = hidden[:, 1:]
            if model.pool == "cls" and mask is not None:
                # The class token is in front, and a sequence of full length loses its last token.
                mask = F.pad(mask, (1, 0), value=True)[:, :length]
            is_real = torch.ones(num_examples, length) if mask is None else mask.float().cpu()
            positions = torch.multinomial(is_real, rows, replacement=True, generator=generator)  # (N,rows)
            for position in positions.unbind(1):
                # The gradient of r · hidden[position] is Jᵀ r.
                bits = torch.randint(0, 2, (len(hidden), hidden.shape[-1]), generator=generator)
                signs = bits.to(hidden) * 2 - 1
                example = torch.arange(num_examples)
                states = hidden[example, position.to(hidden.device)]  # (N,d)
                projection = (states * signs).sum()
                (gradient,) = torch.autograd.grad(projection, x, retain_graph=True)
                squares = gradient.square().sum(-1)  # (N,L)

                # Add the squares to the sums of their distances.
                offset = torch.arange(length) - position[:, None]  # (N,L)
                distance = offset.abs().clamp(max=len(sums) - 1)
                squares = squares.double().cpu()
                sums.index_add_(0, distance.flatten(), squares.flatten())

    # The share beyond each reach.
    total = sums.sum()
    shares = []
    for reach in reaches:
        further = sums[reach + 1 :].sum()
        shares.append(float(further / total))
    return shares


def _masks_of_calls(mask: Tensor | None, num_calls: int) -> list[Tensor | None]:
    """Split the mask (batch,towers,L) of a batch over the calls of the encoder.

    A model with ``encode_separately`` encodes one tower after the other, other models all of them at once.
    """
    if mask is None:
        return [None] * num_calls
    if num_calls > 1:
        return list(mask.unbind(1))
    return [mask.flatten(0, 1)]
