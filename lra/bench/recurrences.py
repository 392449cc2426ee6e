"""python -m lra.bench.recurrences n=4096 batch=4: rounding errors and times of the linear recurrences.

The operators of ``lra.ops.recurrence`` alone, without projections. Errors are relative to the token-by-token recurrence
in float64, in the causal direction. Times are CPU times of forward and backward on one thread, also relative to
exact attention in both directions.
"""

import sys
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from ..ops.blocks import split_blocks
from ..ops.chunks import boundary_states
from ..ops.recurrence import (
    channel_decay_attention,
    delta_rule_attention,
    diagonal_recurrence,
    scalar_decay_attention,
    selective_scan,
)
from ..reference import decay_attention, delta_rule
from ..reference import selective_scan as scans
from .measure import measure
from .peers import markdown, parse_overrides

Operator = Callable[..., Tensor]

HEADS = 2
HEAD_DIM = 32
# Length and number of sequences of the errors; the reference takes a step of Python for each token.
ERROR_LENGTH = 512
ERROR_BATCH = 2
# Mamba's layer at d = 64: inner channels and states of each.
INNER = 128
STATES = 16

# Logarithms of decays from weak to strong: the first are the initial values of GLA.
DECAYS: dict[str, Callable[[Tensor], Tensor]] = {
    "logsigmoid(x) / 16": lambda x: F.logsigmoid(x) / 16,
    "logsigmoid(x)": F.logsigmoid,
    "logsigmoid(10 x)": lambda x: F.logsigmoid(10 * x),
    "logsigmoid(50 x)": lambda x: F.logsigmoid(50 * x),
}
# Shifts of a forget gate sigmoid(x + shift), from long to short memory.
SHIFTS = (3.0, 0.0, -3.0)
# Strengths of the delta rule's writes: 1 replaces what a key holds, 2 reflects it.
BETAS = (0.5, 1.0, 2.0)


def relative_error(operator: Operator, reference: Operator, inputs: list[Tensor]) -> str:
    """Compute the norm of the error of an operator in float32, relative to the reference in float64, as a cell.

    Args:
        operator: function of the inputs in float32.
        reference: function of the inputs in float64.
        inputs: tensors in float64. They are rounded to float32 first, so that both functions get the same numbers.
    """
    rounded = [x.float() for x in inputs]
    result = operator(*rounded)
    exact = reference(*[x.double() for x in rounded])
    error = (result.double() - exact).norm()
    return f"{error / exact.norm():.1e}"


def factored_attention(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, chunk: int) -> Tensor:
    """Compute causal channel-decay attention by q exp(G) and k exp(-G), which overflows where decays are strong.

    The usual short form, next to which the errors of ``channel_decay_attention`` are shown.
    """
    length = q.shape[2]
    q = split_blocks(q * q.shape[-1] ** -0.5, chunk, 2)  # (N,H,B,C,D)
    k = split_blocks(k, chunk, 2)
    v = split_blocks(v, chunk, 2)
    prefix = split_blocks(log_decay, chunk, 2).cumsum(-2)  # G
    total = prefix[..., -1:, :]

    # Within a chunk: exp(G_i - G_j) as a product of two factors, the second of which is not bounded.
    queries = q * prefix.exp()
    keys = k * (-prefix).exp()
    scores = (queries @ keys.mT).tril()  # (N,H,B,C,C)
    out = scores @ v

    # Between chunks.
    keys_to_end = k * (total - prefix).exp()
    states = boundary_states(total.exp().mT, keys_to_end.mT @ v)  # (N,H,B,D,E)
    out = out + queries @ states
    return out.flatten(2, 3)[:, :, :length]


# Columns of the table of decays: operator and chunk size. G is the cumulative sum of log decays.
SCALAR_FORMS = {
    "scalar, chunk 64": (scalar_decay_attention, 64),
    "scalar, 256": (scalar_decay_attention, 256),
}
CHANNEL_FORMS = {
    "channel, 32": (channel_decay_attention, 32),
    "channel, 64": (channel_decay_attention, 64),
    "q e^G, k e^-G, 64": (factored_attention, 64),
    "the same, 16": (factored_attention, 16),
}


def attention_inputs(batch: int, length: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Draw queries, keys and values."""
    shape = (batch, HEADS, length, HEAD_DIM)
    q = torch.randn(shape, dtype=dtype)
    k = torch.randn(shape, dtype=dtype)
    v = torch.randn(shape, dtype=dtype)
    return q, k, v


def decay_errors(length: int) -> Iterator[list[str]]:
    """Measure the errors of scalar and channel decays: yield the header, then a row for each strength of the decays."""
    yield ["decays", *SCALAR_FORMS, *CHANNEL_FORMS]
    q, k, v = attention_inputs(ERROR_BATCH, length, torch.float64)
    x = torch.randn(q.shape, dtype=torch.float64)
    for name, decay in DECAYS.items():
        cells = [name]
        # One decay per head and token.
        inputs = [q, k, v, decay(x[..., 0])]
        for operator, chunk in SCALAR_FORMS.values():
            with_chunk = partial(operator, chunk=chunk)
            cells.append(relative_error(with_chunk, decay_attention.decay_attention, inputs))
        # One decay per key channel, by halving chunks (``lra.ops.decay_attention``) and by two factors.
        inputs = [q, k, v, decay(x)]
        for operator, chunk in CHANNEL_FORMS.values():
            with_chunk = partial(operator, chunk=chunk)
            cells.append(relative_error(with_chunk, decay_attention.decay_attention, inputs))
        yield cells


def delta_rule_errors(length: int) -> Iterator[list[str]]:
    """Measure the errors of the delta rule: yield the header, then a row for each kind of keys."""
    yield ["keys", *(f"beta {beta:g}" for beta in BETAS)]
    q, k, v = attention_inputs(ERROR_BATCH, length, torch.float64)
    # Equal keys make the triangular system as ill-conditioned as it can be.
    first = k[:, :, :1]
    directions = {
        "random": k,
        "similar": first + 0.1 * k,
        "equal": first.expand(k.shape),
    }
    for name, direction in directions.items():
        keys = F.normalize(direction, dim=-1)
        cells = [name]
        for beta in BETAS:
            strengths = torch.full(q.shape[:3], beta, dtype=torch.float64)
            inputs = [q, keys, v, strengths]
            cells.append(relative_error(delta_rule_attention, delta_rule.delta_rule_attention, inputs))
        yield cells


def scan_errors(length: int) -> Iterator[list[str]]:
    """Measure the errors of the two scans: yield the header, then a row for each shift of the forget gate."""
    yield ["forget gate", "diagonal_recurrence", "selective_scan"]
    x = torch.randn(ERROR_BATCH, length, INNER, dtype=torch.float64)
    gates = torch.randn(x.shape, dtype=torch.float64)
    A = -torch.arange(1.0, STATES + 1, dtype=torch.float64).expand(INNER, STATES)
    B = torch.randn(ERROR_BATCH, length, STATES, dtype=torch.float64)
    C = torch.randn(ERROR_BATCH, length, STATES, dtype=torch.float64)
    for shift in SHIFTS:
        log_decay = F.logsigmoid(gates + shift)
        diagonal = relative_error(diagonal_recurrence, scans.diagonal_recurrence, [log_decay, x])
        # The decay exp(Δ A) of the slowest state, A = -1, is the same gate.
        delta = -log_decay
        selective = relative_error(selective_scan, scans.selective_scan, [x, delta, A, B, C])
        yield [f"sigmoid(x + {shift:g})", diagonal, selective]


def operators(batch: int, n: int) -> dict[str, tuple[Operator, list[Tensor]]]:
    """The operators by name, each with its inputs in float32; exact attention is the first."""
    q, k, v = attention_inputs(batch, n, torch.float32)
    unit_keys = F.normalize(k, dim=-1)
    log_decay = F.logsigmoid(torch.randn(batch, HEADS, n))
    channel_log_decay = F.logsigmoid(torch.randn(q.shape))
    beta = torch.rand(batch, HEADS, n)
    u = torch.randn(batch, n, INNER)
    delta = 0.1 * torch.rand(batch, n, INNER)
    A = -torch.arange(1.0, STATES + 1).repeat(INNER, 1)
    B = torch.randn(batch, n, STATES)
    C = torch.randn(batch, n, STATES)
    channels = HEADS * HEAD_DIM
    gates = F.logsigmoid(torch.randn(batch, n, channels))
    x = torch.randn(batch, n, channels)

    def exact_attention(q: Tensor, k: Tensor, v: Tensor, *, bidirectional: bool) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=not bidirectional)

    return {
        "exact attention": (exact_attention, [q, k, v]),
        "diagonal_recurrence": (diagonal_recurrence, [gates, x]),
        "scalar_decay_attention": (scalar_decay_attention, [q, k, v, log_decay]),
        "delta_rule_attention": (delta_rule_attention, [q, unit_keys, v, beta]),
        "delta_rule_attention with decays": (delta_rule_attention, [q, unit_keys, v, beta, log_decay]),
        "channel_decay_attention": (channel_decay_attention, [q, k, v, channel_log_decay]),
        "selective_scan": (selective_scan, [u, delta, A, B, C]),
    }


def training_pass(operator: Operator, inputs: list[Tensor], bidirectional: bool) -> Callable[[], None]:
    """Make a function of one forward and backward pass, with a fixed random gradient of the output."""
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    with torch.no_grad():
        gradient = torch.randn_like(operator(*leaves, bidirectional=bidirectional))

    def step() -> None:
        out = operator(*leaves, bidirectional=bidirectional)
        torch.autograd.grad(out, leaves, gradient)

    return step


def times(n: int, batch: int, repeats: int) -> Iterator[list[str]]:
    """Time all operators in turn: yield the header, then a row for each, relative to bidirectional exact attention."""
    yield ["operator", "causal, ms", "both directions, ms", "causal", "both directions"]
    steps = {}
    contestants = operators(batch, n)
    for name, (operator, inputs) in contestants.items():
        for bidirectional in (False, True):
            steps[name, bidirectional] = training_pass(operator, inputs, bidirectional)
    measured = measure(steps, repeats=repeats, clock="cpu")
    for (name, _), measurement in measured.items():
        if not measurement.samples:
            sys.exit(f"lra: {name} cannot be timed: {measurement.status}")
    # The lowest sample: other work on the machine only adds time.
    lowest_ms = {step: min(measurement.samples) for step, measurement in measured.items()}
    exact_ms = lowest_ms["exact attention", True]
    for name in contestants:
        causal_ms = lowest_ms[name, False]
        bidirectional_ms = lowest_ms[name, True]
        ratios = [f"{causal_ms / exact_ms:.2f}", f"{bidirectional_ms / exact_ms:.2f}"]
        yield [f"`{name}`", f"{causal_ms:.0f}", f"{bidirectional_ms:.0f}", *ratios]


def show(rows: Iterator[list[str]]) -> None:
    """Print a Markdown table, row by row; the first one is the header."""
    header = next(rows)
    print(markdown(header))
    print(markdown(["---"] + ["---:"] * (len(header) - 1)))
    for cells in rows:
        print(markdown(cells), flush=True)
    print()


def main(overrides: list[str]) -> None:
    """Print the tables."""
    try:
        options = parse_overrides(overrides, "lra.bench.recurrences")
    except ValueError as error:
        sys.exit(f"lra: {error}")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(f"Relative error in float32, causal, {ERROR_LENGTH} tokens, {HEADS} heads of {HEAD_DIM}\n")
    show(decay_errors(ERROR_LENGTH))
    show(delta_rule_errors(ERROR_LENGTH))
    show(scan_errors(ERROR_LENGTH))
    n = options["n"]
    batch = options["batch"]
    repeats = options["repeats"]
    print(f"Forward and backward, n = {n}, batch {batch}, one thread, CPU time, lowest of {repeats}\n")
    show(times(n, batch, repeats))


if __name__ == "__main__":
    main(sys.argv[1:])
