"""How each launch is cut: rows at a time, warps, pipeline stages, parts along the sequence. No tuning at run time."""

from functools import cache
from typing import NamedTuple

import torch

LARGEST = 128  # kept rows, key size, value size


class Tile(NamedTuple):
    block: int  # rows of the sequence at a time
    warps: int
    stages: int


def padded(size: int) -> int:
    """The power of two from 16 on that a dimension is padded to on chip."""
    return max(16, 1 << (size - 1).bit_length())


def streaming(m: int, width: int, dtype: torch.dtype, arch: int) -> Tile:
    """rv and out: m kept rows and the larger of key and value size, both padded; arch 80, 90, 100."""
    wide, area = dtype == torch.float32, m * width
    if area > 8192:
        return Tile(32 if arch >= 90 else 16, 8, 2)
    if area > 4096:
        return Tile(32 if wide else 64, 8, 2)
    if wide:
        return Tile(32, 8, 2) if area == 4096 else Tile(64, 4, 2)
    return Tile(128, 4, 3) if arch >= 90 and m <= 64 else Tile(64, 8, 2)


def streaming_backward(m: int, width: int, dtype: torch.dtype, arch: int) -> Tile:
    wide, area = dtype == torch.float32, m * width
    if area > 8192:
        return Tile(16, 8, 1) if wide or arch < 90 else Tile(32, 8, 2)
    if wide or arch < 90 or area > 4096:
        return Tile(32, 8, 2)
    return Tile(64, 4, 2)


def passes(first: str, second: str, m: int, width: int, dtype: torch.dtype, arch: int) -> list[dict[str, bool]]:
    """What each launch of a streaming backward kernel finds: both of its gradients, one where registers are short."""
    short = m * width > 4096 or (m * width == 4096 and (dtype == torch.float32 or arch != 90))
    return [{first: True, second: False}, {first: False, second: True}] if short else [{first: True, second: True}]


def cubic(m: int) -> Tile | None:
    """The inner matrix on chip; None where it does not fit and library products stand in."""
    return Tile(0, 4, 1) if m <= 64 else None


def precision(m: int, width: int, dtype: torch.dtype, arch: int) -> str:
    """Of products of float32: three on tensor cores keep about its accuracy, but hold every factor twice."""
    return "ieee" if dtype == torch.float32 and m * width > 8192 else "tf32x3"


def inner_precision(dtype: torch.dtype) -> str:
    """Of the cubic iteration, which magnifies rounding: the cheaper 16 bits are enough beside bfloat16's 8 only."""
    return "bf16x3" if dtype == torch.bfloat16 else "tf32x3"


def chunk(heads: int, length: int, block: int, device: torch.device, fill: int = 4) -> int:
    """Rows of the sequence for one program: ``fill`` programs for each multiprocessor, but no fewer than 4 blocks."""
    parts = -(-fill * multiprocessors(device) // heads)
    blocks = -(-length // block)
    return block * max(4, -(-blocks // parts))


@cache
def arch(device: torch.device) -> int:
    """80, 90, 100; 90 where there is no GPU."""
    return 10 * torch.cuda.get_device_capability(device)[0] if device.type == "cuda" else 90


@cache
def multiprocessors(device: torch.device) -> int:
    """An H100's number where there is no GPU: the interpreter, and compilation ahead of time."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 132
