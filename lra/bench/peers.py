"""python -m lra.bench.peers n=4096 batch=8 repeats=7: mechanisms compared with public implementations of them.

Both run interleaved in one process on one thread, forward and backward, and are timed by the CPU time of the process.
The last column compares their outputs in float64: whether they compute the same function. A peer that is not installed,
or a length that one of them does not support, gives a row with the reason. ``make bench-peers`` installs all peers but
pytorch-fast-transformers, which must be compiled.
"""

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from ..config.errors import error_status
from . import peer_pairs
from .measure import Measurement, measure
from .peer_pairs import PeerPair

USAGE = "python -m {} n=4096 batch=8 repeats=7, or other positive numbers"
DEFAULTS = {"n": 4096, "batch": 8, "repeats": 7}
# Length and number of the sequences whose outputs are compared in float64.
CHECKED_LENGTH = 1024
CHECKED_BATCH = 2
# Relative difference of the outputs in float64 below which two implementations compute the same function.
SAME = 1e-6
HEAD = ("mechanism", "peer", "ms", "peer's ms", "time / peer", "memory / peer", "same function")


@dataclass(frozen=True, kw_only=True)
class PeerComparison:
    """A row of the table.

    Args:
        name: name of the mechanism as in ``attn=``.
        peer: package of the peer.
        build: function of (n, batch, dtype) that builds the pair; raises ImportError if the peer is not installed.
        remark: how the two functions differ; empty if they are the same.
    """

    name: str
    peer: str
    build: Callable[[int, int, torch.dtype], PeerPair]
    remark: str = ""


COMPARISONS = [
    PeerComparison(name="fnet", peer="transformers", build=peer_pairs.build_fnet),
    PeerComparison(name="performer", peer="performer-pytorch", build=partial(peer_pairs.build_performer, kernel="exp")),
    PeerComparison(
        name="performer_relu", peer="performer-pytorch", build=partial(peer_pairs.build_performer, kernel="relu")
    ),
    PeerComparison(name="linear", peer="performer-pytorch", build=peer_pairs.build_linear_features),
    PeerComparison(name="linear", peer="fast-transformers", build=peer_pairs.build_linear),
    PeerComparison(
        name="linear, causal", peer="fast-transformers", build=partial(peer_pairs.build_linear, causal=True)
    ),
    PeerComparison(
        name="h_transformer_1d",
        peer="h-transformer-1d",
        build=peer_pairs.build_h_transformer,
        remark="the peer has fewer levels",
    ),
    PeerComparison(name="nystrom", peer="nystrom-attention", build=peer_pairs.build_nystrom),
    PeerComparison(name="nystrom_original", peer="transformers", build=peer_pairs.build_nystrom_original),
    PeerComparison(name="longformer", peer="transformers", build=peer_pairs.build_longformer),
    PeerComparison(
        name="longformer, window 129", peer="local-attention", build=partial(peer_pairs.build_local, reach=1)
    ),
    PeerComparison(name="local", peer="local-attention", build=partial(peer_pairs.build_local, reach=0)),
    PeerComparison(name="bigbird", peer="transformers", build=peer_pairs.build_bigbird, remark="other random blocks"),
    PeerComparison(name="linformer", peer="linformer", build=peer_pairs.build_linformer),
    PeerComparison(
        name="reformer", peer="reformer-pytorch", build=peer_pairs.build_reformer, remark="other random rotations"
    ),
    PeerComparison(name="conv", peer="torch", build=peer_pairs.build_conv),
]


def parse_overrides(overrides: list[str], command: str = "lra.bench.peers") -> dict[str, int]:
    """Parse n, batch and repeats.

    Args:
        overrides: command-line arguments, such as ``n=4096``.
        command: module that is named in the error.

    Raises:
        ValueError: an override is unknown or its value is not a positive number.
    """
    options = dict(DEFAULTS)
    for override in overrides:
        match = re.fullmatch(r"(n|batch|repeats)=([1-9]\d*)", override)
        if match is None:
            raise ValueError(f"unknown override {override}; use {USAGE.format(command)}")
        options[match[1]] = int(match[2])
    return options


def training_step(forward: Callable[[], Tensor], pair: PeerPair) -> Callable[[], None]:
    """Make a function of one forward and backward pass, with a fixed random gradient of the output."""
    # The gradient is drawn in the first call, which is not timed.
    gradients: dict[torch.Size, Tensor] = {}

    def step() -> None:
        out = forward()
        if out.shape not in gradients:
            gradients[out.shape] = torch.randn(out.shape, generator=torch.Generator().manual_seed(1))
        out.backward(gradients[out.shape])
        for tensor in pair.inputs:
            tensor.grad = None
        for module in pair.modules:
            module.zero_grad()

    return step


@torch.no_grad()
def difference(comparison: PeerComparison) -> float:
    """Compute the norm of the difference of both outputs in float64, relative to the peer's."""
    # Both have the same weights and inputs.
    torch.manual_seed(0)
    pair = comparison.build(CHECKED_LENGTH, CHECKED_BATCH, torch.float64)
    mechanism = pair.mechanism()
    reference = pair.reference()
    distance = (mechanism - reference).norm()
    return (distance / reference.norm()).item()


def row(comparison: PeerComparison, n: int, batch: int, repeats: int) -> list[str]:
    """Measure one comparison, and return the cells of its row."""
    cells = [f"`{comparison.name}`", comparison.peer]
    missing = [*cells, "-", "-", "-", "-"]
    # A peer that is not installed, or a pair that cannot be built at this length, gives a row too.
    try:
        relative = difference(comparison)
        torch.manual_seed(0)
        pair = comparison.build(n, batch, torch.float32)
    except ImportError:
        return [*missing, "not installed"]
    except Exception as error:
        return [*missing, error_status(error)]

    # Time both in turn. An error in either one is the last cell of the row.
    steps = {"mechanism": training_step(pair.mechanism, pair), "reference": training_step(pair.reference, pair)}
    measured = measure(steps, repeats=repeats, clock="cpu")
    mechanism = measured["mechanism"]
    reference = measured["reference"]
    for measurement in (mechanism, reference):
        if measurement.ms is None:
            return [*missing, measurement.status]
    time_ratio = mechanism.ms / reference.ms
    memory_ratio = mechanism.peak_bytes / reference.peak_bytes
    cells += [with_spread(mechanism), with_spread(reference), f"{time_ratio:.2f}", f"{memory_ratio:.2f}"]
    return [*cells, verdict(relative, comparison.remark)]


def with_spread(measurement: Measurement) -> str:
    """Write the median in ms and the spread, (largest - smallest) / median."""
    spread = (max(measurement.samples) - min(measurement.samples)) / measurement.ms
    return f"{measurement.ms:.1f} ({spread:.0%})"


def verdict(relative: float, remark: str) -> str:
    """Write whether outputs are equal up to rounding, with their relative difference or the remark."""
    if relative < SAME:
        return f"yes, {relative:.0e}"
    return f"no, {remark}" if remark else f"no, {relative:.0e}"


def markdown(cells: list[str]) -> str:
    """Write a row of a Markdown table."""
    return "| " + " | ".join(cells) + " |"


def main(overrides: list[str]) -> None:
    """Print the table, row by row."""
    try:
        options = parse_overrides(overrides)
    except ValueError as error:
        sys.exit(f"lra: {error}")
    torch.set_num_threads(1)
    n = options["n"]
    batch = options["batch"]
    repeats = options["repeats"]
    sizes = f"n = {n}, batch {batch}, {peer_pairs.HEADS} heads of {peer_pairs.HEAD_DIM}, float32"
    print(f"{sizes}, forward and backward, one thread, medians of {repeats}\n")
    print(markdown(list(HEAD)))
    print(markdown(["---", "---", "---:", "---:", "---:", "---:", "---"]))
    for comparison in COMPARISONS:
        print(markdown(row(comparison, n, batch, repeats)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
