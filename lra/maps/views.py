"""The contents of figures from a model and an example: the row, the chosen positions, the weights."""

from math import isqrt
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor, nn

from ..config.experiment import Experiment
from ..config.options import Options
from ..config.sections import Root, Trust
from ..data.datamodule import Batch, TaskData
from ..options import Whole
from . import maps
from .draw import View, markers


class MapsOptions(Options):
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


def views(options: MapsOptions, experiment: Experiment, model: nn.Module, data: TaskData, batch: Batch) -> list[View]:
    """Make a view for each tower of an example; a class token in front of the row is left out.

    Args:
        options: options of the command: split, example, layer, head, at.
        experiment: experiment of the run.
        model: model of the run.
        data: data of the run.
        batch: batch of the one example.

    Raises:
        ValueError: the head or a position does not exist.
    """
    index = torch.tensor([options.example])
    stored, real_tokens = data.splits[options.split].gather(index, batch.inputs.shape[2], data.limit)
    image = experiment.task.display == "pixels"
    first = int(experiment.model.pool in ("cls", "class"))  # position of the first token of the row
    width = min(stored.shape[2] + first, experiment.task.length + (experiment.model.pool == "class"))
    real = real_tokens[0] if batch.mask is None else batch.mask[0]  # (T,L)
    rows, chosen = [], []
    for tower, row in enumerate(stored[0]):
        length = min(len(row) if image else max(int(real_tokens[0, tower].sum()), 1), width - first)
        rows.append(row[:length].numpy())
        side = isqrt(len(row)) if image else None
        if options.at is not None:
            chosen.append(positions(options.at, side, real[tower, :length]))
        elif experiment.source.path.endswith(".Pathfinder"):
            chosen.append(markers(row[: side * side].reshape(side, side).numpy()))
        else:
            chosen.append([None])
    readings = torch.stack([reading(at, mask, first, width) for at, mask in zip(chosen, real, strict=True)])  # (T,R,L)
    whole, weights, description = _weights(model, batch, options.layer, options.head, readings)
    title = f"{_title(options, experiment, model, data, batch)}; {description}"
    drawn = []
    for tower, (row, at) in enumerate(zip(rows, chosen, strict=True)):
        keys = slice(first, first + len(row))
        square = None if whole is None else whole[tower, keys, keys].numpy()
        drawn.append(View(title, row, at, weights[tower, :, keys].numpy(), square, data.source.alphabet))
    return drawn


def positions(at: int | list, side: int | None, real: Tensor) -> list[int]:
    """List the positions that ``at`` names.

    Args:
        at: a number or numbers, or [row,column] of an image.
        side: side of the image, None for other data.
        real: whether a position is a real token (L,).

    Raises:
        ValueError: a position does not exist or is padding.
    """
    listed = list(at) if isinstance(at, list) else [at]
    if side and len(listed) == 2 and all(isinstance(place, int) for place in listed):
        listed = [listed]
    chosen = []
    for place in listed:
        if side and isinstance(place, list) and len(place) == 2:
            row, column = place
            place = whole_number("a row of at", row, side) * side + whole_number("a column of at", column, side)
        chosen.append(whole_number("at", place, len(real)))
        if not real[chosen[-1]]:
            raise ValueError(f"at: position {place} is masked as padding, choose another")
    return chosen


def whole_number(name: str, value: object, end: int) -> int:
    """Check that a value is a whole number from 0 to ``end`` - 1, and return it. Raises ValueError."""
    if not isinstance(value, int) or not 0 <= value < end:
        raise ValueError(f"{name} must be a whole number from 0 to {end - 1}, not {value}")
    return value


def reading(at: list[int | None], mask: Tensor, first: int, width: int) -> Tensor:
    """Make the weights over queries of each reading (R, width).

    Args:
        at: position of each reading, for a one-hot; None for the class token or the mean of real tokens.
        mask: real tokens (L,).
        first: position of the first token of the row, 1 behind a class token.
        width: width of the row with its class token.
    """
    weights = torch.zeros(len(at), width)
    for line, place in zip(weights, at, strict=True):
        if place is not None:
            line[first + place] = 1
        elif first:
            line[0] = 1
        else:
            line[: len(mask)] = mask / mask.sum()
    return weights


def _weights(model: nn.Module, batch: Batch, layer: int, head: int | None, readings: Tensor):
    """Compute the whole map (T,L,L) or None, the weights of the readings (T,R,L), and a description."""
    maps_of_heads = maps.attention_map(model, batch, layer)  # (T,H,L,L)
    if maps_of_heads is None:
        if head is not None:
            raise ValueError("this mechanism has no map of its values and so no head to choose: leave head out")
        return None, maps.jacobian(model, batch, layer, readings), f"layer {layer}, norm of the derivative"
    heads = maps_of_heads.shape[1]
    if head is None:
        whole, description = maps_of_heads.mean(1), f", mean of {heads} heads" if heads > 1 else ""
    else:
        whole, description = maps_of_heads[:, whole_number("head", head, heads)], f", head {head}"
    return whole, readings.to(whole.dtype) @ whole, f"layer {layer}{description}"


def _title(options: MapsOptions, experiment: Experiment, model: nn.Module, data: TaskData, batch: Batch) -> str:
    with torch.no_grad():
        outputs = model(batch.inputs, batch.mask)[0]
    real = batch.label.is_floating_point()
    answers = [batch.label[0].item(), outputs[0].item() if real else int(outputs.argmax())]
    texts = [f"{a:.3f}" if real else data.source.classes[a] if data.source.classes else str(a) for a in answers]
    example = f"{experiment.task.name}, {experiment.label}, {options.split} {options.example}"
    return f"{example}: label {texts[0]}, answer {texts[1]}"
