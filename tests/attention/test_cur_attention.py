"""cur_attention beside torch's scaled_dot_product_attention, and the mechanism behind it."""

import inspect
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.features import D, E, H, masks, sized
from support.features import qkv as drawn

from lra.attention.cur import CUR
from lra.attention.cur_plus import CURPlus
from lra.ops.cur import cur_attention
from lra.ops.pinv import cubic

N, L = 3, 24
TRUE = {"steps": None, "copy_rv": False, "count": L}


def qkv():
    return *drawn(L), masks(L)["suffix"]


@pytest.mark.parametrize("scale", [None, 0.1])
@pytest.mark.parametrize("shape", ["none", "NL", "N11L", "1L"])
def test_keeping_everything_is_torchs(shape, scale):
    q, k, v, mask = qkv()
    ours = {"none": None, "NL": mask, "N11L": mask[:, None, None], "1L": mask[1:2]}[shape]
    theirs = None if ours is None else ours.reshape(-1, 1, 1, L)
    real = torch.ones(N, L, dtype=torch.bool) if ours is None else ours.reshape(-1, L).expand(N, L)
    got = cur_attention(q, k, v, ours, 0.0, False, scale=scale, **TRUE)
    expected = F.scaled_dot_product_attention(q, k, v, theirs, 0.0, False, scale=scale)
    assert (got - expected).transpose(1, 2)[real].abs().max() < 1e-9


def test_arguments_that_overlap_have_torchs_names_order_and_defaults():
    ours = [p for p in inspect.signature(cur_attention).parameters.values() if p.kind is not p.KEYWORD_ONLY]
    assert [p.name for p in ours] == ["query", "key", "value", "attn_mask", "dropout_p", "is_causal"]
    assert [p.default for p in ours[3:]] == [None, 0.0, False]


MODULES = [
    (partial(CUR, pinv=partial(cubic, steps=3)), {"steps": 3}, {"score": "step", "pairing": "same_k"}),
    (partial(CUR, pinv=partial(cubic, steps=3)), {"steps": 3}, {"score": "abs", "pairing": "same_k"}),
    (CURPlus, {"columns": "cells"}, {"score": "farthest"}),
]


@pytest.mark.parametrize("module, own, options", MODULES, ids=["step", "abs", "cells"])
def test_it_is_the_mechanism(module, own, options):
    q, k, v, mask = qkv()
    options |= {"count": 6, "class_token": True}
    made = sized(module, length=L, **options)
    torch.testing.assert_close(cur_attention(q, k, v, mask, **own, **options), made(q, k, v, mask), rtol=0, atol=0)
    half = [x.bfloat16() for x in (q, k, v)]
    assert cur_attention(*half, mask, **own, **options).dtype is torch.bfloat16


@pytest.mark.parametrize("two", [np.int64(2), np.array(2), torch.tensor(2)], ids=["np.int64", "np.array", "tensor"])
def test_whole_numbers_of_numpy_and_torch_are_numbers(two):
    q, k, v, mask = qkv()
    got, expected = (cur_attention(q, k, v, mask, count=n, steps=n) for n in (two, 2))
    assert torch.equal(got, expected)


@pytest.mark.parametrize("columns", ["kept", "cells"])
@pytest.mark.parametrize("shape", [(0, H, L), (N, 0, L)])
def test_no_example_or_no_head_is_an_empty_result(shape, columns):
    q, v = torch.ones(*shape, D, requires_grad=True), torch.ones(*shape, E)
    out = cur_attention(q, q, v, columns=columns)
    assert out.shape == v.shape and torch.autograd.grad(out.sum(), q)[0].shape == q.shape


@pytest.mark.parametrize(
    "changes,reason",
    [
        ({"is_causal": True}, "is_causal=True: .*no causal form"),
        ({"dropout_p": 0.1}, "dropout_p must be 0, not 0.1"),
        ({"key": torch.zeros(N, H, L + 1, D)}, r"not \(3, 2, 24, 4\), \(3, 2, 25, 4\), \(3, 2, 24, 3\)"),
        ({"value": torch.zeros(N, 1, L, E)}, r"query, key and value must be \(N,H,L,D\)"),
        ({"query": torch.zeros(L, D), "key": torch.zeros(L, D)}, r"query, key and value must be \(N,H,L,D\)"),
        ({"attn_mask": torch.zeros(N, 1, 1, L)}, r"attn_mask must be bool.*not torch.float32 \(3, 1, 1, 24\)"),
        ({"attn_mask": torch.ones(L, L, dtype=torch.bool)}, r"attn_mask must be bool, .* torch.bool \(24, 24\)"),
        ({"columns": "all"}, "columns must be one of kept, cells, not 'all'"),
        ({"columns": "cells", "impl": "triton"}, "impl must be one of eager, sdpa, not 'triton'"),
        ({"query": torch.zeros(N, H, L, 0), "key": torch.zeros(N, H, L, 0)}, "at least one token and one feature"),
        ({"count": 0}, "count must be 1 or more, not 0"),
        ({"count": 1.5}, "count must be a whole number of 1 or more, not 1.5"),
        ({"count": True}, "count must be a whole number of 1 or more, not True"),
        ({"count": np.bool_(True)}, r"count must be a whole number of 1 or more, not .*True"),
        ({"steps": 1.5}, "steps must be a whole number of 0 or more, not 1.5"),
        ({"steps": False}, "steps must be a whole number of 0 or more, not False"),
        ({"score": "best"}, "score must be one of sum, abs"),
        ({"steps": -1}, "steps must be 0 or more, not -1"),
    ],
    ids=lambda x: next(iter(x)) if isinstance(x, dict) else "",
)
def test_what_it_cannot_do_is_refused(changes, reason):
    q, k, v, mask = qkv()
    with pytest.raises(ValueError, match=reason):
        cur_attention(**({"query": q, "key": k, "value": v, "attn_mask": mask} | changes))
