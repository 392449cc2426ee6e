"""Fuzz test of cur_attention: each seed draws a shape, mask, dtype, options and degenerate tokens."""

import math
import random
from functools import partial

import pytest
import torch
import torch.nn.functional as F

from lra.ops.cur import cur_attention
from lra.ops.precision import upcast
from lra.ops.selection import PAIRINGS, SCORES

DTYPES = (torch.float32, torch.float64, torch.bfloat16)
CONTENTS = ("plain", "plain", "plain", "zero tokens", "duplicates", "constant", "zeros", "outlier")
MASKS = ("none", "suffix", "holes", "empty sequence", "all empty", "one for all")


def draw_case(seed):
    """Draw (q, k, v), mask, options, and the weights of the output in the loss."""
    draw, g = random.Random(seed), torch.Generator().manual_seed(seed)
    N, H, L = draw.randint(1, 3), draw.randint(1, 2), draw.choice([1, 2, 3, 7, 16, 33])
    D, E, dtype = draw.choice([1, 2, 8]), draw.choice([1, 4]), draw.choice(DTYPES)
    q, k, v = (draw_tensor(draw, g, (N, H, L, size)).to(dtype) for size in (D, D, E))
    kind, share = draw.choice(MASKS), draw.choice([0.2, 0.6])
    mask = torch.rand(1 if kind == "one for all" else N, L, generator=g) < share
    mask[:, draw.randrange(L)] = True
    if kind == "suffix":
        mask = torch.arange(L) < torch.randint(1, L + 1, (N, 1), generator=g)
    elif kind == "empty sequence":
        mask[draw.randrange(N)] = False
    elif kind == "all empty":
        mask[:] = False
    options = {
        "count": draw.choice([1, 2, 3, 5, 8, L, L + 5]),
        "score": draw.choice(SCORES),
        "pairing": draw.choice(PAIRINGS),
        "class_token": draw.random() < 0.5,
        "copy_rv": draw.random() < 0.5,
        "impl": draw.choice(["sdpa", "eager"]),
        "scale": draw.choice([None, None, 1.0, 0.01]),
        "columns": draw.choice(["kept", "cells"]),
        "steps": draw.choice([None, 0, 1, 4, 4, 6]),
    }
    return (q, k, v), None if kind == "none" else mask, options, torch.randn(v.shape, generator=g, dtype=torch.float64)


def draw_tensor(draw, g, shape):
    x, L = torch.randn(shape, generator=g, dtype=torch.float64), shape[2]
    match draw.choice(CONTENTS):
        case "zero tokens":
            x[:, :, torch.rand(L, generator=g) < 0.5] = 0
        case "duplicates":
            x = x[:, :, torch.randint(0, max(1, L // 3), (L,), generator=g)]
        case "constant":
            x = x[:, :, :1].expand(shape)
        case "zeros":
            x = torch.zeros_like(x)
        case "outlier":
            x[:, :, draw.randrange(L)] *= 100
    return x


def run_with_gradients(function, tensors, weights):
    """Return the output, and the gradients of its sum weighted by ``weights``."""
    tensors = [x.detach().clone().requires_grad_() for x in tensors]
    # score=random draws from the global RNG.
    torch.manual_seed(0)
    out = function(*tensors)
    return out.detach(), torch.autograd.grad((out * weights.to(out.dtype)).sum(), tensors)


def check_case(seed):
    tensors, mask, options, weights = draw_case(seed)
    (N, H, L, _), dtype = tensors[0].shape, tensors[0].dtype
    real = torch.ones(N, L, dtype=torch.bool) if mask is None else mask.expand(N, L)
    wide = real[:, None, :, None].expand(-1, H, -1, 1)
    function = partial(cur_attention, attn_mask=mask, **options)
    out, gradients = run_with_gradients(function, tensors, weights * wide)
    assert all(x.isfinite().all() for x in (out, *gradients)), options

    # Padding has no gradient.
    for gradient in gradients:
        x = gradient.double()
        assert (x * ~wide).abs().max() <= 1e3 * torch.finfo(dtype).eps * x.abs().max(), options

    # Other padding does not change the outputs of real tokens.
    changed_tensors = [torch.where(wide, x, torch.randn_like(x)) for x in tensors]
    new_out, _ = run_with_gradients(function, changed_tensors, weights * wide)
    largest = (tensors[2].double().abs() * wide).max().item()
    scale = max(largest, (out.double() * wide).abs().max().item())
    assert ((new_out - out).double() * wide).abs().max() <= 1e-2 * scale, options
    check_exact_outputs(tensors, real, options, out, largest)


def check_exact_outputs(tensors, real, options, out, largest):
    """Copied outputs must equal softmax, and so must all outputs of columns=cells if all tokens are selected."""
    N, _, L, D = tensors[0].shape
    all_selected = (real.sum(-1) <= options["count"])[:, None].expand(-1, L)
    is_copied = all_selected & options["copy_rv"]
    if options["copy_rv"] and options["class_token"]:
        is_copied = is_copied | (torch.arange(L) == 0)
    q, k, v = (x.double() for x in tensors)
    expected = F.scaled_dot_product_attention(q, k, v, real[:, None, None].expand(N, 1, L, L), scale=options["scale"])
    error = (out.double() - expected).abs().amax((1, 3))  # (N,L)
    eps = torch.finfo(out.dtype).eps
    score = (options["scale"] or D**-0.5) * q.norm(dim=-1).max().item() * k.norm(dim=-1).max().item()

    # Errors: a score 2 D eps of the largest score, a weight twice that relatively, a sum of weights L + 8 roundings.
    if 2 * D * eps * score < 0.1:
        assert (error * (is_copied & real)).max() <= (8 * D * eps * score + 2 * (L + 8) * eps) * largest, options

    # Keys closer than the rounding error of their squared norms may join either cluster; five rounds multiply by 31.
    score_gap = math.sqrt(8 * D * torch.finfo(upcast(tensors[0]).dtype).eps) * score + 2 * D * eps * score
    if options["columns"] == "cells" and score_gap < 0.1:
        bound = 32 * (4 * score_gap + 2 * (L + 8) * eps) * largest
        assert (error * (all_selected & real)).max() <= bound, options


@pytest.mark.parametrize("seeds", [range(150), pytest.param(range(1000, 6000), marks=pytest.mark.slow)], ids=len)
def test_cur_attention_on_random_cases(seeds):
    for seed in seeds:
        check_case(seed)
