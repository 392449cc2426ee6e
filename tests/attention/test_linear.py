"""Linear attention, Performer and RFA against their O(n²) kernel forms in float64, and against softmax attention."""

import math

import pytest
import torch
import torch.nn.functional as F
from conftest import LAWFUL, config
from support.features import PATTERNS, SIZES, D, check, masks, qkv

from lra.attention.linear import RFA, Linear, Performer, RandomFeatures
from lra.laws.laws import block


@PATTERNS
def test_linear_is_its_kernel_form(pattern):
    kernel = lambda h, q, k: (F.elu(k) + 1) @ (F.elu(q) + 1)
    check(Linear(SIZES), kernel, masks()[pattern])


@PATTERNS
def test_linear_without_a_denominator_divides_by_the_root_of_the_length(pattern):
    kernel = lambda h, q, k: (F.elu(k) + 1) / 16**0.25 @ ((F.elu(q) + 1) / 16**0.25)
    check(Linear(SIZES, normalise=False), kernel, masks()[pattern], normalise=False)


@PATTERNS
@pytest.mark.parametrize("scalings", [1, 2])
@pytest.mark.parametrize("eps", [0.0, 1e-4])
def test_performer_is_its_kernel_form(pattern, scalings, eps):
    performer = Performer(SIZES, features=10, scalings=scalings, eps=eps).double().eval()
    w = performer.rows.draw

    def kernel(h, q, k):
        q, k = q / D ** (scalings / 4), k / D ** (scalings / 4)
        log_q, log_k = w @ q - q @ q / 2, k @ w.T - (k * k).sum(1, keepdim=True) / 2
        return ((log_k - (k @ w.T).max()).exp() + eps) @ ((log_q - (w @ q).max()).exp() + eps)

    check(performer, kernel, masks()[pattern])


@PATTERNS
def test_performer_with_relu_features_is_its_kernel_form(pattern):
    performer = Performer(SIZES, features=10, kernel="relu").double().eval()
    w = performer.rows.draw / D**0.25
    check(performer, lambda h, q, k: ((k @ w.T).relu() + 0.001) @ ((w @ q).relu() + 0.001), masks()[pattern])


@PATTERNS
def test_rfa_is_its_kernel_form(pattern):
    """phi(q)·phi(k) = mean over the rows of cos(w·(q - k))."""
    rfa = RFA(SIZES, features=200).double().eval()
    with torch.no_grad():
        rfa.scale.uniform_(0.3, 0.8, generator=torch.Generator().manual_seed(2))

    def kernel(h, q, k):
        w = rfa.rows.draw * rfa.scale[h]
        return ((q / q.norm() - k / k.norm(dim=1, keepdim=True)) @ w.T).cos().mean(1)

    check(rfa, kernel, masks()[pattern])


def test_rfa_keeps_the_mean_kernel_at_the_floor():
    q, k, v = qkv()
    high = RFA(SIZES, features=50, floor=10.0).double().eval()
    low = RFA(SIZES, features=50, floor=1e-9).double().eval()
    low.load_state_dict(high.state_dict())
    w = high.rows.draw
    phi = lambda x: torch.cat([(F.normalize(x, dim=-1) @ w.T).sin(), (F.normalize(x, dim=-1) @ w.T).cos()], -1)
    mean = (phi(q) @ phi(k).mT).mean(-1, keepdim=True) / 50
    torch.testing.assert_close(high(q, k, v) * 10, low(q, k, v) * mean)


def deviation(made, want, q, k, v, draws):
    """Root mean square error over draws of the random rows."""
    with torch.no_grad():
        return torch.stack([made(q, k, v) - want for _ in range(draws)]).square().mean().sqrt().item()


def test_many_performer_features_give_softmax_attention():
    """One feature's relative variance is exp(|q + k|²) - 1 at most, so with r of them the weights of a row, and a mean
    of values within max |v| under them, err by less than 2 · 4 · sqrt((exp |q + k|² - 1) / r) · max |v| (4 deviations).
    """
    q, k, v = (x.detach() for x in qkv(spread=0.5))
    want = F.scaled_dot_product_attention(q, k, v)
    spread = ((q[:, :, :, None] + k[:, :, None]) / D**0.25).square().sum(-1).max()
    made = {r: Performer(SIZES, features=r, eps=0.0).double() for r in (512, 8192)}
    for r, performer in made.items():
        bound = 8 * math.sqrt((spread.exp() - 1) / r) * v.abs().max()
        assert (performer(q, k, v) - want).abs().max() < bound
    coarse, fine = (deviation(performer, want, q, k, v, 8) for performer in made.values())
    assert fine < 0.01 and 2.5 < coarse / fine < 6.5  # 16 times the features: a quarter of the error


def test_many_rfa_features_give_softmax_attention():
    """A feature pair's variance is (1 - kernel²)² / 2, the kernel at least exp(-2 scale²): 4 deviations as above."""
    q, k, v = (x.detach() for x in qkv())
    scale = 0.9
    want = F.scaled_dot_product_attention(F.normalize(q, dim=-1), F.normalize(k, dim=-1), v, scale=scale**2)
    made = {r: RFA(SIZES, features=r).double() for r in (512, 8192)}
    for r, rfa in made.items():
        rfa.scale.data.fill_(scale)
        assert (rfa(q, k, v) - want).abs().max() < 8 * math.exp(2 * scale**2) * math.sqrt(0.5 / r) * v.abs().max()
    coarse, fine = (deviation(rfa, want, q, k, v, 8) for rfa in made.values())
    assert fine < 0.02 and 2.5 < coarse / fine < 6.5


def test_orthogonal_rows_are_orthogonal_and_as_long_as_normal_ones():
    rows = RandomFeatures(4000, 8, redraw="never", orthogonal=True)().unflatten(0, (-1, 8))  # (500,8,8)
    gram = rows @ rows.mT
    lengths = gram.diagonal(dim1=1, dim2=2)
    assert (gram - torch.diag_embed(lengths)).abs().max() < 1e-4
    assert abs(lengths.mean() - 8) < 4 * math.sqrt(2 * 8 / 4000)  # chi-squared with 8 degrees of freedom
    assert abs(lengths.var() - 16) < 3
    assert rows.flatten(0, 1).mean(0).abs().max() < 4 / math.sqrt(4000)  # directions are centred


@pytest.mark.parametrize("made", [Performer, RFA])
def test_rows_are_drawn_once_if_told(made):
    q, k, v = (x.detach() for x in qkv())
    kept = made(SIZES, redraw="never").double()
    assert torch.equal(kept(q, k, v), kept.eval()(q, k, v))


@pytest.mark.parametrize("name", ["performer", "performer_relu", "rfa", "linear"])
def test_huge_padding_does_no_harm(name):
    """A padded key far beyond the real ones must neither move the stabiliser nor overflow."""
    mechanism = block(config(name, *LAWFUL)).mixer.attention
    q, k, v = (torch.randn(2, 2, 8, 8, dtype=torch.float64) for _ in range(3))
    real = torch.arange(8)[None] < torch.tensor([[8], [5]])
    out = mechanism(q, k, v, real)
    for big in (1e3, -1e3):
        k[1, :, 5:] = big
        assert torch.equal(mechanism(q, k, v, real)[:, :, :5], out[:, :, :5])
