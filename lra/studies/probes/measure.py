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
    """Compute the metric, in percent, over all examples at once."""
    outputs, labels = _predict(model, batches)
    return metrics.metric_function(metric)(outputs, labels)


def scores_by_num_tokens(model: Classifier, batches: list[Batch], metric: metrics.Metric) -> dict[str, float]:
    """Compute the metric of groups of examples by their number of tokens, without padding and filler, which is token 0.

    Returns:
        ``own``: the metric over all examples. 2^i, as text: the metric over the examples of 2^i to 2^(i + 1) - 1
        tokens, counted in all towers together; an example without tokens counts as one token. A group of one class is
        left out if the metric needs both.
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


def scores_by_reach(
    model: Classifier, batches: list[Batch], metric: metrics.Metric, reaches: Iterable[int]
) -> list[float]:
    """Compute the scores with every layer confined to each reach.

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
    num_powers = (length - 1).bit_length()
    return [*(2**i for i in range(num_powers)), length]


def shares_beyond(model: Classifier, batches: Iterable[Batch], reaches: list[int], rows: int) -> list[float]:
    """Compute the share of the squared derivatives of hidden states i by inputs j with |i - j| > k, for each reach k.

    Hidden states are taken before the pooling, inputs after the embedding; both are vectors. The squared Frobenius norm
    of their Jacobian J is estimated by the mean of |Jᵀ r|² over random signs r (Hutchinson's estimator). The token of
    ``pool=cls`` is one of the positions; the vector of ``pool=class``, which is added after the embedding, is not.

    Args:
        model: the model.
        batches: examples.
        reaches: values of k.
        rows: number of random real positions i of each sequence, each with one r.
    """
    generator = torch.Generator().manual_seed(0)
    # Sums by distance; the last entry collects everything that is further away than the largest reach.
    sums = torch.zeros(max(reaches) + 2, dtype=torch.float64)
    for batch in batches:
        for x, hidden, mask in _encoder_calls(model, batch):
            num_sequences, length, _ = x.shape
            is_real = torch.ones(num_sequences, length) if mask is None else mask.float().cpu()
            positions = torch.multinomial(is_real, rows, replacement=True, generator=generator)  # (N,rows)
            for position in positions.unbind(1):
                squares = _squared_derivatives(x, hidden, position, generator)  # (N,L)
                # Add the squares to the sums of their distances.
                offset = torch.arange(length) - position[:, None]  # (N,L)
                distance = offset.abs().clamp(max=len(sums) - 1)
                sums.index_add_(0, distance.flatten(), squares.flatten())

    total = sums.sum()
    shares = []
    for reach in reaches:
        further = sums[reach + 1 :].sum()
        shares.append(float(further / total))
    return shares


def _encoder_calls(model: Classifier, batch: Batch) -> list[tuple[Tensor, Tensor, Tensor | None]]:
    """Run a model on a batch; list inputs x (N,L,d), hidden states (N,L,d) and mask (N,L) of each call of the encoder.

    x are leaves of the graph of the hidden states. Position i of the hidden states belongs to position i of x.
    """
    last_module = model.blocks[-1] if model.norm is None else model.norm
    inputs: list[Tensor] = []
    outputs: list[Tensor] = []

    def replace_by_leaf(_module, _args, out: Tensor) -> Tensor:
        inputs.append(out.detach().requires_grad_())
        return inputs[-1]

    def record_output(_module, _args, out: Tensor | tuple) -> None:
        outputs.append(out[0] if isinstance(out, tuple) else out)

    embed_hook = model.embed.register_forward_hook(replace_by_leaf)
    output_hook = last_module.register_forward_hook(record_output)
    with embed_hook, output_hook, torch.enable_grad():
        model(batch.inputs, batch.mask)

    encoder_calls = []
    masks = _masks_of_calls(batch.mask, len(inputs))
    for x, hidden, mask in zip(inputs, outputs, masks, strict=True):
        if model.pool == "class":
            # The class vector has a hidden state but no input.
            hidden = hidden[:, 1:]
        if model.pool == "cls" and mask is not None:
            # The class token is in front, and a sequence of full length loses its last token.
            mask = F.pad(mask, (1, 0), value=True)[:, : x.shape[1]]
        encoder_calls.append((x, hidden, mask))
    return encoder_calls


def _squared_derivatives(x: Tensor, hidden: Tensor, position: Tensor, generator: torch.Generator) -> Tensor:
    """Estimate the squared derivatives of hidden states by the inputs of each position, float64 (N,L) on the CPU.

    Args:
        x: inputs (N,L,d).
        hidden: hidden states (N,L,d).
        position: position (N,) of the hidden state of each sequence.
        generator: generator of the random signs.
    """
    bits = torch.randint(0, 2, (len(hidden), hidden.shape[-1]), generator=generator)
    signs = bits.to(hidden) * 2 - 1  # r (N,d)
    sequence = torch.arange(len(hidden))
    states = hidden[sequence, position.to(hidden.device)]  # (N,d)
    # The gradient of r · hidden[position] is Jᵀ r.
    projection = (states * signs).sum()
    (gradient,) = torch.autograd.grad(projection, x, retain_graph=True)
    squares = gradient.square().sum(-1)  # (N,L)
    return squares.double().cpu()


def _masks_of_calls(mask: Tensor | None, num_calls: int) -> list[Tensor | None]:
    """Split the mask (batch,towers,L) of a batch into the masks (N,L) of the calls of the encoder.

    A model with ``encode_separately`` encodes one tower after the other, other models all of them at once.
    """
    if mask is None:
        return [None] * num_calls
    if num_calls > 1:
        return list(mask.unbind(1))
    return [mask.flatten(0, 1)]
