"""From a model and an example to what is drawn: the row, the chosen positions, the weights."""

from math import isqrt

import torch
from omegaconf import DictConfig, ListConfig
from torch import Tensor, nn

from ..data.datamodule import Batch, TaskData
from . import maps
from .draw import View, markers


def views(config: DictConfig, choices: DictConfig, model: nn.Module, data: TaskData, batch: Batch) -> list[View]:
    """One for each tower of the example that ``batch`` holds; a class token in front of the row is left out.

    ``config`` is what was asked for (split, example, layer, head, at), ``choices`` what the run was made of. Raises
    ValueError for a head or a position that there is not.
    """
    stored, inside = data.splits[config.split].gather(torch.tensor([config.example]), batch.inputs.shape[2], data.limit)
    image = choices.task.display == "pixels"
    first = int(choices.model.pool == "cls")  # position of the first token of the row
    width = min(stored.shape[2] + first, choices.task.length)
    real = inside[0] if batch.mask is None else batch.mask[0]  # (T,L)
    rows, chosen = [], []
    for tower, row in enumerate(stored[0]):
        kept = min(len(row) if image else max(int(inside[0, tower].sum()), 1), width - first)
        rows.append(row[:kept].numpy())
        side = isqrt(len(row)) if image else None
        if config.at is not None:
            chosen.append(positions(config.at, side, real[tower, :kept]))
        elif choices.source._target_.endswith(".Pathfinder"):
            chosen.append(markers(row[: side * side].reshape(side, side).numpy()))
        else:
            chosen.append([None])
    readings = torch.stack([reading(at, mask, first, width) for at, mask in zip(chosen, real, strict=True)])  # (T,R,L)
    whole, weights, what = _weights(model, batch, config.layer, config.head, readings)
    title = _title(config, choices, model, data, batch)
    made = []
    for tower, (row, at) in enumerate(zip(rows, chosen, strict=True)):
        keys = slice(first, first + len(row))
        square = None if whole is None else whole[tower, keys, keys].numpy()
        made.append(View(f"{title}; {what}", row, at, weights[tower, :, keys].numpy(), square, data.source.alphabet))
    return made


def positions(at: int | ListConfig, side: int | None, real: Tensor) -> list[int]:
    """Positions that ``at`` names: numbers, or [row,column] of an image of this side. real (L,): no padding."""
    listed = list(at) if isinstance(at, ListConfig | list) else [at]
    if side and len(listed) == 2 and all(isinstance(place, int) for place in listed):
        listed = [listed]
    found = []
    for place in listed:
        if side and isinstance(place, ListConfig | list) and len(place) == 2:
            row, column = place
            place = whole_number("a row of at", row, side) * side + whole_number("a column of at", column, side)
        found.append(whole_number("at", place, len(real)))
        if not real[found[-1]]:
            raise ValueError(f"at: position {place} is masked as padding, choose another")
    return found


def whole_number(name: str, value: object, end: int) -> int:
    """Raises ValueError for what is not a number from 0 to end - 1."""
    if not isinstance(value, int) or not 0 <= value < end:
        raise ValueError(f"{name} must be a whole number from 0 to {end - 1}, not {value}")
    return value


def reading(at: list[int | None], mask: Tensor, first: int, width: int) -> Tensor:
    """Weights over queries (R, width): a one-hot for a position; None is the class token or the mean of real ones."""
    made = torch.zeros(len(at), width)
    for line, place in zip(made, at, strict=True):
        if place is not None:
            line[first + place] = 1
        elif first:
            line[0] = 1
        else:
            line[: len(mask)] = mask / mask.sum()
    return made


def _weights(model: nn.Module, batch: Batch, layer: int, head: int | None, readings: Tensor):
    """(the whole map (T,L,L) or None, weights (T,R,L), what they are)"""
    found = maps.attention_map(model, batch, layer)  # (T,H,L,L)
    if found is None:
        if head is not None:
            raise ValueError("this mechanism has no map of its values and so no head to choose: leave head out")
        return None, maps.jacobian(model, batch, layer, readings)[:, 0], f"layer {layer}, norm of the derivative"
    heads = found.shape[1]
    if head is None:
        whole, what = found.mean(1), f", mean of {heads} heads" if heads > 1 else ""
    else:
        whole, what = found[:, whole_number("head", head, heads)], f", head {head}"
    return whole, readings.to(whole.dtype) @ whole, f"layer {layer}{what}"


def _title(config: DictConfig, choices: DictConfig, model: nn.Module, data: TaskData, batch: Batch) -> str:
    with torch.no_grad():
        outputs = model(batch.inputs, batch.mask)[0]
    real = batch.label.is_floating_point()
    answers = [batch.label[0].item(), outputs[0].item() if real else int(outputs.argmax())]
    told = [f"{a:.3f}" if real else data.source.classes[a] if data.source.classes else str(a) for a in answers]
    return f"{choices.task.name}, {choices.label}, {config.split} {config.example}: label {told[0]}, answer {told[1]}"
