"""Packed sequences and their attention, segment means, the landmark product in float16, ``full_precision``; metrics."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from conftest import assert_error
from support.features import PATTERNS, all_real, masks, same_with_gradients, tokens
from torchmetrics.functional.classification import binary_auroc

from lra.attention.base import Sizes
from lra.attention.cur import CUR
from lra.ops import metrics, segment_means, varlen_attention
from lra.ops.attention_maps import landmark_product
from lra.ops.pinv import exact
from lra.ops.precision import full_precision
from lra.ops.selection import farthest
from lra.reference import nystrom
from lra.varlen import VarlenLayout

LENGTHS = (13, 4, 8, 1, 7, 5, 13, 6, 2, 3)


def layout(lengths=LENGTHS, **sizes):
    return VarlenLayout(torch.arange(max(lengths)) < torch.tensor(lengths)[:, None], **sizes)


def draw_inputs(varlen):
    """Draw q, k, v of selected tokens, and q, k, v of packed tokens, in which tokens added for a multiple hold 7."""
    g, N, T = torch.Generator().manual_seed(0), len(varlen.lengths), len(varlen.positions)
    selected = [torch.randn(N, 2, 3, d, generator=g, dtype=torch.float64) for d in (5, 5, 6)]
    tokens = [torch.randn(1, 2, int(varlen.num_real.sum()), d, generator=g, dtype=torch.float64) for d in (5, 5, 6)]
    tokens = [F.pad(x, (0, 0, 0, T - x.shape[2]), value=7.0) for x in tokens]
    return [x.requires_grad_() for x in (*selected, *tokens)]


def attend_each_sequence(q, k, v, varlen):
    """Attention of each sequence separately; uses only the lengths of ``VarlenLayout``."""
    split = lambda x: x.split(varlen.lengths, 2) if len(x) == 1 else x.split(1)
    out = [F.scaled_dot_product_attention(*sequence) for sequence in zip(*map(split, (q, k, v)), strict=True)]
    return torch.cat(out, 2 if len(q) == 1 else 0)


def run_both_products(varlen, attend):
    """Return both products and the gradients of real tokens, and separately the gradients of added tokens."""
    inputs = q, k, v, qs, ks, vs = draw_inputs(varlen)
    rv, out = attend(q, ks, vs, varlen), attend(qs, k, v, varlen)
    num_real = int(varlen.num_real.sum())
    out = out[:, :, :num_real]
    weight = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)
    grads = torch.autograd.grad(rv.square().sum() + (out * weight).sum(), inputs)
    return [rv, out, *grads[:3], *(g[:, :, :num_real] for g in grads[3:])], [g[:, :, num_real:] for g in grads[3:]]


@pytest.mark.parametrize("written_out", [False, True])
@pytest.mark.parametrize("sizes", [{}, {"multiple": 32}], ids=str)
def test_packed_attention_matches_per_sequence_attention(sizes, written_out, monkeypatch):
    expected, _ = run_both_products(layout(), attend_each_sequence)
    monkeypatch.setattr(varlen_attention, "is_slow_fused", lambda x: written_out)
    results, added_grads = run_both_products(layout(**sizes), varlen_attention.attend_thin)
    torch.testing.assert_close(results, expected, rtol=1e-10, atol=1e-12)
    assert not any(grad.any() for grad in added_grads)


@pytest.mark.parametrize("multiple", [1, 3, 4, 32])
def test_pack_and_unpack_with_holes_round_trip(multiple):
    mask = torch.tensor([[True, False, True, True], [False, True, False, False], [True] * 4])
    varlen, x = VarlenLayout(mask, multiple), torch.randn(3, 2, 4, 5)
    num_added = -8 % multiple
    assert varlen.lengths == [3, 1, 4] and varlen.starts.tolist() == [0, 3, 4] and varlen.num_added == num_added
    # Added tokens are copies of the first real one.
    assert varlen.positions.tolist() == [0, 2, 3, 1, 0, 1, 2, 3] + [0] * num_added
    assert varlen.is_real is None if not num_added else varlen.is_real[0].tolist() == [True] * 8 + [False] * num_added
    packed, zeroed = varlen.pack(x, 2), x * mask[:, None, :, None]
    assert packed.shape == (1, 2, 8 + num_added, 5)
    assert torch.equal(packed[0, :, :8].transpose(0, 1), x.transpose(1, 2)[mask])
    assert torch.equal(varlen.unpack(packed, 2), zeroed)
    torch.testing.assert_close(varlen.sum(packed[:, 0]), zeroed[:, 0].sum(1))


def test_packed_attention_accumulates_in_float32():
    """In bfloat16 a sum of 2,048 terms 2^-11 would stall at 1/8, and a sum of terms 1 + 2^-7 before 256."""
    varlen = layout([2048])
    few, many = torch.zeros(1, 1, 1, 4).bfloat16(), torch.zeros(1, 1, 2048, 4).bfloat16()
    assert varlen_attention.attend_thin(few, many, torch.ones_like(many), varlen).unique().tolist() == [1]
    v = torch.zeros_like(few).requires_grad_()
    # Each token attends to a single key, so its weight is 1.
    out = varlen_attention.attend_thin(many, few, v, varlen)
    out.backward(torch.full_like(out, 1 + 2**-7))
    assert v.grad.unique().tolist() == [2048 + 16]


def test_argsort_valid_first_matches_stable_argsort():
    """Without a sort, since the ONNX exporter has no stable one."""

    class Order(torch.nn.Module):
        forward = staticmethod(segment_means.argsort_valid_first)

    mask = torch.rand(50, 17, generator=torch.Generator().manual_seed(0)) < torch.linspace(0, 1, 50)[:, None]
    expected = (~mask).to(torch.uint8).argsort(dim=-1, stable=True)
    assert mask.any() and not mask[0].any() and torch.equal(Order()(mask), expected)
    assert not [node for node in torch.export.export(Order(), (mask,)).graph.nodes if "sort" in str(node.target)]


@pytest.mark.parametrize("count", [1, 7, 16, 50])
@PATTERNS
def test_segment_means_match_reference_over_real_tokens(count, pattern):
    """Covers more segments than tokens, a sequence without real tokens, and a sequence with a single token."""
    x, mask = tokens(6, 32).unflatten(2, (2, 3)).transpose(1, 2), masks(32)[pattern]  # (N,H,L,D)
    if mask is not None:
        mask[0] = False
    mask = all_real(mask, 32)
    expected = torch.zeros(3, 2, count, 3, dtype=torch.float64)
    is_used_expected = torch.zeros(3, count, dtype=torch.bool)
    for n, h in itertools.product(range(3), range(2)):
        sequence = x[n, h, mask[n]]
        m = min(count, len(sequence))
        expected[n, h, :m] = nystrom.segment_means(sequence, m) if m else 0
        is_used_expected[n, :m] = True
    (means,), is_used = segment_means.segment_means(mask, count, x)
    same_with_gradients(means, expected, x)
    assert torch.equal(is_used, is_used_expected)


def test_landmark_product_in_float16_takes_position_bias():
    q, k, v = torch.randn(3, 1, 2, 9, 4).half()
    bias = torch.randn(9, 9).half()
    inputs = [q, k, v, q[:, :, :5], k[:, :, :5]]

    def product(*tensors):
        *tensors, bias = tensors
        return landmark_product(*tensors, pinv=exact, bias=(bias[:, :5], bias[:5, :5], bias[:5]))[0]

    torch.testing.assert_close(product(*inputs, bias), product(*(x.float() for x in (*inputs, bias))).half())


@pytest.mark.parametrize("autocast", [False, True])
def test_cur_in_bfloat16_takes_float32_position_bias(autocast):
    q, k, v = torch.randn(3, 1, 2, 32, 8, generator=torch.Generator().manual_seed(0)).bfloat16()
    weight = torch.linspace(-1, 1, 63, requires_grad=True)
    bias = lambda rows, cols: weight[rows[..., :, None] - cols[..., None, :] + 31]
    cur = CUR(Sizes(heads=2, head_dim=8, value_dim=8, length=32), count=8, score="step")
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        out = cur(q, k, v, bias=bias)
    assert out.dtype == torch.bfloat16
    expected = cur(q.float(), k.float(), v.float(), bias=bias)
    torch.testing.assert_close(out.float(), expected, rtol=0, atol=0.02)
    gradients = [torch.autograd.grad(x.float().square().sum(), weight)[0] for x in (out, expected)]
    torch.testing.assert_close(*gradients, rtol=0, atol=0.02 * gradients[1].abs().max().item())


@full_precision
def product(a, b, *, mask=None, times=1):
    return a @ b, a.dtype, b.dtype, mask, times


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_full_precision_upcasts_and_disables_autocast(dtype):
    a, b = torch.randn(2, 3, 3).to(dtype).requires_grad_()
    wide_dtype, mask = torch.promote_types(dtype, torch.float32), torch.ones(3, dtype=torch.bool)
    with torch.autocast("cpu", torch.bfloat16):
        out, *dtypes, mask_out, times = product(a, b=b, mask=mask, times=2)
        assert torch.is_autocast_enabled("cpu")
    assert dtypes == [wide_dtype, wide_dtype] and out.dtype == wide_dtype and mask_out is mask and times == 2
    assert torch.equal(out, a.to(wide_dtype) @ b.to(wide_dtype))
    assert torch.autograd.grad(out.sum(), a)[0].dtype == dtype
    assert (full_precision(lambda x: x)(a) is a) == (dtype == wide_dtype)


def test_farthest_selection_is_the_same_inside_autocast():
    x = torch.randn(1, 2, 64, 8, generator=torch.Generator().manual_seed(0)) + 5
    with torch.autocast("cpu", torch.bfloat16):
        selected = farthest(x, 16, None)
    assert torch.equal(selected, farthest(x, 16, None))


def test_full_precision_compiles_without_graph_break():
    a, b = torch.randn(2, 4, 4)
    compiled = torch.compile(lambda a, b: product(a, b)[0], fullgraph=True, backend="eager")
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(compiled(a, b), a @ b) is False and torch.equal(compiled(a, b), product(a, b)[0])


def draw_labels(n, g):
    """Draw labels with both classes, about 27 % of them 1."""
    return torch.cat([torch.tensor([0, 1]), (torch.rand(n - 2, generator=g) < 0.27).long()])


@pytest.mark.parametrize("levels", [1, 2, 5, 10**6])
@pytest.mark.parametrize("n", [2, 17, 300])
def test_roc_auc_matches_pairwise_definition(n, levels):
    g = torch.Generator().manual_seed(n * levels)
    labels = draw_labels(n, g)
    scores = torch.randint(levels, (n,), generator=g).double() / 8 + labels / 8
    outputs = torch.stack([torch.ones(n), 1 + scores], 1)
    # The percentage of (positive, negative) pairs that are ranked correctly; a tie counts half.
    ones, zeros = scores[labels == 1].tolist(), scores[labels == 0].tolist()
    expected = 100 * sum((a > b) + (a == b) / 2 for a in ones for b in zeros) / (len(ones) * len(zeros))
    assert metrics.roc_auc(outputs, labels) == pytest.approx(expected, abs=1e-9)
    assert metrics.roc_auc(outputs.flip(1), labels) == pytest.approx(100 - expected, abs=1e-9)
    assert metrics.roc_auc(outputs, 1 - labels) == pytest.approx(100 - expected, abs=1e-9)


@pytest.mark.parametrize("metric", [metrics.roc_auc, metrics.balanced_accuracy])
def test_missing_class_raises_value_error(metric):
    assert_error("both classes", metric, torch.zeros(5, 2), torch.ones(5, dtype=torch.int64))


@pytest.mark.parametrize("n", [2, 17, 300])
def test_balanced_accuracy_equals_roc_auc_of_predicted_classes(n):
    """The PSF-Attn authors pass predicted classes instead of scores to a library's ROC-AUC, in float32."""
    g = torch.Generator().manual_seed(n)
    labels = draw_labels(n, g)
    outputs = torch.randn(n, 2, generator=g) + torch.nn.functional.one_hot(labels)
    expected = 100 * binary_auroc(outputs.argmax(1).float(), labels).item()
    assert metrics.balanced_accuracy(outputs, labels) == pytest.approx(expected, abs=1e-4)


def test_non_finite_outputs_count_as_wrong():
    outputs, labels = torch.tensor([[float("nan")] * 2, [0.0, float("nan")], [1.0, 0.0]]), torch.tensor([0, 1, 0])
    assert metrics.accuracy(outputs, labels) == pytest.approx(100 / 3)
    assert metrics.accuracy(torch.full((4, 3), float("nan")), torch.zeros(4)) == 0
    assert metrics.roc_auc(torch.full((4, 2), float("nan")), torch.tensor([0, 1, 0, 1])) == 50


def test_within_tolerance_bound_is_strict():
    labels = torch.tensor([0.5, 0.5, 0.5, 0.5, 0.25])
    assert metrics.within_tolerance(torch.tensor([0.5, 0.539, 0.461, 0.541, 0.5])[:, None], labels) == 60
    bound = torch.tensor([[0.04]], dtype=torch.float64)
    assert metrics.within_tolerance(bound, torch.zeros(1)) == 0
    assert metrics.within_tolerance(bound.nextafter(torch.zeros(1, dtype=torch.float64)), torch.zeros(1)) == 100
    assert metrics.within_tolerance(torch.tensor([[float("nan")]]), torch.zeros(1)) == 0
