"""SOFT against lra/reference/soft.py, and its inverse, in float64."""

from functools import partial

import pytest
import torch
from support.features import D, check, sized

from lra.attention.soft import Soft
from lra.ops.newton import newton
from lra.reference import soft as reference

L = 23


def spd(n, *batch, seed=0, spread=0.4):
    """A symmetric positive matrix with eigenvalues 1 and up."""
    x = torch.randn(*batch, n, n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return torch.eye(n, dtype=torch.float64) + spread * x @ x.mT / n


def bottleneck(soft, at, q):
    """Bottleneck tokens of one head, from the real tokens q (n,D) at positions ``at``."""
    window = at // soft.window
    if soft.sample == "conv":  # padding counts as zero
        tokens = q.new_zeros((int(window.max()) + 1) * soft.window, D).index_put((at,), q * D**-0.25)
        return soft.conv(tokens.unflatten(0, (-1, soft.window)).flatten(1))[window.unique()] * D**0.25
    if soft.count is None and soft.sample == "pool":
        if len(at) == at[-1] + 1:  # without holes
            return reference.pooled_tokens(q, soft.window)
        return torch.stack([q[window == w].mean(0) for w in window.unique()])
    m = min(soft.count, len(q)) if soft.count else -(-len(q) // soft.window)
    if soft.sample == "pool":
        segment = torch.arange(len(q)) * m // len(q)
        return torch.stack([q[segment == s].mean(0) for s in range(m)])
    return q[soft.draw[at].argsort()[:m] if soft.sample == "random" else slice(m)]


OPTIONS = [
    {},
    {"window": 5},
    {"count": 6},
    {"sample": "conv"},
    {"sample": "conv", "activate": False},
    {"sample": "random"},
    {"sample": "random", "count": 6},
    {"sample": "first"},
    {"sample": "first", "count": 6},
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: "-".join(map(str, o.values())) or "pool")
@pytest.mark.parametrize("normalise", [False, True])
def test_is_the_reference_with_its_gradients(options, normalise):
    """A window without a real token, and the examples beside it, leave the inverse alone."""
    init, ridge = ("softpp", 0.0) if normalise else ("soft", 0.01)
    pinv = partial(newton, steps=8, init=init, ridge=ridge, grad="unroll")
    soft = sized(Soft, length=32, **options, normalise=normalise, pinv=pinv)

    def oracle(h, at, q, k, v):
        attention = reference.normalised_attention if normalise else reference.attention
        return attention(q, v, bottleneck(soft, at, q), steps=8, init=init, ridge=ridge)

    check(soft, oracle, L, shared=True, spread=2.0)


@pytest.mark.parametrize("init", ["soft", "paper", "softpp"])
@pytest.mark.parametrize("grad", ["implicit", "unroll"])
def test_newton_converges_to_the_inverse_and_its_gradient(init, grad):
    x = spd(4, 2).requires_grad_()
    invert = lambda m: newton((m + m.mT) / 2, steps=25, init=init, grad=grad)
    torch.testing.assert_close(invert(x), torch.linalg.inv(x), rtol=1e-10, atol=1e-10)
    weight = torch.randn(2, 4, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    got, want = (torch.autograd.grad((f(x) * weight).sum(), x)[0] for f in (invert, torch.linalg.inv))
    torch.testing.assert_close(got, (want + want.mT) / 2, rtol=1e-8, atol=1e-8)
    assert torch.autograd.gradcheck(invert, x)


@pytest.mark.parametrize("init", ["soft", "paper", "softpp"])
@pytest.mark.parametrize("kind", ["dominant", "gaussian", "equal", "one"])
def test_newton_starts_where_the_published_rule_does(init, kind):
    """Before it has converged the start shows; ``equal`` has the eigenvalue where alpha = 2 / ||A||² stands still."""
    x = torch.randn(7, D, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    m = {
        "dominant": torch.eye(7, dtype=torch.float64) + 0.01 * torch.ones(7, 7, dtype=torch.float64),
        "gaussian": reference.gaussian_kernel(x, x),
        "equal": torch.ones(7, 7, dtype=torch.float64),
        "one": torch.ones(1, 1, dtype=torch.float64),
    }[kind]
    for steps in (0, 3, 20):
        got = newton(m.expand(2, -1, -1), steps=steps, init=init, ridge=0.01)
        torch.testing.assert_close(
            got, reference.newton_inverse(m, steps, init, 0.01).expand(2, -1, -1), rtol=1e-9, atol=1e-12
        )


def test_implicit_gradient_is_the_explicit_backward_also_before_convergence():
    x = spd(5).requires_grad_()
    weight = torch.randn(5, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    y = newton(x, steps=2)
    torch.testing.assert_close(torch.autograd.grad(y, x, weight)[0], -(y.T @ weight @ y.T).detach())
    assert torch.autograd.gradcheck(lambda m: newton(m, steps=2, grad="unroll"), x)
    for init in ("paper", "softpp"):
        assert torch.autograd.gradcheck(lambda m, init=init: newton(m, steps=2, init=init, grad="unroll"), x)
