"""CUR, cur_plus, Nystromformer and cur_attention against dense float64 references, and the selection of tokens."""

import inspect
import math
import random
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from conftest import assert_error
from support.features import D, E, H, check, masks, mean, qkv, real_rows, sized, weights

from lra.attention.cur import CUR
from lra.attention.cur_plus import CURPlus
from lra.attention.nystrom import Nystrom
from lra.ops import cluster_attention
from lra.ops.cur import CUROptions, cur_attention
from lra.ops.pinv import cubic
from lra.ops.precision import upcast
from lra.ops.selection import PAIRINGS, SCORES, select
from lra.reference import cur as reference
from lra.reference import cur_plus as cur_plus_reference
from lra.reference import mega, nystrom

L = 37
N, LENGTH = 3, 24
# The random cases of cur_attention.
DTYPES = (torch.float32, torch.float64, torch.bfloat16)
CONTENTS = ("plain", "plain", "plain", "zero tokens", "duplicates", "constant", "zeros", "outlier")
MASKS = ("none", "suffix", "holes", "empty sequence", "all empty", "one for all")
IMPLS = pytest.mark.parametrize("impl", ["eager", "sdpa"])


def reference_cur(layer, pinv=reference.cubic_pinv):
    """Return an oracle for ``check``: lra/reference/cur.py with the options and random numbers of a ``CUR``."""
    options = layer.options
    selection = {"pairing": options.pairing, "class_token": options.class_token}

    def oracle(h, at, q, k, v):
        random = (None, None) if layer.draw is None else layer.draw[:, h, at]
        I, J = reference.select(q, k, options.count, options.score, **selection, random=random)
        laplace = lambda a, b: mega.laplace(a @ b.T / len(q))
        f = reference.softmax_weights if options.weights == "softmax" else laplace
        out, rv = reference.attention(q, k, v, q[I], k[J], f=f, pinv=pinv)
        return out.index_copy(0, I, rv) if options.copy_rv else out

    return oracle


@IMPLS
@pytest.mark.parametrize("class_token, copy_rv", [(True, False), (False, True)])
@pytest.mark.parametrize("pairing", PAIRINGS)
@pytest.mark.parametrize("score", SCORES)
def test_cur_matches_reference(score, pairing, class_token, copy_rv, impl):
    """The third example has fewer real tokens than count."""
    options = {"count": 7, "score": score, "pairing": pairing, "class_token": class_token, "copy_rv": copy_rv}
    layer = sized(CUR, **options, pinv=partial(cubic, steps=4), impl=impl)
    check(layer, reference_cur(layer), L)


def test_cur_with_laplace_weights_matches_reference():
    pinv = partial(cubic, steps=4, init="two_norms")
    layer = sized(CUR, count=7, score="abs", weights="laplace", pinv=pinv, impl="eager")
    check(layer, reference_cur(layer, lambda u: nystrom.iterative_pinv(u, 4, u.sum(0).max() * u.sum(1).max())), L)


@IMPLS
@pytest.mark.parametrize("copy_rv", [True, False])
@pytest.mark.parametrize("score", ["abs", "farthest"])
def test_cur_plus_matches_reference(score, copy_rv, impl):
    """Up to 7 tokens are all selected, which gives softmax."""

    def oracle(h, at, q, k, v):
        if len(at) <= 7:
            return mean(weights(q, k), v)
        I, J = reference.select(q, k, 7, score)
        return cur_plus_reference.attention(q, k, v, I, J, copy_rv=copy_rv)

    check(sized(CURPlus, count=7, score=score, copy_rv=copy_rv, impl=impl), oracle, L)


@IMPLS
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_cur_plus_half_precision_error_is_a_few_eps(dtype, impl):
    """The float64 run gets the same rounded inputs, so both select the same tokens and only products are rounded."""
    inputs, mask = [x.to(dtype) for x in qkv(L)], masks(L)["suffix"]
    attention = sized(CURPlus, count=7, impl=impl)
    out, expected = (real_rows(attention(*x, mask), mask) for x in (inputs, [x.double() for x in inputs]))
    assert (out - expected).norm() < 4 * torch.finfo(dtype).eps * expected.norm()


def test_cur_plus_is_exact_for_two_distinct_tokens():
    q, k, v = (x[:, :, :2].repeat(1, 1, 20, 1) for x in qkv(L))
    torch.testing.assert_close(sized(CURPlus, count=5, copy_rv=False)(q, k, v), F.scaled_dot_product_attention(q, k, v))


@IMPLS
@pytest.mark.parametrize("landmarks, kernel", [(8, 9), (1, 33), (16, 0)])
def test_nystrom_matches_reference(landmarks, kernel, impl):
    layer = sized(Nystrom, landmarks=landmarks, kernel=kernel, impl=impl)

    def oracle(h, at, q, k, v):
        attended = nystrom.attention(q, k, v, m=landmarks, steps=6)
        if not kernel:
            return attended
        # The convolution runs over all positions, with zero values at masked ones.
        filled = v.new_zeros(L, v.shape[1]).index_put((at,), v)
        return attended + nystrom.depthwise_convolution(filled, layer.conv.weight[h, 0, :, 0])[at]

    check(layer, oracle, L)


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("pairing", PAIRINGS)
@pytest.mark.parametrize("class_token", [True, False])
@pytest.mark.parametrize("training", [True, False])
def test_selection_is_distinct_and_prefers_real_tokens(score, pairing, class_token, training):
    """The class token is the first real token. The second sequence has left padding."""
    (q, k, _), mask = qkv(L), masks(L)["holes"].clone()
    mask[1, :2] = torch.tensor([False, True])
    selection = {"score": score, "pairing": pairing, "class_token": class_token}
    draw = None if training else torch.rand(2, H, L)
    for selected in select(q, k, CUROptions(count=9, **selection), mask, draw=draw):
        assert selected.shape == (3, H, 9) and selected.dtype == torch.int64
        assert (selected.sort(-1).values.diff() > 0).all()
        for real, heads in zip(mask, selected, strict=True):
            assert real[heads].sum(-1).tolist() == [min(9, int(real.sum()))] * H
            assert not class_token or (heads == real.nonzero()[0]).any(-1).all()
    rows, cols = select(q, k, CUROptions(count=99, **selection), draw=draw)
    assert rows.shape == (3, H, L) and sorted(cols[0, 0].tolist()) == list(range(L))


@IMPLS
@pytest.mark.parametrize("size", [1e-12, 1e-5, 1.0])
def test_cur_plus_gradient_is_bounded_for_small_queries(size, impl):
    """Weights are then nearly uniform, and the correction sees only rounding error, which it must not amplify."""
    (q, k, v), mask = qkv(L), masks(L)["suffix"]
    q, k, v = ((q.detach() * size).float().requires_grad_(), k.float(), v.float())
    out = sized(CURPlus, count=7, impl=impl).float()(q, k, v, mask)
    theirs = F.scaled_dot_product_attention(q, k, v, mask[:, None, None])
    ours, exact = (torch.autograd.grad(real_rows(x * v, mask).sum(), q)[0] for x in (out, theirs))
    assert ours.isfinite().all() and ours.norm() < 2 * exact.norm()
    # The bandwidth is at least eps D / max |k|².
    assert cluster_attention._min_bandwidth(torch.tensor([[[[4.0, 0, 0], [1.0, 0, 0]]]]), 0.5) == 0.5 * 3 / 16


@pytest.mark.parametrize("scale", [None, 0.1])
@pytest.mark.parametrize("shape", ["none", "NL", "N11L", "1L"])
def test_cur_attention_selecting_all_tokens_matches_sdpa(shape, scale):
    (q, k, v), mask = qkv(LENGTH), masks(LENGTH)["suffix"]
    ours = {"none": None, "NL": mask, "N11L": mask[:, None, None], "1L": mask[1:2]}[shape]
    theirs = None if ours is None else ours.reshape(-1, 1, 1, LENGTH)
    real = torch.ones(N, LENGTH, dtype=torch.bool) if ours is None else ours.reshape(-1, LENGTH).expand(N, LENGTH)
    out = cur_attention(q, k, v, ours, 0.0, False, scale=scale, steps=None, copy_rv=False, count=LENGTH)
    expected = F.scaled_dot_product_attention(q, k, v, theirs, 0.0, False, scale=scale)
    assert (out - expected).transpose(1, 2)[real].abs().max() < 1e-9


def test_cur_attention_signature_matches_torch_sdpa():
    ours = [p for p in inspect.signature(cur_attention).parameters.values() if p.kind is not p.KEYWORD_ONLY]
    assert [p.name for p in ours] == ["query", "key", "value", "attn_mask", "dropout_p", "is_causal"]
    assert [p.default for p in ours[3:]] == [None, 0.0, False]


@pytest.mark.parametrize("score", ["step", "abs", "farthest"])
def test_cur_attention_matches_module(score):
    (q, k, v), mask = qkv(LENGTH), masks(LENGTH)["suffix"]
    options = {"score": score, "count": 6, "class_token": True}
    if score == "farthest":
        module = sized(CURPlus, LENGTH, **options)
        function = partial(cur_attention, columns="cells", **options)
    else:
        options["pairing"] = "same_k"
        module = sized(CUR, LENGTH, pinv=partial(cubic, steps=3), **options)
        function = partial(cur_attention, steps=3, **options)
    torch.testing.assert_close(function(q, k, v, mask), module(q, k, v, mask), rtol=0, atol=0)
    assert function(q.bfloat16(), k.bfloat16(), v.bfloat16(), mask).dtype is torch.bfloat16


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"is_causal": True}, "is_causal=True: .*no causal form"), ({"dropout_p": 0.1}, "dropout_p must be 0, not 0.1"),
        ({"key": torch.zeros(N, H, LENGTH + 1, D)}, r"not \(3, 2, 24, 4\), \(3, 2, 25, 4\), \(3, 2, 24, 3\)"),
        ({"value": torch.zeros(N, 1, LENGTH, E)}, r"query, key and value must be \(N,H,L,D\)"),
        ({"attn_mask": torch.zeros(N, 1, 1, LENGTH)}, r"attn_mask must be bool.*not torch.float32 \(3, 1, 1, 24\)"),
        ({"attn_mask": torch.eye(LENGTH).bool()}, r"attn_mask must be bool, .* torch.bool \(24, 24\)"),
        ({"columns": "all"}, "columns must be one of kept, cells, not 'all'"),
        ({"columns": "cells", "impl": "triton"}, "impl must be one of eager, sdpa, not 'triton'"),
        ({"count": 0}, "count must be 1 or more, not 0"), ({"score": "best"}, "score must be one of sum, abs"),
        ({"steps": -1}, "steps must be 0 or more, not -1"),
    ],
    ids=lambda x: next(iter(x)) if isinstance(x, dict) else "",
)  # fmt: skip
def test_cur_attention_rejects_invalid_arguments(changes, reason):
    (q, k, v), mask = qkv(LENGTH), masks(LENGTH)["suffix"]
    assert_error(reason, cur_attention, **({"query": q, "key": k, "value": v, "attn_mask": mask} | changes))


def draw_case(seed):
    """Draw (q, k, v), mask, options, and the weights of the output in the loss; options include degenerate tokens."""
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
        assert (error * (all_selected & real)).max() <= 32 * (4 * score_gap + 2 * (L + 8) * eps) * largest, options


@pytest.mark.parametrize("seeds", [range(150), pytest.param(range(1000, 6000), marks=pytest.mark.slow)], ids=len)
def test_cur_attention_on_random_cases(seeds):
    for seed in seeds:
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
