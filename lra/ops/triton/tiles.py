"""Fixed sizes of each launch: positions at a time, warps, pipeline stages, parts along the sequence."""

from functools import cache
from typing import NamedTuple

import torch

LARGEST = 128  # selected rows, key size, value size
# Parts along the sequence that each program of the next launch combines itself; more are combined before.
PARTS = 16


class Tile(NamedTuple):
    """The sizes of one launch.

    Args:
        block: positions of the sequence at a time.
        warps: warps of a program.
        stages: stages of the software pipeline.
        precision: precision of the streaming products of float32 inputs: ``tf32x3``, three products on tensor cores,
            with about the accuracy of float32, or ``ieee``, without tensor cores.
        launches: number of launches of a backward kernel, each for a part of its gradients if registers are scarce.
        turned: see ``c_backward_kernel``.
    """

    block: int
    warps: int
    stages: int
    precision: str = "tf32x3"
    launches: int = 1
    turned: bool = False


def padded(size: int) -> int:
    """Round a dimension up to its size on chip, a power of two of at least 16."""
    return max(16, 1 << (size - 1).bit_length())


# Launches that would spill registers under the rules below: by bytes of an entry, selected rows, width, architectures.
FORWARD = {
    (4, 64, 16): {80: Tile(32, 4, 2)},
    (4, 128, 16): {80: Tile(32, 4, 2), 90: Tile(32, 4, 2), 100: Tile(32, 8, 2)},
    (4, 64, 128): {80: Tile(16, 8, 2, "ieee"), 100: Tile(16, 8, 2, "ieee")},
}
# In addition to FORWARD.
RV = {(4, 128, 128): {90: Tile(32, 8, 1), 100: Tile(16, 8, 2, "ieee")}}
BACKWARD = {
    (2, 16, 128): {90: Tile(32, 4, 2)},
    (2, 32, 128): {90: Tile(32, 8, 2), 100: Tile(32, 8, 2)},
    (2, 64, 128): {90: Tile(32, 8, 2, turned=True)},
    (2, 128, 16): {100: Tile(16, 8, 2, turned=True)},
    (2, 128, 128): {80: Tile(16, 8, 2, launches=3, turned=True)},
    (4, 32, 128): {
        80: Tile(16, 8, 1, launches=3),
        90: Tile(16, 8, 1, launches=2, turned=True),
        100: Tile(16, 8, 1, launches=2, turned=True),
    },
    (4, 64, 128): {
        90: Tile(16, 8, 2, "ieee", launches=3, turned=True),
        100: Tile(16, 8, 2, "ieee", launches=3, turned=True),
    },
    (4, 128, 128): {
        90: Tile(16, 16, 1, "ieee", launches=3, turned=True),
        100: Tile(16, 16, 1, "ieee", launches=3),
    },
}
# In addition to BACKWARD.
R_BACKWARD = {
    (4, 32, 128): {90: Tile(16, 8, 2, launches=2)},
    (4, 64, 64): {90: Tile(32, 8, 2, launches=3)},
    (4, 64, 128): {80: Tile(16, 8, 2, "ieee", launches=3)},
}


def streaming(kernel: str, m: int, width: int, dtype: torch.dtype, arch: int) -> Tile:
    """The tile of rv or out.

    Args:
        kernel: ``rv`` or ``out``.
        m: selected rows, padded.
        width: the larger of key and value size, padded.
        dtype: dtype of the inputs.
        arch: 80, 90, 100.
    """
    # Exceptions first.
    size = (dtype.itemsize, m, width)
    tables = (RV, FORWARD) if kernel == "rv" else (FORWARD,)
    for table in tables:
        if arch in table.get(size, ()):
            return table[size][arch]

    # float32: the larger the matrices on chip, the fewer positions at a time.
    area = m * width
    if dtype == torch.float32:
        if area > 8192:
            return Tile(16, 8, 1, "ieee")
        if area > 4096 or (area == 4096 and m == 128):
            return Tile(16, 8, 1)
        if area == 4096:
            return Tile(32, 8, 2)
        return Tile(32 if width > m else 64, 4, 2)

    # 16 bits.
    if area > 8192:
        block = 32 if arch >= 90 else 16
        return Tile(block, 8, 2)
    if arch < 90 or m > 64 or area > 4096:
        return Tile(64, 8, 2)
    block = 128 if m == 64 else 64
    return Tile(block, 4, 3)


def streaming_backward(kernel: str, m: int, width: int, dtype: torch.dtype, arch: int) -> Tile:
    """The tile of c_backward or r_backward, both with the same ``block``; arguments as for ``streaming``."""
    # Exceptions first.
    size = (dtype.itemsize, m, width)
    tables = (R_BACKWARD, BACKWARD) if kernel == "r_backward" else (BACKWARD,)
    for table in tables:
        if arch in table.get(size, ()):
            return table[size][arch]

    # float32: the larger the matrices on chip, the more launches.
    area = m * width
    if dtype == torch.float32:
        if area > 8192 or (area == 8192 and arch != 90):
            launches = 2 if arch < 90 else 3
            return Tile(16, 8, 1, "ieee", launches=launches, turned=True)
        if area == 8192 or (arch < 90 and area >= 2048):
            launches = 2 if arch == 90 or area < 4096 else 3
            return Tile(16, 8, 1, launches=launches, turned=True)
        turned = area >= 2048 and (m, width) != (64, 64)
        if area <= 1024:
            return Tile(16, 4, 2)
        block = 32 if m <= 64 else 16
        launches = 2 if area == 4096 else 1
        return Tile(block, 8, 2, launches=launches, turned=turned)

    # 16 bits.
    if area > 8192:
        block = 32 if arch >= 90 else 16
        return Tile(block, 8, 2, launches=2, turned=True)
    if arch < 90 or area > 4096 or m > 64:
        launches = 2 if arch < 90 and area >= 4096 else 1
        return Tile(32, 8, 2, launches=launches, turned=m > 64)
    turned = arch >= 100 and area == 4096
    return Tile(64, 4, 2, turned=turned)


def divide_gradients(a: str, b: str, c: str, launches: int) -> list[dict[str, bool]]:
    """Divide three gradients among launches; returns for each launch whether it computes a, b and c."""
    groups = {1: [{a, b, c}], 2: [{a}, {b, c}], 3: [{a}, {b}, {c}]}
    launch_gradients = []
    for group in groups[launches]:
        launch_gradients.append({name: name in group for name in (a, b, c)})
    return launch_gradients


def on_chip(m: int, arch: int) -> bool:
    """Whether a kernel computes the inverse (see ``fuses_inverse``); otherwise library products compute it.

    64 rows need more registers than there are. Some spill to caches, which costs less than library products: these move
    15 matrices through device memory for each step of the forward pass and 52 of the backward pass. For sm_100 triton
    3.7 compiles the kernels of 64 rows, whose products use tensor memory, to a single trap instruction.
    """
    largest = 64 if arch < 100 else 32
    return m <= largest


def symmetric(dtype: torch.dtype, steps: int) -> bool:
    """Whether ``core_symmetric``, whose errors grow with the steps, computes the inverse, not ``core_classic``."""
    return dtype != torch.float32 and steps <= 6


def fuses_inverse(m: int, width: int, dtype: torch.dtype, arch: int) -> bool:
    """Whether the inverse is part of rv and r_backward; a separate launch in both passes otherwise.

    float32 and sm_80 take eight warps for large sizes, which leaves few registers for the inverse: it spills up to
    three times as much as in a separate launch with four warps.
    """
    small = m <= 32 and m * width < 4096
    return small or (dtype != torch.float32 and arch >= 90)


def num_scratch_matrices(steps: int, symmetric: bool) -> int:
    """The number of (BM,BM) matrices of a head that ``inverse_backward`` keeps in device memory."""
    per_step = 4 if symmetric else 1
    return 4 + per_step * steps


def inner_precision(dtype: torch.dtype) -> str:
    """The precision of the cubic iteration, which amplifies rounding; the cheaper bf16x3 suffices only for bfloat16."""
    return "bf16x3" if dtype == torch.bfloat16 else "tf32x3"


def chunk(heads: int, length: int, block: int, device: torch.device, fill: int = 4) -> int:
    """Positions of the sequence for one program, so that there are about ``fill`` programs for each multiprocessor.

    Args:
        heads: number of heads of all examples.
        length: length of the sequence.
        block: positions at a time; a program gets at least 4 blocks, so there are fewer programs for short sequences.
        device: device of the launch.
        fill: programs for each multiprocessor.
    """
    # Rounded up: programs for each head, blocks of the sequence, blocks for each program.
    num_programs = fill * multiprocessors(device)
    parts = -(-num_programs // max(1, heads))
    blocks = -(-length // block)
    blocks_per_part = -(-blocks // parts)
    return block * max(4, blocks_per_part)


@cache
def arch(device: torch.device) -> int:
    """The architecture whose tiles a device takes: 90 for Hopper and without a GPU, 100 for sm_10x, 80 for others."""
    if device.type != "cuda":
        return 90
    major, _ = torch.cuda.get_device_capability(device)
    return {9: 90, 10: 100}.get(major, 80)


@cache
def multiprocessors(device: torch.device) -> int:
    """The multiprocessors of a device; without a GPU the 132 of an H100."""
    if device.type != "cuda":
        return 132
    return torch.cuda.get_device_properties(device).multi_processor_count
