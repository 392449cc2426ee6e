"""SOFT against a dense definition per example and head, its inverse, its limits and its options, in float64."""

import pytest
import torch
from support.features import PATTERNS, D, H, masks, qkv, real_rows, same_with_gradients

from lra.attention.base import Sizes
from lra.attention.soft import Soft
from lra.ops.pinv import newton

L = 23
SIZES = Sizes(heads=H, head_dim=D, value_dim=3, length=32)


def spd(n, *batch, seed=0, spread=0.4):
    """A symmetric positive matrix with eigenvalues 1 and up."""
    x = torch.randn(*batch, n, n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return torch.eye(n, dtype=torch.float64) + spread * x @ x.mT / n


# ---- the oracle: one example and head at a time, loops where the paper has sums


def oracle_kernel(x, y):
    return torch.stack([torch.stack([torch.exp(-((a - b) ** 2).sum() / (2 * D**0.5)) for b in y]) for a in x])


def oracle_newton(m, steps, init, ridge):
    eye = torch.eye(len(m), dtype=m.dtype)
    one_norm = lambda a: a.abs().sum(0).max()
    x = m + ridge * eye
    if init == "soft":
        alpha = 0.9 * 2 / m.sum(1).max() ** 2
    else:
        alpha, bound = 2 / one_norm(x) ** 2, {"paper": 1.0, "softpp": 1.01}[init]
        for _ in range(10):
            if one_norm(eye - alpha * x @ x) <= bound:
                break
            alpha = 0.5 * alpha
    y = alpha * x
    for _ in range(steps):
        y = 2 * y - y @ x @ y
    return y


def oracle_marks(soft, q, real):
    """Bottleneck tokens of one example and head; q (L,D), real: positions of the real tokens."""
    if soft.count is None and soft.sample in ("pool", "conv"):
        marks = []
        for start in range(0, L, soft.window):
            inside = [i for i in range(start, start + soft.window) if i in real]
            if inside and soft.sample == "pool":
                marks.append(q[inside].mean(0))
            elif inside:
                rows = [q[i] if i in real else torch.zeros(D, dtype=q.dtype) for i in range(start, start + soft.window)]
                marks.append(soft.conv(torch.cat([row * D**-0.25 for row in rows])) * D**0.25)
        return torch.stack(marks)
    m = min(soft.count, len(real)) if soft.count else -(-len(real) // soft.window)
    if soft.sample == "pool":
        return torch.stack([q[[i for r, i in enumerate(real) if r * m // len(real) == s]].mean(0) for s in range(m)])
    if soft.sample == "random":
        real = sorted(real, key=lambda i: soft.draw[i])
    return q[real[:m]]


def oracle(soft, q, v, mask, pinv):
    rows = []
    for n in range(len(q)):
        real = list(range(L)) if mask is None else mask[n].nonzero().flatten().tolist()
        rows.append([])
        for h in range(H):
            marks = oracle_marks(soft, q[n, h], real)
            p, a = oracle_kernel(marks, q[n, h, real]), oracle_kernel(marks, marks)
            d = torch.diag(a.sum(1) ** -0.5) if soft.normalise else torch.eye(len(a), dtype=a.dtype)
            rows[-1].append(p.T @ d @ pinv(a) @ d @ p @ v[n, h, real])
    return torch.cat([torch.stack(heads, 1) for heads in rows])  # (real,H,E)


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


@PATTERNS
@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: "-".join(map(str, o.values())) or "pool")
@pytest.mark.parametrize("normalise", [False, True])
def test_equals_the_definition_with_its_gradients(pattern, options, normalise):
    torch.manual_seed(0)
    init, ridge = ("softpp", 0.0) if normalise else ("soft", 0.01)
    soft = Soft(
        SIZES,
        **options,
        normalise=normalise,
        pinv=lambda m: newton(m, steps=8, init=init, ridge=ridge, grad="unroll"),
    )
    soft = soft.double().eval()
    (q, _, v), mask = qkv(L, spread=2.0), masks(L)[pattern]
    got = real_rows(soft(q, q, v, mask), mask)
    want = oracle(soft, q, v, mask, lambda a: oracle_newton(a, 8, init, ridge))
    same_with_gradients(got, want, (q, v))


# ---- the inverse


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
        "gaussian": oracle_kernel(x, x),
        "equal": torch.ones(7, 7, dtype=torch.float64),
        "one": torch.ones(1, 1, dtype=torch.float64),
    }[kind]
    for steps in (0, 3, 20):
        got = newton(m.expand(2, -1, -1), steps=steps, init=init, ridge=0.01)
        torch.testing.assert_close(got, oracle_newton(m, steps, init, 0.01).expand(2, -1, -1), rtol=1e-9, atol=1e-12)


def test_newton_looks_at_one_matrix_at_a_time():
    x = torch.stack([spd(4), 50 * spd(4, seed=1)])
    for init in ("soft", "paper", "softpp"):
        together = newton(x, steps=5, init=init)
        torch.testing.assert_close(together[0], newton(x[0], steps=5, init=init), rtol=1e-12, atol=1e-14)


def test_implicit_gradient_is_the_explicit_backward_also_before_convergence():
    x = spd(5).requires_grad_()
    weight = torch.randn(5, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    y = newton(x, steps=2)
    torch.testing.assert_close(torch.autograd.grad(y, x, weight)[0], -(y.T @ weight @ y.T).detach())
    assert torch.autograd.gradcheck(lambda m: newton(m, steps=2, grad="unroll"), x)
    for init in ("paper", "softpp"):
        assert torch.autograd.gradcheck(lambda m, init=init: newton(m, steps=2, init=init, grad="unroll"), x)


@pytest.mark.parametrize("init", ["soft", "paper", "softpp"])
@pytest.mark.parametrize("ridge", [0.0, 0.01])
def test_inert_rows_leave_the_inverse_alone(init, ridge):
    x = torch.randn(6, D, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    for m in (oracle_kernel(x, x), torch.ones(1, 1, dtype=torch.float64)):
        padded = torch.block_diag(m, torch.eye(3, dtype=m.dtype))
        got = newton(padded, steps=20, init=init, ridge=ridge)
        torch.testing.assert_close(got[: len(m), : len(m)], newton(m, steps=20, init=init, ridge=ridge))
        assert (got[: len(m), len(m) :] == 0).all()


@pytest.mark.parametrize(
    "options, message",
    [
        ({"steps": -1}, "steps must be 0 or more, not -1"),
        ({"init": "code"}, "init must be one of soft, paper, softpp, not 'code'"),
        ({"grad": "exact"}, "grad must be one of implicit, unroll, not 'exact'"),
    ],
)
def test_newton_refuses_what_it_does_not_know(options, message):
    with pytest.raises(ValueError, match=message):
        newton(spd(3), **{"steps": 3, **options})
