"""The contents of figures from a model and an example: its inputs, the positions of the readings, their weights."""

from collections.abc import Sequence
from math import isqrt
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from ..config.experiment import Experiment
from ..config.options import Options
from ..config.schema import Root, Trust
from ..data.datamodule import Batch, TaskData
from ..model.classifier import Classifier
from ..model.pooling import FIRST_VECTOR, Pool
from ..options import Whole
from ..varlen import last_real
from . import maps
from .draw import View, markers


class MapsOptions(Options):
    """Options of ``python -m lra.maps``, explained in conf/maps.yaml."""

    conf: ClassVar[str] = "maps"

    run: Path | None
    split: str
    example: Whole
    layer: Whole | None
    head: Whole | None
    at: Whole | list[Whole | list[Whole]] | None
    out: Path | None
    trust: Trust
    data: Root


def views(
    options: MapsOptions, layer: int, experiment: Experiment, model: Classifier, data: TaskData, batch: Batch
) -> list[View]:
    """Make a view for each tower of an example; a class token in front of the sequence is left out.

    Args:
        options: options of the command, of which split, example, head and at are read.
        layer: index of the block.
        experiment: experiment of the run.
        model: model of the run.
        data: data of the run.
        batch: batch of the one example.

    Raises:
        ValueError: the head or a position does not exist, or a position is padding.
    """
    # The stored inputs of the example, for the figure.
    index = torch.tensor([options.example])
    split = data.splits[options.split]
    stored, stored_mask = split.gather(index, batch.inputs.shape[2], data.limit)
    is_image = experiment.task.display == "pixels"
    pool = experiment.model.pool

    # Position of the first token, 1 behind a class token; length of the model's sequence.
    first = 1 if pool in FIRST_VECTOR else 0
    longest = experiment.task.length
    if pool == "class":
        longest += 1
    width = min(stored.shape[2] + first, longest)
    # Without a mask every token counts as real.
    masks = torch.ones_like(stored_mask[0]) if batch.mask is None else batch.mask[0]  # (T,L)

    # The inputs of each tower without padding (an image as a whole), its positions, and the weights over queries.
    sequences = []
    positions_by_tower = []
    tower_readings = []
    for tower, sequence in enumerate(stored[0]):
        side = isqrt(len(sequence)) if is_image else None
        num_tokens = len(sequence) if is_image else int(stored_mask[0, tower].sum())
        num_tokens = max(num_tokens, 1)
        length = min(num_tokens, width - first)
        at: Sequence[int | None] = [None]
        if options.at is not None:
            at = positions(options.at, side, masks[tower, :length])
        elif experiment.source.path.endswith(".Pathfinder"):
            # Pathfinder asks whether two marked points are connected, so these two are the default queries.
            size = isqrt(len(sequence))
            image = sequence[: size * size].reshape(size, size)
            at = markers(image.numpy())
        # An image is drawn as a whole, even if a class token has pushed out its last pixel.
        sequences.append(sequence.numpy() if is_image else sequence[:length].numpy())
        positions_by_tower.append(at)
        tower_readings.append(reading_weights(at, masks[tower], pool, width))

    readings = torch.stack(tower_readings)  # (T,R,L)
    full_maps, weights, description = _weights(model, batch, layer, options.head, readings)
    example_title = _title(options, experiment, model, data, batch)
    tower_views = []
    for tower, sequence in enumerate(sequences):
        # Leave out the column of the class token.
        keys = slice(first, first + len(sequence))
        full_map = None
        if full_maps is not None:
            full_map = full_maps[tower, keys, keys].numpy()
        view = View(
            title=f"{example_title}; {description}",
            inputs=sequence,
            at=positions_by_tower[tower],
            weights=weights[tower, :, keys].numpy(),
            full_map=full_map,
            alphabet=data.source.alphabet,
            # Flattening keeps every token, so the figure shows their mean.
            pooling="mean over tokens" if pool == "flatten" else "pooling",
        )
        tower_views.append(view)
    return tower_views


def positions(at: int | list, side: int | None, real: Tensor) -> list[int]:
    """List the positions that ``at`` names.

    Args:
        at: a number or numbers; of an image also [row,column] or a list of these.
        side: side of the image, None for other data.
        real: whether a position is a real token (L,).

    Raises:
        ValueError: there is no position, a position does not exist or is padding.
    """
    entries: list = list(at) if isinstance(at, list) else [at]
    if not entries:
        raise ValueError("at=[] names no position; name one, as in at=0, or leave out at")
    # Two numbers of an image are the row and the column of one pixel.
    are_numbers = all(isinstance(entry, int) for entry in entries)
    if side and len(entries) == 2 and are_numbers:
        entries = [entries]
    indices = []
    for entry in entries:
        is_pixel = isinstance(entry, list) and len(entry) == 2
        if side and is_pixel:
            # Row and column become a position of the sequence.
            row, column = entry
            row = whole_number("a row of at", row, side)
            column = whole_number("a column of at", column, side)
            entry = row * side + column
        index = whole_number("at", entry, len(real))
        if not real[index]:
            raise ValueError(f"at: position {index} is masked as padding, choose another")
        indices.append(index)
    return indices


def whole_number(name: str, value: object, end: int) -> int:
    """Check that a value is a whole number from 0 to ``end`` - 1, and return it.

    Raises:
        ValueError: it is another value.
    """
    if not isinstance(value, int) or not 0 <= value < end:
        raise ValueError(f"{name} must be a whole number from 0 to {end - 1}, not {value}")
    return value


def reading_weights(at: Sequence[int | None], mask: Tensor, pool: Pool, width: int) -> Tensor:
    """Make the weights over queries of each reading (R, width).

    Args:
        at: position of each reading, for a one-hot; None for the pooling: a one-hot of the class token or of the last
            real token, else the mean of real tokens.
        mask: real tokens (L,).
        pool: pooling of the model, see ``lra.model.classifier.Classifier``.
        width: length of the sequence with its class token.
    """
    weights = torch.zeros(len(at), width)
    num_tokens = len(mask)
    first = 1 if pool in FIRST_VECTOR else 0
    for row, position in zip(weights, at, strict=True):
        if position is not None:
            row[first + position] = 1
        elif first:
            # The class token.
            row[0] = 1
        elif pool == "last":
            row[last_real(mask[None])] = 1
        else:
            row[:num_tokens] = mask / mask.sum()
    return weights


def _weights(
    model: Classifier, batch: Batch, layer: int, head: int | None, readings: Tensor
) -> tuple[Tensor | None, Tensor, str]:
    """Compute the full map (T,L,L) or None, the weights of the readings (T,R,L), and a description.

    Raises:
        ValueError: the head does not exist.
    """
    head_maps = maps.attention_map(model, batch, layer)  # (T,H,L,L)
    if head_maps is None:
        if head is not None:
            raise ValueError("this mechanism has no map of its values and so no head to choose: leave head out")
        norms = maps.jacobian(model, batch, layer, readings)
        return None, norms, f"layer {layer}, norm of the derivative"

    # One head, or the mean of all of them.
    num_heads = head_maps.shape[1]
    description = f"layer {layer}"
    if head is not None:
        whole_number("head", head, num_heads)
        full_map = head_maps[:, head]
        description += f", head {head}"
    else:
        full_map = head_maps.mean(1)
        if num_heads > 1:
            description += f", mean of {num_heads} heads"
    weights = readings.to(full_map.dtype) @ full_map
    return full_map, weights, description


def _title(options: MapsOptions, experiment: Experiment, model: Classifier, data: TaskData, batch: Batch) -> str:
    """Describe an example: its task, mechanism, split and index, its label and the model's prediction."""
    with torch.no_grad():
        outputs = model(batch.inputs, batch.mask)[0]
    label = batch.label[0].item()
    classes = data.source.classes
    # A regression has numbers, a classification class names or, without names, indices.
    if batch.label.is_floating_point():
        prediction = outputs[0].item()
        label_text = f"{label:.3f}"
        prediction_text = f"{prediction:.3f}"
    else:
        prediction = int(outputs.argmax())
        label_text = classes[int(label)] if classes else str(label)
        prediction_text = classes[prediction] if classes else str(prediction)
    example = f"{experiment.task.name}, {experiment.label}, {options.split} {options.example}"
    return f"{example}: label {label_text}, prediction {prediction_text}"
