"""Precision: thin products of packed sequences with sums in float32, and full precision inside autocast."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from support.features import all_real, masks, same_with_gradients, tokens

from lra.ops import segment_means, varlen_attention
from lra.ops.attention_maps import landmark_product
from lra.ops.pinv import exact
from lra.ops.precision import full_precision
from lra.reference import nystrom
from lra.varlen import VarlenLayout


def layout(lengths=(13, 4, 8, 1, 7, 5, 13, 6, 2, 3), **sizes):
    return VarlenLayout(torch.arange(max(lengths)) < torch.tensor(lengths)[:, None], **sizes)


def drawn(rows):
    """q, k, v of kept tokens and of all."""
    g, N, T = torch.Generator().manual_seed(0), len(rows.lengths), len(rows.positions)
    kept = [torch.randn(N, 2, 3, d, generator=g, dtype=torch.float64) for d in (5, 5, 6)]
    real = [torch.randn(1, 2, int(rows.real.sum()), d, generator=g, dtype=torch.float64) for d in (5, 5, 6)]
    if rows.filled is not None:
        real = [x.new_full((1, 2, T, x.shape[3]), 7.0).index_copy(2, rows.filled[0].nonzero()[:, 0], x) for x in real]
    return [x.requires_grad_() for x in (*kept, *real)]


def row_by_row(q, k, v, rows):
    """Attention of each row alone, without anything of ``VarlenLayout`` but the lengths."""
    split = lambda x: x.split(rows.lengths, 2) if len(x) == 1 else x.split(1)
    out = [F.scaled_dot_product_attention(*row) for row in zip(*map(split, (q, k, v)), strict=True)]
    return torch.cat(out, 2 if len(q) == 1 else 0)


def both(rows, attend):
    """Results of both products with the gradients of their real tokens, and the gradients of what fills them up."""
    given = q, k, v, qs, ks, vs = drawn(rows)
    rv, out = attend(q, ks, vs, rows), attend(qs, k, v, rows)
    real = torch.ones(len(rows.positions), dtype=torch.bool) if rows.filled is None else rows.filled[0]
    out = out[:, :, real]
    weight = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)
    grads = torch.autograd.grad(rv.square().sum() + (out * weight).sum(), given)
    return [rv, out, *grads[:3], *(g[:, :, real] for g in grads[3:])], [g[:, :, ~real] for g in grads[3:]]


@pytest.mark.parametrize("written_out", [False, True])
@pytest.mark.parametrize("sizes", [{}, {"multiple": 32}], ids=str)
def test_products_and_gradients_are_those_row_by_row(sizes, written_out, monkeypatch):
    expected, _ = both(layout(), row_by_row)
    monkeypatch.setattr(varlen_attention, "is_slow_fused", lambda x: written_out)
    found, filled = both(layout(**sizes), varlen_attention.attend_thin)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)
    assert not any(grad.any() for grad in filled)


def test_places_of_a_layout_filled_up():
    rows, plain = layout([13, 4, 8, 1], multiple=32), layout([13, 4, 8, 1])
    assert rows.starts.tolist() == [0, 13, 17, 25] and rows.tail == 6 and rows.filled.sum() == 26
    assert layout([4, 8], multiple=4).filled is None
    x = torch.randn(4, 2, 13, 5) * rows.mask[:, None, :, None]
    flat = rows.pack(x, 2)
    assert flat.shape == (1, 2, 32, 5) and torch.equal(rows.unpack(flat, 2), x)
    assert torch.equal(rows.positions[rows.filled[0]], plain.positions)
    torch.testing.assert_close(rows.sum(flat[:, 0]), x[:, 0].sum(1))
    scores = torch.randn(4, 2, 13)
    tops = [each.positions[each.top(each.pack(scores, 2), 1)] for each in (rows, plain)]
    assert torch.equal(*tops)


def test_rows_are_summed_in_float32():
    """In bfloat16 the sum of 2048 times 2^-11 would stop at 1/8, and that of 1 + 2^-7 before 256."""
    rows = layout([2048])
    few, many = torch.zeros(1, 1, 1, 4).bfloat16(), torch.zeros(1, 1, 2048, 4).bfloat16()
    assert varlen_attention.attend_thin(few, many, torch.ones_like(many), rows).unique().tolist() == [1]
    v = torch.zeros_like(few).requires_grad_()
    out = varlen_attention.attend_thin(many, few, v, rows)  # the only weight of each token is 1
    out.backward(torch.full_like(out, 1 + 2**-7))
    assert v.grad.unique().tolist() == [2048 + 16]


def test_a_few_lengths_of_all_rows_together():
    g = torch.Generator().manual_seed(0)
    lengths = [torch.randint(500, 2001, (32,), generator=g).tolist() for _ in range(20)]
    found = {len(layout(some, multiple=1024).positions) for some in lengths}
    assert len(found) <= 10 and all(T % 1024 == 0 for T in found)


def test_real_tokens_come_first_in_their_order():
    mask = torch.rand(50, 17, generator=torch.Generator().manual_seed(0)) < torch.linspace(0, 1, 50)[:, None]
    expected = (~mask).to(torch.uint8).argsort(dim=-1, stable=True)
    assert mask.any() and not mask[0].any() and torch.equal(segment_means.argsort_valid_first(mask), expected)


@pytest.mark.parametrize("count", [1, 7, 16, 50])
@pytest.mark.parametrize("pattern", ["none", "suffix", "holes"])
def test_segment_means_are_means_over_the_real_tokens(count, pattern):
    """With more segments than tokens, and a sequence without real tokens."""
    x, mask = tokens(6, 32).unflatten(2, (2, 3)).transpose(1, 2), masks(32)[pattern]  # (N,H,L,D)
    real = all_real(mask, 32)
    if mask is not None:
        mask[2] = False
    expected = torch.zeros(3, 2, count, 3, dtype=torch.float64)
    is_used_expected = torch.zeros(3, count, dtype=torch.bool)
    for n, h in itertools.product(range(3), range(2)):
        sequence = x[n, h, real[n]]
        m = min(count, len(sequence))
        expected[n, h, :m] = nystrom.segment_means(sequence, m) if m else 0
        is_used_expected[n, :m] = True
    (means,), is_used = segment_means.segment_means(mask, count, x)
    same_with_gradients(means, expected, x)
    assert is_used_expected.all() if is_used is None else torch.equal(is_used, is_used_expected)


def test_no_sort_is_part_of_it():
    """The exporter to ONNX has none that is stable."""

    class Order(torch.nn.Module):
        forward = staticmethod(segment_means.argsort_valid_first)

    graph = torch.export.export(Order(), (torch.ones(2, 5, dtype=torch.bool),)).graph
    assert not [node for node in graph.nodes if "sort" in str(node.target)]


def test_the_exact_inverse_in_float16_takes_a_position_bias():
    q, k, v = torch.randn(3, 1, 2, 9, 4).half()
    bias = torch.randn(9, 9).half()
    kept = q[:, :, :5], k[:, :, :5]
    out, _ = landmark_product(q, k, v, *kept, pinv=exact, bias=(bias[:, :5], bias[:5, :5], bias[:5]))
    wide = [x.float() for x in (q, k, v, *kept, bias)]
    right, _ = landmark_product(*wide[:5], pinv=exact, bias=(wide[5][:, :5], wide[5][:5, :5], wide[5][:5]))
    torch.testing.assert_close(out, right.half())


@full_precision
def product(a, b, *, mask=None, times=1):
    return a @ b, a.dtype, b.dtype, mask, times


@pytest.mark.parametrize("dtype, wide", [(torch.bfloat16, torch.float32), (torch.float64, torch.float64)])
def test_tensors_arrive_in_float32_at_least_and_autocast_is_off(dtype, wide):
    a, b = torch.randn(2, 3, 3).to(dtype)
    mask = torch.ones(3, dtype=torch.bool)
    with torch.autocast("cpu", torch.bfloat16):
        out, *dtypes, kept, times = product(a, b=b, mask=mask, times=2)
        assert torch.is_autocast_enabled("cpu")
    assert dtypes == [wide, wide] and out.dtype == wide and kept is mask and times == 2
    assert torch.equal(out, a.to(wide) @ b.to(wide))


def test_float32_is_handed_over_as_it_is_and_gradients_flow_in_the_dtype_of_the_input():
    a = torch.randn(3, 3, dtype=torch.bfloat16, requires_grad=True)
    b = torch.randn(3, 3)
    product(a, b)[0].sum().backward()
    assert a.grad.dtype == torch.bfloat16
    handed = full_precision(lambda x: x)
    assert handed(b) is b


def test_it_compiles_without_a_break():
    a, b = torch.randn(2, 4, 4)
    compiled = torch.compile(lambda a, b: product(a, b)[0], fullgraph=True, backend="eager")
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(compiled(a, b), a @ b) is False and torch.equal(compiled(a, b), product(a, b)[0])
