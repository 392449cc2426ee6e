"""S4D against its recurrence, state by state and token by token."""

import math

import pytest
import torch

from lra.attention.base import Sizes
from lra.attention.s4d import S4D

DIM, STATES, L = 3, 8, 13
SIZES = Sizes(heads=1, head_dim=DIM, value_dim=DIM, length=L)


def make(**options) -> S4D:
    torch.manual_seed(0)
    return S4D(SIZES, dim=DIM, states=STATES, **options).double()


def recurrence(model: S4D, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """x' = A x + B u held constant over a step; behind the token's own input, and from the end before it."""
    step, a = model.log_step.exp(), torch.complex(-model.log_decay.exp(), model.frequency).expand(DIM, -1)
    b, c = torch.view_as_complex(model.b).expand(DIM, -1), torch.view_as_complex(model.c)
    turn = (step[:, None] * a).exp()
    gain = b * (turn - 1) / a
    out = model.skip * x
    for n in range(len(x)):
        state = torch.zeros(DIM, STATES // 2, dtype=torch.complex128)
        for t in range(L):
            state = turn * state + gain * (x[n, t] * mask[n, t])[:, None]
            out[n, t] += 2 * (c[0] * state).sum(-1).real
        if len(c) == 2:
            state = torch.zeros_like(state)
            for t in reversed(range(L)):
                out[n, t] += 2 * (c[1] * state).sum(-1).real  # the next token is the first one behind
                state = turn * state + gain * (x[n, t] * mask[n, t])[:, None]
    return out


@pytest.mark.parametrize("init", ["lin", "inv", "legs"])
@pytest.mark.parametrize("options", [{}, {"bidirectional": False}, {"shared": True}], ids=str)
def test_is_the_recurrence(init, options):
    model = make(init=init, **options)
    g = torch.Generator().manual_seed(1)
    x, mask = torch.randn(2, L, DIM, generator=g, dtype=torch.float64), torch.rand(2, L, generator=g) < 0.7
    with torch.no_grad():
        torch.testing.assert_close(model(x, mask), recurrence(model, x, mask), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("init", ["lin", "inv", "legs"])
def test_initial_frequencies_are_those_of_a_matrix_or_a_formula(init):
    """S4D-Inv approximates the eigenvalues of HiPPO-LegS; here they are taken of its normal part as a dense matrix."""
    found = make(init=init).frequency[0]
    i = torch.arange(STATES, dtype=torch.float64)
    low = torch.tril(torch.outer((2 * i + 1).sqrt(), (2 * i + 1).sqrt()), -1)
    normal = -low - torch.diag(i + 1) + torch.outer((i + 0.5).sqrt(), (i + 0.5).sqrt())
    eigen = torch.linalg.eigvals(normal)
    expected = {
        "lin": torch.tensor([0, math.pi, 2 * math.pi, 3 * math.pi]),
        "inv": torch.tensor([56, 40 / 3, 24 / 5, 8 / 7]) / math.pi,
        "legs": eigen.imag[eigen.imag > 0].sort().values,
    }[init]
    torch.testing.assert_close(found.detach(), expected.double(), rtol=1e-5, atol=1e-5)


def test_legs_starts_with_the_inputs_of_hippo():
    """V B of the halves and their conjugates is HiPPO's B up to what is clipped."""
    model = make(init="legs")
    b = torch.view_as_complex(model.b)[0]
    norm = (2 * b.abs().square().sum()).sqrt().item()
    assert b.imag.abs().max() <= 2 and norm <= math.sqrt(sum(2 * i + 1 for i in range(STATES))) + 1e-5
