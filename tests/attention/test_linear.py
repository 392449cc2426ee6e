"""Linear attention, Performer, RFA, Hedgehog and cosFormer against their O(n²) kernel forms, and against softmax."""

import math

import pytest
import torch
import torch.nn.functional as F
from conftest import CHECK_SIZES, config
from support.features import SIZES, D, H, check, mean, qkv

from lra.attention.cosformer import CosFormer
from lra.attention.hedgehog import Hedgehog
from lra.attention.linear import RFA, Linear, Performer, RandomFeatures
from lra.checks.properties import block
from lra.reference import linear as reference


@pytest.mark.parametrize("normalise", [True, False])
def test_linear_is_its_kernel_form(normalise):
    """Without a denominator the root of the configured length, 16, divides."""

    def oracle(h, at, q, k, v):
        return (
            reference.linear_attention(q, k, v) if normalise else reference.unnormalised_linear_attention(q, k, v, 16)
        )

    check(Linear(SIZES, normalise=normalise), oracle)


def test_causal_linear_is_its_recurrence():
    check(Linear(SIZES, causal=True), lambda h, at, q, k, v: reference.linear_attention(q, k, v, causal=True))


@pytest.mark.parametrize("scalings", [1, 2])
@pytest.mark.parametrize("eps", [0.0, 1e-4])
def test_performer_is_its_kernel_form(scalings, eps):
    performer = Performer(SIZES, features=10, scalings=scalings, eps=eps).double().eval()
    w = performer.rows.draw

    def oracle(h, at, q, k, v):
        return reference.performer_attention(q, k, v, w, eps=eps, scalings=scalings)

    check(performer, oracle)


def test_performer_with_relu_features_is_its_kernel_form():
    performer = Performer(SIZES, features=10, kernel="relu").double().eval()
    check(performer, lambda h, at, q, k, v: reference.generalised_attention(q, k, v, performer.rows.draw))


@pytest.mark.parametrize("floor", [0.01, 10.0])
def test_rfa_is_its_kernel_form(floor):
    """phi(q)·phi(k) = mean over the rows of cos(w·(q - k)); their mean over the keys is kept at the floor."""
    rfa = RFA(SIZES, features=200, floor=floor).double().eval()
    with torch.no_grad():
        rfa.scale.uniform_(0.3, 0.8, generator=torch.Generator().manual_seed(2))

    def oracle(h, at, q, k, v):
        w = rfa.rows.draw * rfa.scale[h]
        q, k = (x / x.norm(dim=1, keepdim=True) for x in (q, k))
        weights = ((q[:, None] - k) @ w.T).cos().mean(-1)
        return weights @ v / len(v) / weights.mean(1, keepdim=True).clamp(min=floor)

    check(rfa, oracle)


@pytest.mark.parametrize("softmax", ["halves", "joint"])
@pytest.mark.parametrize("tie_qk", [False, True])
def test_hedgehog_is_its_kernel_form(softmax, tie_qk):
    hedgehog = Hedgehog(SIZES, softmax=softmax, tie_qk=tie_qk).double()
    assert (hedgehog.weight == torch.eye(D)).all() and (hedgehog.bias == 0).all()  # where it starts
    with torch.no_grad():
        for parameter in hedgehog.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(2))

    def features(side, h, x):
        y = x @ hedgehog.weight[side, h] + hedgehog.bias[side, h]
        up, down = (2 * y if softmax == "joint" else y).exp(), (-2 * y if softmax == "joint" else -y).exp()
        one, other = (t.sum(1, keepdim=True) for t in (up, down))
        return torch.cat(
            [up / (one + other), down / (one + other)] if softmax == "joint" else [up / one, down / other], 1
        )

    check(hedgehog, lambda h, at, q, k, v: mean(features(0, h, q) @ features(-1, h, k).T, v))


@pytest.mark.parametrize("softmax", ["halves", "joint"])
def test_large_features_of_hedgehog_neither_overflow_nor_vanish(softmax):
    q, k, v = (40 * torch.randn(2, H, 9, D, generator=torch.Generator().manual_seed(i)) for i in range(3))
    out = Hedgehog(SIZES, softmax=softmax)(q.requires_grad_(), k, v)
    out.sum().backward()
    assert out.isfinite().all() and q.grad.isfinite().all()


def test_cosformer_is_its_definition():
    def oracle(h, at, q, k, v):
        cosines = (math.pi * (at[:, None] - at).double() / (2 * SIZES.length)).cos()
        weights = q.relu() @ k.relu().T * cosines
        return weights @ v / weights.sum(1, keepdim=True).clamp(min=1e-6 * len(v))

    check(CosFormer(SIZES), oracle)


def test_a_query_of_cosformer_without_a_weight_gets_zero_and_a_finite_gradient():
    q, k, v = qkv()
    out = CosFormer(SIZES)(-q.abs(), k, v)
    assert (out == 0).all()
    assert all(x.isfinite().all() for x in torch.autograd.grad(out.sum(), (q, k, v)))


@pytest.mark.parametrize(("kind", "spread"), [(Performer, 0.5), (RFA, 1.0)])
def test_many_features_give_softmax_attention(kind, spread):
    """The error is that of a mean: 16 times the features leave a quarter of it."""
    q, k, v = (x.detach() for x in qkv(spread=spread))
    off = []
    for features in (512, 8192):
        made = kind(SIZES, features=features, **({"eps": 0.0} if kind is Performer else {})).double()
        if kind is Performer:
            want = F.scaled_dot_product_attention(q, k, v)
        else:
            made.scale.data.fill_(0.9)
            want = F.scaled_dot_product_attention(F.normalize(q, dim=-1), F.normalize(k, dim=-1), v, scale=0.9**2)
        with torch.no_grad():
            off.append(torch.stack([made(q, k, v) - want for _ in range(8)]).square().mean().sqrt().item())
    assert off[1] < 0.02 and 2.5 < off[0] / off[1] < 6.5


def test_orthogonal_rows_are_orthogonal_and_as_long_as_normal_ones():
    rows = RandomFeatures(4000, 8, redraw="never", orthogonal=True)().unflatten(0, (-1, 8))  # (500,8,8)
    gram = rows @ rows.mT
    lengths = gram.diagonal(dim1=1, dim2=2)
    assert (gram - torch.diag_embed(lengths)).abs().max() < 1e-4
    assert abs(lengths.mean() - 8) < 4 * math.sqrt(2 * 8 / 4000)  # chi-squared with 8 degrees of freedom
    assert abs(lengths.var() - 16) < 3
    assert rows.flatten(0, 1).mean(0).abs().max() < 4 / math.sqrt(4000)  # directions are centred


@pytest.mark.parametrize("name", ["performer", "performer_relu", "rfa", "linear"])
def test_huge_padding_does_no_harm(name):
    """A padded key far beyond the real ones must neither move the stabiliser nor overflow."""
    mechanism = block(config(name, *CHECK_SIZES)).mixer.attention
    q, k, v = (torch.randn(2, 2, 8, 8, dtype=torch.float64) for _ in range(3))
    real = torch.arange(8)[None] < torch.tensor([[8], [5]])
    out = mechanism(q, k, v, real)
    for big in (1e3, -1e3):
        k[1, :, 5:] = big
        assert torch.equal(mechanism(q, k, v, real)[:, :, :5], out[:, :, :5])
