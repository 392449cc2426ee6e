"""CUR, cur_plus and Nystromformer against independent dense float64 code."""

from functools import partial

import numpy as np
import pytest
import torch
from scipy.special import softmax

from lra.attention.base import Sizes
from lra.attention.cur import CUR
from lra.attention.cur_plus import CURPlus
from lra.attention.nystrom import Nystrom, NystromOriginal
from lra.ops.cells import corrected
from lra.ops.cur_naive import CUROptions, cur_naive
from lra.ops.pinv import cubic
from lra.ops.selection import PAIRINGS, SCORES, select

N, H, L, D, E = 3, 2, 40, 8, 6
np_softmax = partial(softmax, axis=-1)


def qkv(seed=0, length=L, lengths=(40, 29, 5)):
    g = torch.Generator().manual_seed(seed)
    q, k = (torch.randn(N, H, length, D, dtype=torch.float64, generator=g) for _ in range(2))
    v = torch.randn(N, H, length, E, dtype=torch.float64, generator=g)
    return q, k, v, torch.arange(length) < torch.tensor(lengths)[:, None]


def make(kind, **options):
    return kind(Sizes(heads=H, head_dim=D, value_dim=E, length=L), **options).double().eval()


def np_cubic(a, steps, scale=None):
    z = a.T / (np.abs(a).sum(0).max() if scale is None else scale)
    identity = np.eye(len(a))
    for _ in range(steps):
        z = 0.25 * z @ (13 * identity - a @ z @ (15 * identity - a @ z @ (7 * identity - a @ z)))
    return z


def np_farthest(x, count):
    kept = [0]
    while len(kept) < count:
        apart = [min(np.sum((row - x[i]) ** 2) for i in kept) if j not in kept else -1 for j, row in enumerate(x)]
        kept.append(int(np.argmax(apart)))
    return kept


def literal_rows(x, score, count):
    return np_farthest(x, count) if score == "farthest" else [int(i) for i in np.argsort(-np.abs(x).sum(1))[:count]]


def cubic_by_numpy(a):
    return torch.from_numpy(np_cubic(a.numpy(), 4))


@pytest.mark.parametrize("impl", ["eager", "sdpa"])
@pytest.mark.parametrize("copy_rv", [True, False])
@pytest.mark.parametrize("class_token", [True, False])
@pytest.mark.parametrize("pairing", PAIRINGS)
@pytest.mark.parametrize("score", SCORES)
def test_cur_is_its_formula(score, pairing, class_token, copy_rv, impl):
    """With holes in the second row, and fewer real tokens than count in the third."""
    q, k, v, mask = qkv()
    mask[1, ::3] = False
    options = {"count": 7, "score": score, "pairing": pairing, "class_token": class_token, "copy_rv": copy_rv}
    made = make(CUR, **options, impl=impl, pinv=partial(cubic, steps=4))
    expected = cur_naive(q, k, v, mask, CUROptions(**options, pinv=cubic_by_numpy), made.draw)
    torch.testing.assert_close(made(q, k, v, mask) * mask[:, None, :, None], expected, rtol=1e-10, atol=1e-12)


def test_laplace_weights_are_those_of_the_formula():
    q, k, v, mask = qkv()
    options = {"count": 7, "score": "abs", "weights": "laplace", "pinv": partial(cubic, steps=4, init="two_norms")}
    out = make(CUR, **options, impl="eager")(q, k, v, mask) * mask[:, None, :, None]
    expected = cur_naive(q, k, v, mask, CUROptions(**options, impl="eager"))
    torch.testing.assert_close(out, expected, rtol=1e-10, atol=1e-12)


def test_the_formula_is_that_of_whole_matrices():
    """Kept rows and columns of a map A, as in the paper: R of A, C and U with the softmax over kept keys."""
    q, k, v, _ = (x[0, 0] for x in qkv())
    rows, cols = literal_rows(q.numpy(), "abs", 7), literal_rows(k.numpy(), "abs", 7)
    scores = (q @ k.T).numpy() / np.sqrt(D)
    C, R = np_softmax(scores[:, cols]), np_softmax(scores)[rows]
    expected = C @ (np_cubic(C[rows], 4) @ (R @ v.numpy()))
    expected[rows] = R @ v.numpy()
    one = [x[None, None] for x in (q, k, v)]
    got = cur_naive(*one, torch.ones(1, L, dtype=torch.bool), CUROptions(count=7, score="abs"))
    np.testing.assert_allclose(got[0, 0].numpy(), expected, rtol=1e-10, atol=1e-12)


def literal_plus(q, k, v, rows, cols, copy_rv):
    """lra.ops.cells for one head of one example without padding, one query after the other."""
    D = q.shape[1]
    members = [[] for _ in cols]
    for j in range(len(k)):
        members[np.argmin([np.sum((k[j] - k[i]) ** 2) for i in cols])].append(j)
    exact = {i: np_softmax(q[i] @ k.T / np.sqrt(D)) @ v for i in rows}

    def over_cells(x):
        weights = [len(m) * np.exp(x @ k[m].mean(0) / np.sqrt(D)) if m else 0 for m in members]
        return sum(w * v[m].mean(0) for w, m in zip(weights, members, strict=True) if m) / sum(weights)

    h = np.mean([min(np.sum((x - q[i]) ** 2) for i in rows) for x in q])

    def near(x):
        weights = np.array([np.exp(-np.sum((x - q[i]) ** 2) / h) for i in rows])
        return weights / weights.sum()

    error = np.stack([exact[i] - over_cells(q[i]) for i in rows])
    given = np.zeros_like(error)
    for _ in range(5):  # each time the smoothing of what the smoothing so far leaves is added
        given = given + error - np.stack([near(q[i]) for i in rows]) @ given
    out = np.zeros_like(v)
    for t, x in enumerate(q):
        out[t] = exact[t] if copy_rv and t in rows else over_cells(x) + near(x) @ given
    return out


@pytest.mark.parametrize("impl", ["eager", "sdpa"])
@pytest.mark.parametrize("copy_rv", [True, False])
@pytest.mark.parametrize("score", ["abs", "farthest"])
def test_cur_plus_is_the_literal_definition(score, copy_rv, impl):
    q, k, v, mask = qkv()
    out = make(CURPlus, count=7, score=score, copy_rv=copy_rv, impl=impl)(q, k, v, mask)
    for n in range(N):
        real = int(mask[n].sum())
        for h in range(H):
            a, b, c = (x[n, h, :real].numpy() for x in (q, k, v))
            if real <= 7:  # everything is kept
                expected = np_softmax(a @ b.T / np.sqrt(D)) @ c
            else:
                rows, cols = (literal_rows(x, score, 7) for x in (a, b))
                expected = literal_plus(a, b, c, rows, cols, copy_rv)
            np.testing.assert_allclose(out[n, h, :real].numpy(), expected, rtol=1e-10, atol=1e-12)


def test_cur_plus_written_out_is_in_float32():
    """Given kept tokens: rounding by cur_plus itself would be of 1e-3."""
    q, k, v = (x.bfloat16() for x in qkv()[:3])
    given = (q, k, v, q[:, :, ::4], k[:, :, ::4])
    out, exact = (corrected(*(x.to(d) for x in given), impl="eager")[0] for d in (torch.bfloat16, torch.float64))
    assert out.dtype is torch.float32 and (out - exact).norm() < 1e-5 * exact.norm()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_cur_plus_in_half_precision_is_near_double(dtype):
    """Kept rows and columns are those of the rounded inputs; what is left is rounding of a few products of it."""
    rough = [x.to(dtype) for x in qkv()[:3]]
    mask, made = qkv()[3], make(CURPlus, count=7)
    got, expected = made(*rough, mask), made(*(x.double() for x in rough), mask)
    assert got.dtype == dtype
    real = mask[:, None].expand(-1, H, -1)
    assert (got - expected)[real].norm() < 4 * torch.finfo(dtype).eps * expected[real].norm()


def test_cur_plus_leaves_constant_values_and_takes_equal_tokens():
    """Its weights sum to one; with two distinct tokens two kept ones are all there is to know."""
    q, k, v, mask = qkv()
    out = make(CURPlus, count=5, copy_rv=False)(q, k, torch.full_like(v, 3.0), mask)
    torch.testing.assert_close(out.transpose(1, 2)[mask], torch.full((int(mask.sum()), H, E), 3.0, dtype=v.dtype))
    q, k, v = (x[:, :, :2].repeat(1, 1, L // 2, 1) for x in (q, k, v))
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    torch.testing.assert_close(make(CURPlus, count=5, copy_rv=False)(q, k, v), expected)


def literal_nystrom(q, k, v, landmarks, weight, steps):
    """docs/formulas.md, Nystromformer for one head of one example without padding."""
    L, d = q.shape
    q, k = q / d**0.25, k / d**0.25
    segment = np.arange(L) * landmarks // L
    q_marks, k_marks = (np.stack([x[segment == j].mean(0) for j in range(landmarks)]) for x in (q, k))
    F1, F2, F3 = np_softmax(q @ k_marks.T), np_softmax(q_marks @ k_marks.T), np_softmax(q_marks @ k.T)
    padded = np.pad(v, ((17, 17), (0, 0)))
    conv = np.stack([sum(weight[t] * padded[i + t] for t in range(35)) for i in range(L)])
    return (F1 @ np_cubic(F2, steps)) @ (F3 @ v) + conv


@pytest.mark.parametrize("impl", ["eager", "sdpa"])
@pytest.mark.parametrize("masked", [True, False])
def test_nystrom_is_the_literal_definition(impl, masked):
    q, k, v, mask = qkv()
    torch.manual_seed(3)
    made = make(Nystrom, landmarks=8, impl=impl)
    out = made(q, k, v, mask if masked else None).detach()
    for n in range(N):
        real = int(mask[n].sum()) if masked else L
        for h in range(H):
            a, b, c = (x[n, h, :real].numpy() for x in (q, k, v))
            weight = made.conv.weight[h, 0, :, 0].detach().numpy()
            expected = literal_nystrom(a, b, c, min(8, real), weight, 6)
            np.testing.assert_allclose(out[n, h, :real].numpy(), expected, rtol=1e-10, atol=1e-12)


def test_nystrom_original_pools_padding_and_starts_from_the_whole_batch():
    """The released steps on rows padded to the full length, whatever the batch's own padding."""
    q, k, v, mask = qkv(length=32, lengths=(32, 20, 5))
    made = make(NystromOriginal, landmarks=8, kernel=0, pinv=partial(cubic, steps=6, init="batch"))
    out = made(q, k, v, mask)
    m = np.pad(mask.numpy(), ((0, 0), (0, L - 32)))[:, None, :, None]
    a, b, c = (np.pad(x.numpy(), ((0, 0), (0, 0), (0, L - 32), (0, 0))) * m for x in (q, k, v))
    a, b = a / D**0.25, b / D**0.25
    q_marks, k_marks = (x.reshape(N, H, 8, 5, D).mean(3) for x in (a, b))
    F1, F2 = (np_softmax(x @ k_marks.swapaxes(-1, -2)) for x in (a, q_marks))
    F3 = np_softmax(q_marks @ b.swapaxes(-1, -2) - 1e9 * (1 - m.swapaxes(-1, -2)))
    scale = np.abs(F2).sum(-2).max()
    Z = np.stack([[np_cubic(F2[n, h], 6, scale) for h in range(H)] for n in range(N)])
    expected = F1 @ Z @ (F3 @ c)
    for n in range(N):
        real = int(mask[n].sum())
        np.testing.assert_allclose(out[n, :, :real].numpy(), expected[n, :, :real], rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("kind,options", [(CUR, {"count": 7}), (CURPlus, {"count": 7}), (Nystrom, {"landmarks": 8})])
def test_the_two_implementations_agree_in_value_and_gradient(kind, options):
    q, k, v, mask = (x.requires_grad_() if x.dtype.is_floating_point else x for x in qkv())
    torch.manual_seed(0)
    eager, fused = make(kind, impl="eager", **options), make(kind, impl="sdpa", **options)
    fused.load_state_dict(eager.state_dict())
    for a, b in zip(
        *(torch.autograd.grad(f(q, k, v, mask).square().sum(), (q, k, v)) for f in (eager, fused)), strict=True
    ):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("pairing", PAIRINGS)
@pytest.mark.parametrize("class_token", [True, False])
@pytest.mark.parametrize("training", [True, False])
def test_kept_positions_are_distinct_and_real_ones_first(score, pairing, class_token, training):
    q, k, _, mask = qkv()
    mask = mask & (torch.rand(mask.shape, generator=torch.Generator().manual_seed(1)) < 0.7)
    mask[:, 0] = True
    rule = {"score": score, "pairing": pairing, "class_token": class_token}
    draw = None if training else torch.rand(2, H, L)
    for kept in select(q, k, CUROptions(count=9, **rule), mask, draw=draw):
        assert kept.shape == (N, H, 9) and kept.dtype == torch.int64
        for n in range(N):
            for h in range(H):
                row = kept[n, h].tolist()
                assert len(set(row)) == 9
                assert int(mask[n, row].sum()) == min(9, int(mask[n].sum()))
                assert not class_token or 0 in row
    rows, cols = select(q, k, CUROptions(count=99, **rule), draw=draw)
    assert rows.shape == (N, H, L) and sorted(cols[0, 0].tolist()) == list(range(L))


@pytest.mark.parametrize("score", SCORES)
def test_a_padded_class_token_is_not_kept(score):
    q, k, _, mask = qkv()
    mask = mask.clone()
    mask[:2, 0] = False
    for count in (1, 4):
        for kept in select(q, k, CUROptions(count=count, score=score, class_token=True), mask):
            assert torch.equal((kept == 0).any(-1).all(-1), mask[:, 0])


@pytest.mark.parametrize("size", [1e-30, 1e25])
def test_farthest_rows_do_not_depend_on_their_unit(size):
    q, k, _, mask = qkv()
    mask = mask.roll(3, 1)
    farthest = partial(select, options=CUROptions(count=4, score="farthest"))
    padded = torch.where(mask[:, None, :, None], q, 1e5)  # of no account, however far away
    expected = farthest(q.float(), k.float(), mask=mask)
    got = farthest((padded * size).float(), (k * size).float(), mask=mask)
    assert all(torch.equal(a, b) for a, b in zip(expected, got, strict=True))


@pytest.mark.parametrize("kind", [CUR, CURPlus])
@pytest.mark.parametrize("impl", ["eager", "sdpa"])
def test_an_example_without_a_real_token_is_finite_and_changes_no_other(kind, impl):
    q, k, v, mask = (x.requires_grad_() if x.dtype.is_floating_point else x for x in qkv())
    made = make(kind, count=7, impl=impl)
    out = made(q, k, v, mask & torch.tensor([True, False, True])[:, None])
    assert out.isfinite().all()
    torch.testing.assert_close(out[[0, 2]], made(q, k, v, mask)[[0, 2]])
    gradients = torch.autograd.grad(out[[0, 2]].square().sum(), (q, k, v))
    assert all(x.isfinite().all() and not x[1].any() for x in gradients)


@pytest.mark.parametrize("impl", ["eager", "sdpa"])
@pytest.mark.parametrize("size", [1e-30, 1e-12, 1e-5, 1.0])
def test_cells_of_small_queries_have_the_gradient_of_softmax(size, impl):
    """Weights are nearly even then and no more than rounding is left to correct, which must not be enlarged."""
    q, k, v, mask = qkv()
    q, k, v = ((q * size).float().requires_grad_(), k.float(), v.float())
    out = make(CURPlus, count=7, impl=impl).float()(q, k, v, mask)
    theirs = torch.nn.functional.scaled_dot_product_attention(q, k, v, mask[:, None, None])
    ours, exact = (torch.autograd.grad((x * v)[mask[:, None].expand(N, H, L)].sum(), q)[0] for x in (out, theirs))
    assert ours.isfinite().all() and ours.norm() < 2 * exact.norm()


def test_random_selection_draws_anew_unless_it_is_handed_a_draw():
    q, k, _, _ = qkv()
    kept = lambda draw=None: select(q, k, CUROptions(count=9, score="random"), draw=draw)[0].sort(-1).values
    assert not torch.equal(kept(), kept()) and not torch.equal(kept()[0], kept()[1])
    draw = torch.rand(2, H, L)
    assert torch.equal(kept(draw), kept(draw)) and torch.equal(kept(draw)[0], kept(draw)[1])
    assert torch.equal(kept(draw)[0], draw[0].topk(9).indices.sort(-1).values)


@pytest.mark.parametrize("kind", [CUR, CURPlus])
def test_a_random_mechanism_draws_anew_in_evaluation_if_told(kind):
    q, k, v, _ = qkv()
    always = make(kind, count=9, score="random", resample="always")
    assert not torch.equal(always(q, k, v), always(q, k, v))
