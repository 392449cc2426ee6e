"""CUR, cur_plus and Nystromformer with their gradients against dense float64 code, and the tokens that are kept."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from support.features import D, H, check, masks, mean, qkv, real_rows, same_with_gradients, sized

from lra.attention.cur import CUR
from lra.attention.cur_plus import CURPlus
from lra.attention.nystrom import Nystrom, NystromOriginal
from lra.ops.cur_naive import CUROptions, cur_naive, kept
from lra.ops.pinv import cubic
from lra.ops.selection import PAIRINGS, SCORES, select

L = 37


def literal_cubic(a, steps, start=None):
    z, one = a.T / (a.abs().sum(0).max() if start is None else start), torch.eye(len(a), dtype=a.dtype)
    for _ in range(steps):
        z = 0.25 * z @ (13 * one - a @ z @ (15 * one - a @ z @ (7 * one - a @ z)))
    return z


def weights(q, k):
    return (q @ k.T / D**0.5).exp()


def compare(options, pinv, literal, **naive):
    """CUR against its formula, with holes, and with fewer real tokens than count in the third row."""
    made, x, mask = sized(CUR, **options, pinv=pinv), qkv(L), masks(L)["holes"]
    rule = CUROptions(**{key: option for key, option in options.items() if key != "impl"}, pinv=literal, **naive)
    want = cur_naive(*x, mask, rule, made.draw)
    same_with_gradients(real_rows(made(*x, mask), mask), real_rows(want, mask), x)


@pytest.mark.parametrize("impl", ["eager", "sdpa"])
@pytest.mark.parametrize("class_token, copy_rv", [(True, False), (False, True)])
@pytest.mark.parametrize("pairing", PAIRINGS)
@pytest.mark.parametrize("score", SCORES)
def test_cur_is_its_formula(score, pairing, class_token, copy_rv, impl):
    options = {"count": 7, "score": score, "pairing": pairing, "class_token": class_token, "copy_rv": copy_rv}
    compare(options | {"impl": impl}, partial(cubic, steps=4), partial(literal_cubic, steps=4))


def test_laplace_weights_are_those_of_the_formula():
    pinv = partial(cubic, steps=4, init="two_norms")
    compare({"count": 7, "score": "abs", "weights": "laplace", "impl": "eager"}, pinv, pinv, impl="eager")


def test_the_formula_is_that_of_whole_matrices():
    """Kept rows and columns of a map A, as in the paper: R of A, C and U with the softmax over kept keys."""
    q, k, v = qkv(L)
    want = []
    for a, b, c in zip(*(x[0] for x in (q, k, v)), strict=True):
        rows, cols = (x.abs().sum(1).topk(7).indices for x in (a, b))
        scores = a @ b.T / D**0.5
        C, R = scores[:, cols].softmax(1), scores.softmax(1)[rows]
        want.append((C @ literal_cubic(C[rows], 4) @ R @ c).index_copy(0, rows, R @ c))
    got = cur_naive(q[:1], k[:1], v[:1], torch.ones(1, L, dtype=torch.bool), CUROptions(count=7, score="abs"))
    torch.testing.assert_close(got[0], torch.stack(want), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("impl", ["eager", "sdpa"])
@pytest.mark.parametrize("copy_rv", [True, False])
@pytest.mark.parametrize("score", ["abs", "farthest"])
def test_cur_plus_is_the_literal_definition(score, copy_rv, impl):
    """lra.ops.cells for one head of one example without padding; few tokens are all kept, which is softmax."""

    def oracle(h, at, q, k, v):
        if len(at) <= 7:
            return mean(weights(q, k), v)
        rows, cols = kept(q, k, at, CUROptions(count=7, score=score), None)
        apart = lambda x, y: ((x[:, None] - y) ** 2).sum(-1)
        inside = F.one_hot(apart(k, k[cols]).argmin(1), 7).double()  # (n,c)
        sizes = inside.sum(0)[:, None].clamp(min=1)
        over_cells = mean(weights(q, inside.T @ k / sizes) * inside.sum(0), inside.T @ v / sizes)
        exact = mean(weights(q[rows], k), v)
        distances = apart(q, q[rows])
        near = (-distances / distances.amin(1).mean()).softmax(1)
        error = exact - over_cells[rows]
        given = torch.zeros_like(error)
        for _ in range(5):  # each time the smoothing of what the smoothing so far leaves is added
            given = given + error - near[rows] @ given
        out = over_cells + near @ given
        return out.index_copy(0, rows, exact) if copy_rv else out

    check(sized(CURPlus, count=7, score=score, copy_rv=copy_rv, impl=impl), oracle, L)


@pytest.mark.parametrize("impl", ["eager", "sdpa"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_cur_plus_in_half_precision_is_near_double(dtype, impl):
    """Kept rows and columns are those of the rounded inputs; what is left is rounding of a few products of it."""
    rough, mask = [x.to(dtype) for x in qkv(L)], masks(L)["suffix"]
    made = sized(CURPlus, count=7, impl=impl)
    got, expected = (real_rows(made(*x, mask), mask) for x in (rough, [x.double() for x in rough]))
    assert (got - expected).norm() < 4 * torch.finfo(dtype).eps * expected.norm()


def test_two_kept_ones_are_all_there_is_to_know_of_two_distinct_tokens():
    q, k, v = (x[:, :, :2].repeat(1, 1, 20, 1) for x in qkv(L))
    expected = F.scaled_dot_product_attention(q, k, v)
    torch.testing.assert_close(sized(CURPlus, count=5, copy_rv=False)(q, k, v), expected)


@pytest.mark.parametrize("impl", ["eager", "sdpa"])
def test_nystrom_is_the_literal_definition(impl):
    """docs/formulas.md, for one head of one example; the convolution alone looks at positions."""
    made = sized(Nystrom, landmarks=8, impl=impl)

    def oracle(h, at, q, k, v):
        c = min(8, len(at))
        segment = torch.arange(len(at)) * c // len(at)
        q_marks, k_marks = (torch.stack([x[segment == j].mean(0) for j in range(c)]) for x in (q, k))
        inner = literal_cubic(mean(weights(q_marks, k_marks), torch.eye(c, dtype=v.dtype)), 6)
        tap = at - at[:, None] + 17
        filters = made.conv.weight[h, 0, :, 0][tap.clamp(0, 34)] * ((tap >= 0) & (tap < 35))
        return mean(weights(q, k_marks), inner @ mean(weights(q_marks, k), v)) + filters @ v

    check(made, oracle, L)


def test_nystrom_original_pools_padding_and_starts_from_the_whole_batch():
    """The released steps on rows padded to the full length, whatever the batch's own padding."""
    made = sized(NystromOriginal, length=40, landmarks=8, kernel=0, pinv=partial(cubic, steps=6, init="batch"))
    x, mask = qkv(32), masks(32)["suffix"]
    q, k, v = (F.pad(t * mask[:, None, :, None], (0, 0, 0, 8)) for t in x)
    q_marks, k_marks = (t.unflatten(2, (8, 5)).mean(3) for t in (q, k))
    scores = lambda a, b: a @ b.mT / D**0.5
    F1, F2 = scores(q, k_marks).softmax(-1), scores(q_marks, k_marks).softmax(-1)
    F3 = scores(q_marks, k).masked_fill(~F.pad(mask, (0, 8))[:, None, None], -torch.inf).softmax(-1)
    inner = torch.stack([literal_cubic(u, 6, F2.sum(-2).max()) for u in F2.flatten(0, 1)]).view_as(F2)
    want = (F1 @ inner @ F3 @ v)[:, :, :32]
    same_with_gradients(real_rows(made(*x, mask), mask), real_rows(want, mask), x)


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("pairing", PAIRINGS)
@pytest.mark.parametrize("class_token", [True, False])
@pytest.mark.parametrize("training", [True, False])
def test_kept_positions_are_distinct_and_real_ones_first(score, pairing, class_token, training):
    """A class token is kept unless it is padding, as in the second row."""
    (q, k, _), mask = qkv(L), masks(L)["holes"].clone()
    mask[1, :2] = torch.tensor([False, True])
    rule = {"score": score, "pairing": pairing, "class_token": class_token}
    draw = None if training else torch.rand(2, H, L)
    for found in select(q, k, CUROptions(count=9, **rule), mask, draw=draw):
        assert found.shape == (3, H, 9) and found.dtype == torch.int64
        for n, heads in enumerate(found.tolist()):
            for row in heads:
                assert len(set(row)) == 9
                assert int(mask[n, row].sum()) == min(9, int(mask[n].sum()))
                assert not class_token or (0 in row) == mask[n, 0]
    rows, cols = select(q, k, CUROptions(count=99, **rule), draw=draw)
    assert rows.shape == (3, H, L) and sorted(cols[0, 0].tolist()) == list(range(L))


@pytest.mark.parametrize("size", [1e-30, 1e25])
def test_farthest_rows_do_not_depend_on_their_unit(size):
    (q, k, _), mask = qkv(L), masks(L)["suffix"].roll(3, 1)
    farthest = partial(select, options=CUROptions(count=4, score="farthest"))
    padded = torch.where(mask[:, None, :, None], q, 1e5)  # of no account, however far away
    expected = farthest(q.float(), k.float(), mask=mask)
    got = farthest((padded * size).float(), (k * size).float(), mask=mask)
    assert all(torch.equal(a, b) for a, b in zip(expected, got, strict=True))


@pytest.mark.parametrize("impl", ["eager", "sdpa"])
@pytest.mark.parametrize("size", [1e-30, 1e-12, 1e-5, 1.0])
def test_cells_of_small_queries_have_the_gradient_of_softmax(size, impl):
    """Weights are nearly even then and no more than rounding is left to correct, which must not be enlarged."""
    (q, k, v), mask = qkv(L), masks(L)["suffix"]
    q, k, v = ((q.detach() * size).float().requires_grad_(), k.float(), v.float())
    out = sized(CURPlus, count=7, impl=impl).float()(q, k, v, mask)
    theirs = F.scaled_dot_product_attention(q, k, v, mask[:, None, None])
    ours, exact = (torch.autograd.grad(real_rows(x * v, mask).sum(), q)[0] for x in (out, theirs))
    assert ours.isfinite().all() and ours.norm() < 2 * exact.norm()
