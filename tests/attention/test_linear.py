"""Linear attention, Performer, RFA, Hedgehog, cosFormer, Based and LION against quadratic forms and softmax."""

import math

import pytest
import torch
import torch.nn.functional as F
from support.features import SIZES, TOKEN_SIZES, D, H, check, qkv

from lra.attention.based import Based
from lra.attention.cosformer import CosFormer
from lra.attention.hedgehog import Hedgehog
from lra.attention.linear import RFA, Linear, Performer, RandomFeatures
from lra.attention.lion import LionD, LionS
from lra.reference import feature_maps
from lra.reference import linear as reference

LINEAR = [({}, 12), ({"causal": True}, 12), ({"causal": True}, 130), ({"normalise": False}, 12)]
PERFORMER = [{"scalings": scalings, "eps": eps} for scalings in (1, 2) for eps in (0.0, 1e-4)]


@pytest.mark.parametrize(("options", "length"), LINEAR, ids=str)
def test_linear_attention_matches_quadratic_form(options, length):
    """130 tokens are three blocks of the causal sums; normalise=False divides by the root of the configured length."""

    def oracle(h, at, q, k, v):
        if options == {"normalise": False}:
            return reference.unnormalised_linear_attention(q, k, v, SIZES.length)
        return reference.linear_attention(q, k, v, **options)

    check(Linear(SIZES, **options), oracle, length)


@pytest.mark.parametrize("options", [*PERFORMER, {"kernel": "relu"}], ids=str)
def test_performer_matches_quadratic_form(options):
    performer = Performer(SIZES, features=10, **options).double().eval()

    def oracle(h, at, q, k, v):
        if "kernel" in options:
            return reference.generalised_attention(q, k, v, performer.rows.draw)
        return reference.performer_attention(q, k, v, performer.rows.draw, **options)

    check(performer, oracle)


@pytest.mark.parametrize("floor", [0.01, 10.0])
def test_rfa_matches_reference(floor):
    rfa = RFA(SIZES, features=200, floor=floor).double().eval()
    with torch.no_grad():
        rfa.scale.uniform_(0.3, 0.8, generator=torch.Generator().manual_seed(2))

    def oracle(h, at, q, k, v):
        return feature_maps.rfa_attention(q, k, v, rfa.rows.draw * rfa.scale[h], floor=floor)

    check(rfa, oracle)


@pytest.mark.parametrize("softmax", ["halves", "joint"])
@pytest.mark.parametrize("tie_qk", [False, True])
def test_hedgehog_matches_reference(softmax, tie_qk):
    hedgehog = Hedgehog(SIZES, softmax=softmax, tie_qk=tie_qk).double()
    # The feature map starts as the identity.
    assert (hedgehog.weight == torch.eye(D)).all() and (hedgehog.bias == 0).all()
    with torch.no_grad():
        for parameter in hedgehog.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(2))

    def oracle(h, at, q, k, v):
        phi_q, phi_k = (
            feature_maps.hedgehog_features(x, hedgehog.weight[side, h], hedgehog.bias[side, h, 0], softmax)
            for side, x in ((0, q), (-1, k))
        )
        return feature_maps.feature_attention(phi_q, phi_k, v)

    check(hedgehog, oracle)


def test_features_of_large_inputs_estimate_their_definition():
    """In float32, where exponents of small features underflow: Performer without eps, and nearly disjoint features."""
    q, k, v = (torch.randn(2, H, 9, D, generator=torch.Generator().manual_seed(i)) for i in range(3))
    modules = [Performer(SIZES, eps=0, redraw="never"), Hedgehog(SIZES), Hedgehog(SIZES, softmax="joint")]
    for module, scale in zip(modules, (6, 50, 50), strict=True):
        inputs = [(scale * x).requires_grad_() for x in (q, k)]
        out = module.eval()(*inputs, v)
        exact = module.double()(*(x.double() for x in inputs), v.double())
        torch.testing.assert_close(out, exact.float(), rtol=1e-3, atol=1e-3)
        out.square().sum().backward()
        assert all(x.grad.isfinite().all() for x in inputs)


def test_cosformer_matches_reference():
    check(CosFormer(SIZES), lambda h, at, q, k, v: feature_maps.cosformer_attention(q, k, v, at, SIZES.length))


@pytest.mark.parametrize(("kind", "spread"), [(Performer, 0.5), (RFA, 1.0)])
def test_random_features_converge_to_softmax(kind, spread):
    """The error of a Monte Carlo mean falls with 1 / √features: 16 times the features leave a quarter of it."""
    torch.manual_seed(0)
    q, k, v = (x.detach() for x in qkv(spread=spread))
    if kind is Performer:
        options, expected = {"eps": 0.0}, F.scaled_dot_product_attention(q, k, v)
    else:
        unit_q, unit_k = (F.normalize(x, dim=-1) for x in (q, k))
        options, expected = {}, F.scaled_dot_product_attention(unit_q, unit_k, v, scale=0.9**2)
    errors = []
    for features in (512, 8192):
        attention = kind(SIZES, features=features, **options).double()
        if kind is RFA:
            attention.scale.data.fill_(0.9)
        with torch.no_grad():
            draws = torch.stack([attention(q, k, v) for _ in range(8)])
        errors.append((draws - expected).square().mean().sqrt().item())
    assert errors[1] < 0.02 and 2.5 < errors[0] / errors[1] < 6.5


def test_orthogonal_features_have_gaussian_norms():
    torch.manual_seed(0)
    blocks = RandomFeatures(4000, 8, redraw="never", orthogonal=True)().unflatten(0, (-1, 8))  # (500,8,8)
    gram = blocks @ blocks.mT
    squared_norms = gram.diagonal(dim1=1, dim2=2)
    assert (gram - torch.diag_embed(squared_norms)).abs().max() < 1e-4
    # Squared norms of normal vectors: chi-squared with 8 degrees of freedom, mean 8 and variance 16.
    assert abs(squared_norms.mean() - 8) < 4 * math.sqrt(2 * 8 / 4000) and abs(squared_norms.var() - 16) < 3
    assert blocks.flatten(0, 1).mean(0).abs().max() < 4 / math.sqrt(4000)


@pytest.mark.parametrize("causal", [False, True])
def test_based_matches_reference(causal):
    q, k, v = (x.detach() for x in qkv(E=D))
    out = Based(TOKEN_SIZES, dim=H * D, causal=causal, features=4).attend(q, k, v, None)
    for n in range(len(q)):
        for h in range(H):
            expected = feature_maps.based_attention(q[n, h], k[n, h], v[n, h], causal=causal)
            torch.testing.assert_close(out[n, h], expected)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kind", [LionS, LionD])
def test_lion_matches_attention_with_decay_mask(kind, causal):
    """M_ij is the product of the decays from j to i - 1 below the diagonal and from i + 1 to j above it (eq. 9)."""
    L = 70  # two chunks
    mixer = kind(TOKEN_SIZES, dim=H * D, causal=causal).double()
    x = torch.randn(2, L, H * D, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    q, k, v = (part.unflatten(-1, (H, D)).transpose(1, 2) for part in mixer.inputs(x).chunk(3, -1))
    phi_q, phi_k = (F.normalize(F.silu(part) + 0.5, dim=-1) for part in (q, k))
    log_decay = mixer.log_decay(x)
    mask = torch.zeros(2, H, L, L, dtype=torch.float64)
    for i in range(L):
        for j in range(i + 1 if causal else L):
            decays_between = log_decay[:, :, j:i] if j <= i else log_decay[:, :, i + 1 : j + 1]
            mask[:, :, i, j] = decays_between.sum(-1).exp()
    weights = (phi_q @ phi_k.mT) * mask
    attended = (weights / weights.sum(-1, keepdim=True)) @ v
    torch.testing.assert_close(mixer(x), mixer.output(attended.transpose(1, 2).flatten(2)))
