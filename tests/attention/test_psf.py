"""PSF against the product of its factors as dense matrices, in float64, and in the form of its own one-block model."""

import itertools
import math
from dataclasses import replace

import pytest
import torch
from conftest import LAWFUL, config
from support.features import masks

from lra.attention.base import Sizes
from lra.attention.psf import PSF
from lra.laws.laws import block, inputs

DIM, L = 6, 11
SIZES = Sizes(heads=2, head_dim=3, value_dim=3, length=16)


def factor(w, offsets):
    """Dense W (n,n) of one example: W[i, (i + offset) mod n] += w[i, k]."""
    n = len(w)
    dense = [[0.0] * n for _ in range(n)]
    for i, (k, offset) in itertools.product(range(n), enumerate(offsets)):
        dense[i][(i + offset) % n] = dense[i][(i + offset) % n] + w[i, k]
    return torch.stack([torch.stack([torch.as_tensor(c, dtype=w.dtype) for c in row]) for row in dense])


def oracle(psf, x, offsets):
    """x (n,d): the real tokens of one example."""
    first = psf.values(x)
    v = first
    for f in psf.weights:
        v = factor(f(x), offsets) @ v + (first if psf.residuals else 0)
    return psf.output(v)


@pytest.mark.parametrize("pattern", ["none", "suffix", "holes"])
@pytest.mark.parametrize("ring", ["real", "row"])
@pytest.mark.parametrize(
    "options, offsets",
    [
        ({}, [0, 1, 2, 4, 8]),
        ({"links": "paper"}, [0, 1, 2, 4]),
        ({"links": 6, "factors": 2}, [0, 1, 2, 4, 8, 16]),
        ({"links": 1, "factors": 1}, [0]),
        ({"residuals": True}, [0, 1, 2, 4, 8]),
        ({"channels": 4}, [0, 1, 2, 4, 8]),
        ({"channels": 4, "project": False, "hidden": 3, "value_hidden": 5}, [0, 1, 2, 4, 8]),
    ],
    ids=str,
)
def test_equals_the_product_of_dense_factors_with_its_gradients(pattern, ring, options, offsets):
    torch.manual_seed(0)
    psf, mask = PSF(SIZES, dim=DIM, **options, ring=ring).double(), masks(L)[pattern]
    assert len(psf.weights) == options.get("factors", 4)
    x = torch.randn(3, L, DIM, dtype=torch.float64, requires_grad=True)
    real = torch.ones(3, L, dtype=torch.bool) if mask is None or ring == "row" else mask
    got = psf(x, mask)[real]
    want = torch.cat([oracle(psf, x[n, real[n]], offsets) for n in range(3)])
    assert got.shape[-1] == (4 if options.get("project") is False else DIM)
    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-12)
    weight = torch.randn_like(want)
    leaves = [x, *psf.parameters()]
    for a, b in zip(*(torch.autograd.grad((y * weight).sum(), leaves) for y in (got, want)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(
    "length, factors, code, paper",
    [
        (128, 7, 8, 7),
        (1024, 10, 11, 10),
        (2000, 11, 12, 11),
        (2048, 11, 12, 11),
        (4096, 12, 13, 12),
        (16384, 14, 15, 14),
    ],
)
def test_factors_and_links_follow_the_length(length, factors, code, paper):
    made = {links: PSF(replace(SIZES, length=length), dim=DIM, links=links) for links in ("code", "paper")}
    assert len(made["code"].weights) == len(made["paper"].weights) == factors == math.ceil(math.log2(length))
    assert made["code"].offsets.tolist() == [0, *(2**j for j in range(code - 1))]
    assert made["paper"].offsets.tolist() == [0, *(2**j for j in range(paper - 1))]


def test_a_link_that_wraps_onto_its_row_counts_twice():
    """Pathfinder's 11 factors of 12 links at length 1024: the last offset is the row itself."""
    psf = PSF(replace(SIZES, length=1024), dim=DIM, factors=11, links=12)
    columns = psf.columns(1, 1024, None)[0]
    assert (columns[:, 0] == columns[:, -1]).all() and psf.offsets[-1] == 1024


def set_factor(psf, m, numbers):
    """Make row i of factor m ``numbers`` whatever the token is."""
    with torch.no_grad():
        psf.weights[m][-1].weight.zero_()
        psf.weights[m][-1].bias.copy_(torch.tensor(numbers))


@pytest.mark.parametrize("padding", [0, 5])
def test_factors_of_a_half_each_average_over_the_real_tokens(padding):
    """Exact limit: (I + S^1)/2 (I + S^2)/2 (I + S^4)/2 (I + S^8)/2 is the mean over 16 tokens, S the cyclic shift."""
    psf = PSF(SIZES, dim=DIM).double()
    for m in range(4):
        set_factor(psf, m, [0.5] + [0.5 if j == m else 0.0 for j in range(4)])
    x = torch.randn(2, 16 + padding, DIM, dtype=torch.float64)
    mask = torch.ones(2, 16 + padding, dtype=torch.bool)
    mask[0, [1, 3, 4, 8, 9][:padding]] = False
    mask[1, 16:] = False
    values, out = psf.values(x), psf(x, mask)
    for n in range(2):
        want = values[n, mask[n]].mean(0, keepdim=True).expand(16, -1)
        torch.testing.assert_close(out[n, mask[n]], want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("tokens", [16, 13, 2])
def test_every_real_token_reaches_every_other(tokens):
    psf = PSF(SIZES, dim=DIM).double()
    x = torch.randn(1, 16, DIM, dtype=torch.float64)
    mask = torch.arange(16)[None] < tokens
    jacobian = torch.autograd.functional.jacobian(lambda x: psf(x, mask)[0, :, 0], x)[:, 0].abs().sum(-1)
    assert (jacobian[:tokens, :tokens] > 0).all() and (jacobian[:, tokens:][:tokens] == 0).all()


def test_original_is_the_same_where_nothing_is_padded():
    psf = config("psf", *LAWFUL)
    ours, original = block(psf), block(config("psf_original", *LAWFUL))
    assert torch.equal(ours(inputs(psf)[0], None)[0], original(inputs(psf)[0], None)[0])


def test_plain_block_is_the_mixer_alone():
    psf = config("psf", *LAWFUL, "block=plain", "attn.channels=8", "attn.project=false", "attn.residuals=true")
    made, (x, mask) = block(psf), inputs(psf)
    out, memory = made(x, mask)
    assert memory is None and out.shape == (*x.shape[:2], 8) and torch.equal(out, made.mixer(x, mask))


def test_plain_block_has_the_published_parameters():
    """Pathfinder (docs/sources.md, PSF-Attn): g 32 -> 128 -> 32 and 11 times f 32 -> 128 -> 12, nothing else."""
    sizes = ("model.dim=32", "task.length=1024", "attn.factors=11", "attn.links=12")
    made = config("psf", "block=plain", *sizes, "attn.hidden=128", "attn.value_hidden=128").block_factory()()
    mlp = lambda i, h, o: (i + 1) * h + (h + 1) * o
    assert sum(p.numel() for p in made.parameters()) == mlp(32, 128, 32) + 11 * mlp(32, 128, 12)
