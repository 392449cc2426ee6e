"""The kernels in triton's interpreter, or on the GPU where there is one, against float64 autograd."""

from functools import partial

import pytest
import torch
from conftest import KERNELS
from triton_reference import case, check, errors, fused, run

if not KERNELS:
    pytest.skip("triton is not installed", allow_module_level=True)

from hypothesis import given, settings
from hypothesis import strategies as st

from lra.attention.base import Sizes
from lra.attention.cur import CUR
from lra.attention.nystrom import Nystrom, NystromOriginal
from lra.ops import triton as kernels
from lra.ops.attention_maps import landmark_product
from lra.ops.cur import CUROptions
from lra.ops.pinv import cubic, exact
from lra.ops.selection import PAIRINGS, select
from lra.ops.triton import op, tiles

WIDE, HALF, BRAIN = torch.float32, torch.float16, torch.bfloat16


@pytest.fixture(autouse=True)
def poisoned(monkeypatch):
    """Every buffer that a launch allocates holds NaN until it is written."""
    empty = torch.Tensor.new_empty

    def new_empty(self, *shape, **options):
        buffer = empty(self, *shape, **options)
        return buffer.fill_(float("nan")) if buffer.dtype.is_floating_point else buffer

    monkeypatch.setattr(torch.Tensor, "new_empty", new_empty)
    like = torch.empty_like
    monkeypatch.setattr(torch, "empty_like", lambda x: like(x).fill_(float("nan")))


GRID = [
    {"n": 200, "m": 16, "d": 16, "e": 16, "dtype": WIDE, "masked": True},
    {"n": 300, "m": 32, "d": 32, "e": 64, "dtype": WIDE, "masked": True, "strides": "plain"},
    {"n": 90, "m": 64, "d": 64, "e": 32, "dtype": WIDE, "masked": True, "same": True},
    {"n": 150, "m": 128, "d": 16, "e": 128, "dtype": WIDE, "masked": True},
    {"n": 140, "m": 24, "d": 20, "e": 6, "dtype": WIDE, "strides": "across"},
    {"n": 9, "m": 16, "d": 32, "e": 32, "dtype": WIDE, "masked": True},
    {"n": 170, "m": 32, "d": 16, "e": 16, "dtype": WIDE, "content": "large"},
    {"n": 120, "m": 16, "d": 32, "e": 32, "dtype": WIDE, "content": "equal", "same": True},
    {"n": 200, "m": 32, "d": 32, "e": 32, "dtype": HALF, "masked": True},
    {"n": 700, "m": 16, "d": 16, "e": 16, "dtype": HALF, "N": 1, "content": "shifted"},
    {"n": 150, "m": 64, "d": 64, "e": 64, "dtype": HALF, "N": 1, "content": "large"},
    {"n": 700, "m": 16, "d": 32, "e": 16, "dtype": BRAIN, "masked": True},
    {"n": 200, "m": 64, "d": 128, "e": 64, "dtype": BRAIN, "N": 1},
    {"n": 300, "m": 128, "d": 64, "e": 64, "dtype": BRAIN, "N": 1, "content": "shifted"},
    {"n": 130, "m": 32, "d": 32, "e": 32, "dtype": BRAIN, "masked": True, "content": "equal"},
]


LARGE = [
    {"n": n, "m": m, "d": d, "e": e, "dtype": dtype, "masked": masked, "N": 2}
    for n, m, d, e, masked in (
        (4173, 64, 64, 64, True), (4173, 128, 32, 32, False), (1027, 32, 128, 16, True), (1027, 16, 16, 128, False),
        (1027, 128, 128, 128, True), (50, 64, 32, 32, True), (1027, 64, 32, 32, True),
    )
    for dtype in (WIDE, HALF, BRAIN)
]  # fmt: skip
CASES = [(spec, spec["n"] != 200, 4) for spec in GRID]
CASES += [pytest.param(spec, copy, 6, marks=pytest.mark.slow) for spec in LARGE for copy in (True, False)]


@pytest.mark.parametrize(
    ("spec", "copy", "steps"),
    CASES,
    ids=lambda value: value if isinstance(value, int) else "-".join(map(str, value.values())),
)
def test_error_is_at_most_twice_that_of_the_naive_code(spec, copy, steps):
    check(spec, copy=copy, steps=steps)


@pytest.mark.parametrize("arch,dtype", [(80, WIDE), (100, WIDE), (80, HALF), (100, BRAIN)])
def test_tiles_of_other_architectures_compute_the_same(monkeypatch, arch, dtype):
    monkeypatch.setattr(tiles, "arch", lambda device: arch)
    check({"n": 70, "m": 64, "d": 64, "e": 64, "dtype": dtype, "masked": True, "N": 1})


@pytest.mark.parametrize("dtype", [WIDE, BRAIN])
def test_many_parts_of_the_sequence_are_combined_beforehand(monkeypatch, dtype):
    """And few by every program of the next launch, as in the tests above."""
    monkeypatch.setattr(tiles, "PARTS", 1)
    check({"n": 700, "m": 16, "d": 16, "e": 16, "dtype": dtype, "masked": True})


@pytest.mark.parametrize("dtype", [HALF, BRAIN])
def test_rounded_factors_add_three_roundings_to_that_of_the_naive_code(dtype):
    spec = {"n": 300, "m": 32, "d": 16, "e": 32, "dtype": dtype, "masked": True}
    rounded = check(spec, factor=4.0, impl="triton_rounded")
    assert sum(error for *_, error in rounded) > sum(error for *_, error in errors(spec))


def test_rounded_factors_of_float32_are_those_that_are_not():
    tensors, rows, cols, mask, dout = case(n=90, m=16, d=8, e=6, dtype=WIDE, masked=True)
    call = lambda impl: run(lambda *x: fused(*x, rows, cols, mask, True, 2, impl), tensors, dout, WIDE)
    assert all(map(torch.equal, *map(call, kernels.IMPLS)))


@pytest.mark.parametrize("examples", [6, pytest.param(30, marks=pytest.mark.slow)])
def test_any_shape_mask_stride_and_content(examples):
    @settings(max_examples=examples, deadline=None, derandomize=True)
    @given(st.data())
    def check_drawn(data):
        draw = lambda *choices: data.draw(st.sampled_from(choices))
        size = lambda most: data.draw(st.integers(1, most))
        sizes = {"n": size(150), "m": size(40), "d": size(40), "e": size(40), "N": size(2), "seed": size(1000)}
        kinds = {"masked": draw(True, False), "same": draw(True, False), "strides": draw("heads", "plain", "across")}
        spec = {**sizes, **kinds, "content": draw("normal", "equal", "large", "shifted"), "dtype": WIDE}
        check(spec, copy=draw(True, False), steps=size(6), floor=64)

    check_drawn()


@pytest.mark.parametrize("masked", [True, False])
def test_landmarks_get_their_gradients(masked):
    (q, k, v), _, _, mask, dout = case(n=70, m=16, d=24, e=8, dtype=WIDE, masked=True, H=2)
    marks = [torch.randn(2, 2, 12, 24, dtype=torch.float64, generator=torch.Generator().manual_seed(i)) for i in (1, 2)]
    real = torch.arange(12) < torch.tensor([[12], [5]])[:, None] if masked else None  # (N,1,c), for both heads

    def product(impl, *tensors):
        where = {"mask": mask if masked else None, "q_landmark_mask": real, "k_landmark_mask": real}
        return landmark_product(*tensors, pinv=partial(cubic, steps=6), impl=impl, **where)[0]

    call = lambda impl, dtype: run(partial(product, impl), (q, k, v, *marks), dout, dtype)
    truth, rough, mine = call("eager", torch.float64), call("eager", WIDE), call("triton", WIDE)
    for exact_, near, got in zip(truth, rough, mine, strict=True):
        assert (got - exact_).norm() <= 2 * (near - exact_).norm()


@pytest.mark.parametrize("class_token", [True, False])
@pytest.mark.parametrize("pairing", PAIRINGS)
@pytest.mark.parametrize("score", ["sum", "abs", "embed"])
def test_fused_selection_is_the_same_selection(score, pairing, class_token):
    (q, k, _), _, _, mask, _ = case(n=150, m=16, d=24, e=8, dtype=WIDE, masked=True, strides="across")
    rule = CUROptions(count=16, score=score, pairing=pairing, class_token=class_token)
    in_front = torch.arange(150) > torch.tensor([0, 3])[: len(q), None]
    for padding in (mask, in_front, None):
        selections = (select(q.float(), k.float(), rule, padding, fused=fused) for fused in (False, True))
        for eager, fused_ in zip(*selections, strict=True):
            assert torch.equal(eager.sort(-1).values, fused_.sort(-1).values)


def arguments(requires_grad=True):
    (q, k, v), rows, cols, mask, dout = case(n=40, m=16, d=8, e=6, dtype=WIDE, masked=True, N=1)
    q, k, v, dout = (x.float() for x in (q, k, v, dout))
    return [x.requires_grad_(requires_grad) for x in (q, k, v)], rows, cols, mask, dout


def test_operators_pass_opcheck():
    (q, k, v), rows, cols, mask, dout = arguments()
    detached = [x.detach() for x in (q, k, v)]
    near = [*detached[:2], rows, cols, mask[:, None], mask[:, None]]
    torch.library.opcheck(op.landmark_product, (q, k, v, *near, mask, 2, True, True))
    real = torch.ones(1, 1, 12, dtype=torch.bool)
    marks = [*(x[:, :, :12] for x in detached[:2]), None, None, real, real]
    torch.library.opcheck(op.landmark_product, (q, k, v, *marks, None, 2, False, False))
    saved = [x.detach() for x in op.landmark_product(q, k, v, *near, mask, 2, True, True)[1:]]
    torch.library.opcheck(op.landmark_product_backward, (dout, *detached, *near, mask, *saved, 2, True, True))
    torch.library.opcheck(op.token_scores, (q.detach(), k.detach(), mask, "abs", True))


@pytest.mark.parametrize("order", ["heads", "rows"])
def test_gradients_lie_as_their_inputs_do(order):
    """Any other layout autograd would copy."""
    tensors, rows, cols, mask, dout = arguments(requires_grad=False)
    twice = lambda x: torch.cat([x, x], 1)  # heads
    lay = torch.Tensor.contiguous if order == "heads" else lambda x: x.transpose(1, 2).contiguous().transpose(1, 2)
    leaves = [lay(twice(x)).requires_grad_() for x in tensors]
    out = fused(*leaves, twice(rows), twice(cols), mask, True, 2)
    gradients = torch.autograd.grad(out, leaves, twice(dout))
    assert [x.stride() for x in gradients] == [x.stride() for x in leaves]


@pytest.mark.compiles
def test_compiles_without_breaks():
    made = CUR(Sizes(heads=1, head_dim=8, value_dim=6, length=64), count=16, impl="triton")
    compiled = torch.compile(made, fullgraph=True, backend="aot_eager", dynamic=True)
    (q, k, v), _, _, mask, dout = arguments()
    for length in (40, 33):
        cut = [x[:, :, :length].detach().requires_grad_() for x in (q, k, v)]
        found = (torch.autograd.grad(f(*cut, mask[:, :length]), cut, dout[:, :, :length]) for f in (made, compiled))
        torch.testing.assert_close(*found, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [HALF, BRAIN])
def test_autocast_and_repeatability(dtype):
    (q, k, v), rows, cols, mask, _ = arguments()
    with torch.autocast("cpu", dtype):
        out = fused(q, k, v, rows, cols, mask, True, 2)
        alone = op.landmark_product(q, k, v, q, k, rows, cols, *[mask[:, None]] * 2, mask, 2, True, True)[0]
    assert out.dtype == dtype and alone.dtype == BRAIN  # as the operator is registered
    narrow = [x.to(dtype) for x in (q, k, v)]
    assert torch.equal(out, fused(*narrow, rows, cols, mask, True, 2))
    grads = torch.autograd.grad(out.float().sum(), (q, k, v))
    assert all(x.dtype == WIDE and x.isfinite().all() for x in grads)


def test_backward_inside_autocast_is_backward_outside(monkeypatch):
    """Library products in place of the inner kernel would be rounded by autocast."""
    monkeypatch.setattr(tiles, "on_chip", lambda *sizes: False)
    (q, k, v), rows, cols, mask, dout = arguments()
    out = fused(q, k, v, rows, cols, mask, True, 2)
    gradients = []
    for inside in (False, True):
        with torch.autocast("cpu", BRAIN, enabled=inside):
            gradients.append(torch.autograd.grad(out, (q, k, v), dout, retain_graph=True))
    assert all(map(torch.equal, *gradients))


@pytest.mark.slow
@pytest.mark.parametrize("strides", [(8, 8, 2**26, 1), (2**32 - 64, 8, 64, 1)], ids=["rows", "examples"])
def test_offsets_beyond_32_bits(strides):
    """In memory of 5 or 8 GB for each of q, k and v, of which next to nothing is touched."""
    (q, k, v), rows, cols, mask, dout = case(n=40, m=16, d=8, e=8, dtype=HALF, masked=True)
    near = [x.half().requires_grad_() for x in (q, k, v)]
    room = 1 + sum((size - 1) * stride for size, stride in zip(q.shape, strides, strict=True))
    far = [torch.empty(room, dtype=HALF).as_strided(x.shape, strides).copy_(x.detach()) for x in near]
    results = []
    for tensors in (near, [x.requires_grad_() for x in far]):
        out = fused(*tensors, rows, cols, mask, True, 2)
        results.append([out, *torch.autograd.grad(out, tensors, dout.half())])
    assert all(map(torch.equal, *results))


@pytest.mark.parametrize("m", [16, 128])
def test_an_empty_batch(m):
    q, k, v = (torch.empty(0, 2, 130, 8, requires_grad=True) for _ in range(3))
    index, mask = torch.empty(0, 2, m, dtype=torch.int64), torch.empty(0, 130, dtype=torch.bool)
    out = fused(q, k, v, index, index, mask, True, 4)
    assert out.shape == q.shape
    assert all(x.shape == q.shape for x in torch.autograd.grad(out.sum(), (q, k, v)))
    assert kernels.token_scores(q, k, mask, score="abs", class_token=False).shape == (2, 0, 2, 130)


@pytest.mark.parametrize(
    "kind,options,message",
    [
        (CUR, {"count": 129}, "kept rows from 1 to 128, not 129"),
        (CUR, {"head_dim": 130}, "head_dim from 1 to 128, not 130"),
        (Nystrom, {"value_dim": 200}, "value size from 1 to 128, not 200"),
        (CUR, {"pinv": exact}, "takes lra.ops.pinv.cubic as pinv and no other"),
        (CUR, {"pinv": partial(cubic, steps=-1)}, "steps must be 0 or more, not -1"),
        (NystromOriginal, {"pinv": partial(cubic, steps=6, init="batch")}, "takes pinv.init=per_matrix"),
    ],
)
def test_what_the_kernels_do_not_do_is_refused(kind, options, message):
    sizes = {"heads": 1, "head_dim": 8, "value_dim": 8, "length": 256}
    own_options = {key: option for key, option in options.items() if key not in sizes}
    with pytest.raises(ValueError, match=message):
        kind(Sizes(**{key: options.get(key, size) for key, size in sizes.items()}), **own_options, impl="triton")


def test_float64_and_a_machine_without_a_gpu_are_refused(monkeypatch):
    (q, k, v), rows, cols, mask, _ = arguments()
    with pytest.raises(ValueError, match=r"takes float32, float16 or bfloat16, not torch\.float64"):
        fused(q.double(), k.double(), v.double(), rows, cols, mask, True, 2)
    monkeypatch.delenv("TRITON_INTERPRET")
    message = "needs a GPU, the tensors are on cpu; impl=sdpa is the same without one"
    with pytest.raises(ValueError, match=message):
        fused(q, k, v, rows, cols, mask, True, 2)
    with pytest.raises(ValueError, match=message):
        kernels.token_scores(q, k, mask, score="abs", class_token=False)
