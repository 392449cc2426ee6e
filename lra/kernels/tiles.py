"""How each launch is cut: rows at a time, warps, pipeline stages, parts along the sequence. No tuning at run time."""

from functools import cache
from typing import NamedTuple

import torch

LARGEST = 128  # kept rows, key size, value size
PRECISION = "tf32x3"  # of products of float32 on tensor cores: three of them keep about its accuracy


class Tile(NamedTuple):
    block: int  # rows of the sequence at a time
    warps: int
    stages: int


def padded(size: int) -> int:
    """The power of two from 16 on that a dimension is padded to on chip."""
    return max(16, 1 << (size - 1).bit_length())


def streaming(m: int, width: int, dtype: torch.dtype) -> Tile:
    """rv and out: m kept rows and the larger of key and value size, both padded."""
    wide = dtype == torch.float32
    if m * width >= 8192:
        return Tile(32 if wide else 64, 8, 2)
    return Tile(64, 4, 2) if wide else Tile(128 if m <= 64 else 64, 4, 3)


def streaming_backward(m: int, width: int, dtype: torch.dtype) -> Tile:
    wide = dtype == torch.float32
    if m * width >= 8192:
        return Tile(16 if wide else 32, 8, 1 if wide else 2)
    return Tile(32 if wide else 64, 8 if wide else 4, 2)


def passes(first: str, second: str, size: dict[str, int], dtype: torch.dtype) -> list[dict[str, bool]]:
    """What each launch of a streaming backward kernel finds: both of its gradients, one where registers are short."""
    large = size["BM"] * max(size["BD"], size["BE"]) >= (4096 if dtype == torch.float32 else 8192)
    return [{first: True, second: False}, {first: False, second: True}] if large else [{first: True, second: True}]


def cubic(m: int) -> Tile | None:
    """The inner matrix on chip; None where it does not fit and library products stand in."""
    return Tile(0, 4, 1) if m <= 64 else None


def inner_precision(dtype: torch.dtype) -> str:
    """Of the cubic iteration, which magnifies rounding: the cheaper 16 bits are enough beside bfloat16's 8 only."""
    return "bf16x3" if dtype == torch.bfloat16 else PRECISION


def chunk(heads: int, length: int, block: int, device: torch.device, fill: int = 4) -> int:
    """Rows of the sequence for one program: ``fill`` programs for each multiprocessor, but no fewer than 4 blocks."""
    parts = -(-fill * multiprocessors(device) // heads)
    blocks = -(-length // block)
    return block * max(4, -(-blocks // parts))


@cache
def multiprocessors(device: torch.device) -> int:
    """An H100's number where there is no GPU: the interpreter, and compilation ahead of time."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 132
