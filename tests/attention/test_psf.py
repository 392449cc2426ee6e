"""PSF against lra/reference/psf.py, in float64."""

import math
from dataclasses import replace

import pytest
import torch
from support.features import masks, same_with_gradients

from lra.attention.base import Sizes
from lra.attention.psf import PSF
from lra.reference import psf as reference

DIM, L = 6, 11
SIZES = Sizes(heads=2, head_dim=3, value_dim=3, length=16)


def oracle(psf, x):
    """x (n,d): the real tokens of one example."""
    return psf.output(reference.attention(x, psf.values, list(psf.weights), residuals=psf.residuals))


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
def test_is_the_reference_with_its_gradients(pattern, ring, options, offsets):
    torch.manual_seed(0)
    psf, mask = PSF(SIZES, dim=DIM, **options, ring=ring).double(), masks(L)[pattern]
    assert len(psf.weights) == options.get("factors", 4) and psf.offsets.tolist() == offsets
    x = torch.randn(3, L, DIM, dtype=torch.float64, requires_grad=True)
    real = torch.ones(3, L, dtype=torch.bool) if mask is None or ring == "row" else mask
    got = psf(x, mask)[real]
    want = torch.cat([oracle(psf, x[n, real[n]]) for n in range(3)])
    assert got.shape[-1] == (4 if options.get("project") is False else DIM)
    same_with_gradients(got, want, [x, *psf.parameters()])


@pytest.mark.parametrize("length", [128, 1024, 2000, 4096])
def test_factors_and_links_follow_the_length(length):
    """The code has one link more than the paper."""
    factors = math.ceil(math.log2(length))
    for links, count in (("code", factors + 1), ("paper", factors)):
        made = PSF(replace(SIZES, length=length), dim=DIM, links=links)
        assert len(made.weights) == factors
        assert made.offsets.tolist() == [0, *(2**j for j in range(count - 1))]
