"""Operands and options of the launches: selected queries and keys, sizes, tiles. ``run`` launches a kernel.

The letters are explained in ``launch``.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from . import tiles


def run(kernel, grid, *args, warps: int, stages: int, **constants) -> None:
    """Launch a kernel."""
    kernel[grid](*args, num_warps=warps, num_stages=stages, **constants)


class Selected(NamedTuple):
    """Selected queries and keys: landmarks (N,H,M,D), or all of them (N,H,L,D) with the selected positions (N,H,M).

    row_real and col_real, (N,H,M) or (N,H,L), mark the real ones of q and k by bytes; None: all are real.
    """

    q: Tensor
    k: Tensor
    rows: Tensor | None
    cols: Tensor | None
    row_real: Tensor | None
    col_real: Tensor | None

    def strides(self) -> tuple[int, ...]:
        return (*self.q.stride()[:3], *self.k.stride()[:3])

    def real_strides(self) -> tuple[int, ...]:
        return (*mask_strides(self.row_real), *mask_strides(self.col_real))

    def gathered(self) -> list[Tensor | None]:
        """Gather selected queries and keys (G,M,D) in float32, and the bytes of real ones (G,M), None for all."""
        tensors = [
            gather(self.q, self.rows).float(),
            gather(self.k, self.cols).float(),
            gather(self.row_real, self.rows),
            gather(self.col_real, self.cols),
        ]
        return [None if x is None else x.flatten(0, 1) for x in tensors]


def sizes(q: Tensor, v: Tensor, m: int) -> dict[str, int]:
    """True sizes of a head, and the same rounded up to their sizes on chip."""
    D = q.shape[-1]
    E = v.shape[-1]
    return {
        "M": m,
        "D": D,
        "E": E,
        "BM": tiles.padded(m),
        "BD": tiles.padded(D),
        "BE": tiles.padded(E),
    }


def tile_options(tile: tiles.Tile, q: Tensor, split: bool) -> dict:
    """Options of a streaming launch."""
    return {
        "BN": tile.block,
        "warps": tile.warps,
        "stages": tile.stages,
        "PRECISION": tile.precision,
        "SPLIT": split and q.dtype != torch.float32,
    }


def inverse_options(steps: int, dtype: torch.dtype) -> dict:
    """Options of the inverse."""
    return {
        "STEPS": steps,
        "INNER": tiles.inner_precision(dtype),
        "SYMMETRIC": tiles.symmetric(dtype, steps),
    }


def tile_args(size: dict[str, int], q: Tensor, arch: int) -> tuple[int, int, torch.dtype, int]:
    """The arguments of the rules in ``tiles``, such as ``streaming``: selected rows, width, dtype, architecture."""
    width = max(size["BD"], size["BE"])
    return size["BM"], width, q.dtype, arch


def num_selected(selected: Selected) -> int:
    landmarks = selected.q if selected.rows is None else selected.rows
    return landmarks.shape[2]


def mask_strides(real: Tensor | None) -> tuple[int, int]:
    return (0, 0) if real is None else real.stride()[:2]


def gather(x: Tensor | None, index: Tensor | None) -> Tensor | None:
    """Gather x (N,H,L,...) at positions (N,H,M); all of x if index is None."""
    if x is None or index is None:
        return x
    if x.dim() == 4:
        index = index[..., None]
    return x.take_along_dim(index, 2)
