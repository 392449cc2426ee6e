"""Diagonal linear recurrences: each entry of the state has its own decay.

``diagonal_recurrence`` is real with decays that vary over time: RG-LRU, minGRU, minLSTM. ``diagonal_scan`` and
``diagonal_ssm`` are complex with constant decays: S5 (Smith, Warrington and Linderman 2023), LRU (Orvieto et al. 2023).
N batch, L length, P states, H inputs and outputs.
"""

import itertools
import math
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Complex, Float
from torch import Tensor

from .blocks import split_blocks
from .chunks import append_reversed
from .precision import full_precision
from .untraced import operator

# Positions of a chunk of ``diagonal_scan``.
CHUNK = 16


@full_precision
def diagonal_recurrence(
    log_decay: Float[Tensor, "N L P"],
    inputs: Float[Tensor, "N L P"],
    *,
    bidirectional: bool = False,
) -> Float[Tensor, "N L P"]:
    """Compute x_t = exp(g_t) x_(t-1) + u_t for each channel, in float32 at least.

    The sequence is cut into about √L blocks. All blocks advance together, token by token, from a zero state; then the
    states between blocks are carried on, and each token adds the carried state times the decays since the start of its
    block. This takes 2 √L Python steps and three passes over the data.

    Args:
        log_decay: g, at most 0; 0 at padding.
        inputs: u; 0 at padding.
        bidirectional: add the recurrence from the right; a token's own input is counted once.

    Returns:
        The states.
    """
    if not bidirectional:
        return _recurrence(log_decay, inputs)
    # Both directions are one batch: the second half of the examples runs from right to left.
    both_decays = append_reversed(log_decay, 1)
    both_inputs = append_reversed(inputs, 1)
    states = _recurrence(both_decays, both_inputs)
    forward, backward = states.chunk(2)
    return forward + backward.flip(1) - inputs


# An operator, because torch.compile would unroll its loop over tokens (``lra.ops.untraced``).
@operator("recurrence")
def _recurrence(log_decay: Tensor, inputs: Tensor) -> Tensor:
    """Compute the recurrence from left to right; only the decays and the states are saved for the backward pass."""
    return scan(log_decay, inputs).contiguous()


@_recurrence.register_fake
def _(log_decay: Tensor, inputs: Tensor) -> Tensor:
    return inputs.new_empty(inputs.shape)


def _save_recurrence(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    log_decay, _ = inputs
    ctx.save_for_backward(log_decay, output)


def _recurrence_backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
    log_decay, states = ctx.saved_tensors
    # The adjoint λ_t = dx_t + exp(g_(t+1)) λ_(t+1) is the same recurrence from the right, with its decays shifted by
    # one token. The first decay meets a zero state, so its value does not matter.
    first = torch.zeros_like(log_decay[:, :1])
    later = log_decay[:, 1:].flip(1)
    reversed_decay = torch.cat([first, later], dim=1)
    reversed_adjoint = _recurrence(reversed_decay, grad.flip(1))
    # λ is also the gradient of u.
    adjoint = reversed_adjoint.flip(1)

    # x_t contains exp(g_t) x_(t-1), so dg_t = λ_t exp(g_t) x_(t-1).
    initial = torch.zeros_like(states[:, :1])
    previous = torch.cat([initial, states[:, :-1]], dim=1)
    grad_decay = adjoint * log_decay.exp() * previous
    return grad_decay, adjoint


_recurrence.register_autograd(_recurrence_backward, setup_context=_save_recurrence)


def scan(log_decay: Float[Tensor, "N L P"], inputs: Float[Tensor, "N L P"]) -> Float[Tensor, "N L P"]:
    """Compute x_t = exp(g_t) x_(t-1) + u_t from left to right in 2 √L steps of Python.

    It writes in place, which autograd does not support, so its callers define their own backward passes.
    """
    length = inputs.shape[1]
    # B blocks of T tokens, both about √L.
    size = math.isqrt(max(length - 1, 0)) + 1
    log_decay = split_blocks(log_decay, size, 1)  # (N,B,T,P)
    decay = log_decay.exp()

    # Within blocks, from a zero state.
    states = split_blocks(inputs, size, 1).clone()
    for t in range(1, size):
        now = states[:, :, t]
        previous = states[:, :, t - 1]
        torch.addcmul(now, decay[:, :, t], previous, out=now)

    # Between blocks: the state before each one.
    since_start = log_decay.cumsum(2).exp()
    block_decay = since_start[:, :, -1]  # (N,B,P)
    block_end = states[:, :, -1]
    carry = torch.zeros_like(states[:, 0, 0])
    carries = []
    for block in range(states.shape[1]):
        carries.append(carry)
        carry = block_decay[:, block] * carry + block_end[:, block]

    # Each token adds the decayed state from before its block.
    carried = torch.stack(carries, dim=1)[:, :, None]  # (N,B,1,P)
    states = states + since_start * carried
    states = states.flatten(1, 2)
    return states[:, :length]


def diagonal_scan(
    decay: Complex[Tensor, "P"],
    inputs: Complex[Tensor, "N L P"],
    *,
    reverse: bool = False,
) -> Complex[Tensor, "N L P"]:
    """Compute the states x_k = decay x_(k-1) + u_k of every position, in O(N L P) time and memory.

    The gradient of u is the same scan in the other direction with the conjugate decay, so only the states are saved for
    the backward pass.

    Args:
        decay: complex factor Λ̄ of a step, which decays and rotates the state; |decay| <= 1.
        inputs: u.
        reverse: x_k = decay x_(k+1) + u_k.

    Returns:
        The states.
    """
    return _constant_scan(decay, inputs, reverse)


@operator("constant_scan")
def _constant_scan(decay: Tensor, inputs: Tensor, reverse: bool) -> Tensor:
    return _scan_recursively(decay, inputs, reverse).contiguous()


@_constant_scan.register_fake
def _(decay: Tensor, inputs: Tensor, reverse: bool) -> Tensor:
    return inputs.new_empty(inputs.shape)


def _save_scan(ctx: Any, inputs: tuple[Tensor, Tensor, bool], output: Tensor) -> None:
    decay, _, ctx.reverse = inputs
    ctx.save_for_backward(decay, output)


def _constant_scan_backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
    """Compute λ_k = dx_k + conj(decay) λ_(k+1), the gradient of u; the decay has Σ_k λ_k conj(x_(k-1))."""
    decay, states = ctx.saved_tensors
    adjoint = _constant_scan(decay.conj(), grad, not ctx.reverse)  # λ
    # x_k depends on decay through decay * x_(k-1), or x_(k+1) in reverse.
    if ctx.reverse:
        now = adjoint[:, :-1]
        before = states[:, 1:]
    else:
        now = adjoint[:, 1:]
        before = states[:, :-1]
    products = now * before.conj()
    grad_decay = products.sum((0, 1))  # (P,)
    return grad_decay, adjoint, None


_constant_scan.register_autograd(_constant_scan_backward, setup_context=_save_scan)


def _scan_recursively(
    decay: Complex[Tensor, "P"],
    inputs: Complex[Tensor, "N L P"],
    reverse: bool,
) -> Complex[Tensor, "N L P"]:
    """Scan recursively: over the last states of chunks of ``CHUNK`` positions, then inside the chunks.

    With S = CHUNK and chunk c, the last state of a chunk obeys a recurrence over chunks,

        x_(cS+S-1) = decay^S x_(cS-1) + Σ_j decay^(S-1-j) u_(cS+j)

    which is the same problem for L / S positions, solved by this function again. Its states enter the next chunks, and
    then all chunks step through their positions at once. This passes over (N,L,P) a fixed number of times, not log2 L
    times as doubling does (Hillis and Steele 1986).
    """
    num_batch, seq_len, num_states = inputs.shape
    num_padding = -seq_len % CHUNK if seq_len > CHUNK else 0
    if num_padding:
        # Padding comes last in the order of the scan.
        padding = (0, 0, num_padding, 0) if reverse else (0, 0, 0, num_padding)
        states = F.pad(inputs, padding)
    else:
        # A copy, as after F.pad, because the states are computed in place.
        states = inputs.clone()
    size = min(seq_len, CHUNK)
    chunks = states.view(num_batch, -1, size, num_states)  # (N,C,S,P)
    order = range(size - 1, -1, -1) if reverse else range(size)

    if chunks.shape[1] > 1:
        # The sums of the recurrence over chunks, (N,C,P).
        sums = torch.zeros_like(chunks[:, :, 0])
        for j in order:
            sums.mul_(decay)
            sums.add_(chunks[:, :, j])
        last_states = _scan_recursively(decay**CHUNK, sums, reverse)

        # The state that enters a chunk is the last one of the chunk before.
        first = order[0]
        if reverse:
            first_inputs = chunks[:, :-1, first]
            entering = last_states[:, 1:]
        else:
            first_inputs = chunks[:, 1:, first]
            entering = last_states[:, :-1]
        first_inputs.addcmul_(decay, entering)

    # The recurrence inside all chunks at once.
    for previous, j in itertools.pairwise(order):
        now = chunks[:, :, j]
        now.addcmul_(decay, chunks[:, :, previous])
    return states[:, num_padding:] if reverse else states[:, :seq_len]


@full_precision
def diagonal_ssm(
    u: Float[Tensor, "N L H"],
    decay: Complex[Tensor, "P"],
    b: Float[Tensor, "P H 2"],
    c: Float[Tensor, "directions H P 2"],
    mask: Bool[Tensor, "N L"] | None = None,
) -> Float[Tensor, "N L H"]:
    """Compute y_k = Re(C x_k), x_k = decay x_(k-1) + B u_k, a MIMO state-space model, in float32 at least.

    Args:
        u: inputs.
        decay: Λ̄ of S5, λ of LRU, see ``diagonal_scan``.
        b: real and imaginary parts of B.
        c: real and imaginary parts of one or two matrices C. The second C reads the states of a scan from the end of
            the sequence; the states of both scans include the token's own input.
        mask: True = real. A masked input counts as 0; the state decays at its position.
    """
    if mask is not None:
        u = u.masked_fill(~mask[..., None], 0)
    # B u, the real and imaginary parts next to each other.
    b_columns = b.permute(1, 0, 2).flatten(1)  # (H,2P)
    parts = u @ b_columns
    parts = parts.unflatten(-1, (-1, 2))  # (N,L,P,2)
    inputs = torch.view_as_complex(parts)  # (N,L,P)

    out = torch.zeros_like(u)
    for direction, c_direction in enumerate(c):
        states = diagonal_scan(decay, inputs, reverse=direction == 1)
        # Signs [1, -1], made on the device: a copy from the host would wait for it.
        signs = 1 - 2 * torch.arange(2, dtype=c_direction.dtype, device=c_direction.device)
        # Re(C x) = Re C Re x - Im C Im x, as one product of real matrices.
        c_rows = (c_direction * signs).flatten(-2)  # (H,2P)
        state_parts = torch.view_as_real(states).flatten(-2)  # (N,L,2P)
        out = out + state_parts @ c_rows.mT
    return out
