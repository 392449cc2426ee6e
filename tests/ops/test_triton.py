"""The Triton kernels, on a GPU if there is one and otherwise interpreted, against float64 autograd."""

from functools import partial

import numpy as np
import pytest
import torch
from conftest import KERNELS, assert_error
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

WIDE, F16, BF16 = torch.float32, torch.float16, torch.bfloat16


@pytest.fixture(autouse=True)
def poisoned(monkeypatch):
    """Fill every buffer that a launch allocates with NaN, so that a missing write shows in the result."""
    allocate = torch.Tensor.new_empty

    def new_empty(self, *shape, **options):
        buffer = allocate(self, *shape, **options)
        return buffer.fill_(float("nan")) if buffer.dtype.is_floating_point else buffer

    monkeypatch.setattr(torch.Tensor, "new_empty", new_empty)
    allocate_like = torch.empty_like
    monkeypatch.setattr(torch, "empty_like", lambda x: allocate_like(x).fill_(float("nan")))


GRID = [
    {"n": 200, "m": 16, "d": 16, "e": 16, "dtype": WIDE, "masked": True},
    {"n": 300, "m": 32, "d": 32, "e": 64, "dtype": WIDE, "masked": True, "strides": "plain"},
    {"n": 90, "m": 64, "d": 64, "e": 32, "dtype": WIDE, "masked": True, "same": True},
    {"n": 150, "m": 128, "d": 16, "e": 128, "dtype": WIDE, "masked": True},
    {"n": 140, "m": 24, "d": 20, "e": 6, "dtype": WIDE, "strides": "across"},
    {"n": 9, "m": 16, "d": 32, "e": 32, "dtype": WIDE, "masked": True},
    {"n": 170, "m": 32, "d": 16, "e": 16, "dtype": WIDE, "content": "large"},
    {"n": 120, "m": 16, "d": 32, "e": 32, "dtype": WIDE, "content": "equal", "same": True},
    {"n": 200, "m": 32, "d": 32, "e": 32, "dtype": F16, "masked": True},
    {"n": 700, "m": 16, "d": 16, "e": 16, "dtype": F16, "N": 1, "content": "shifted"},
    {"n": 150, "m": 64, "d": 64, "e": 64, "dtype": F16, "N": 1, "content": "large"},
    {"n": 700, "m": 16, "d": 32, "e": 16, "dtype": BF16, "masked": True},
    {"n": 200, "m": 64, "d": 128, "e": 64, "dtype": BF16, "N": 1},
    {"n": 300, "m": 128, "d": 64, "e": 64, "dtype": BF16, "N": 1, "content": "shifted"},
    {"n": 130, "m": 32, "d": 32, "e": 32, "dtype": BF16, "masked": True, "content": "equal"},
]
LARGE = [
    {"n": n, "m": m, "d": d, "e": e, "dtype": dtype, "masked": masked, "N": 2}
    for n, m, d, e, masked in (
        (4173, 64, 64, 64, True), (4173, 128, 32, 32, False), (1027, 32, 128, 16, True), (1027, 16, 16, 128, False),
        (1027, 128, 128, 128, True), (50, 64, 32, 32, True), (1027, 64, 32, 32, True),
    )
    for dtype in (WIDE, F16, BF16)
]  # fmt: skip
CASES = [(spec, spec["n"] != 200, 4) for spec in GRID]
# Values of a large mean: in the gradient of the inverse all but a small part cancels in the softmax of U.
SHIFTED = {"n": 259, "d": 32, "e": 32, "dtype": BF16, "N": 1, "content": "shifted"}
CASES += [(SHIFTED | {"m": m}, True, 6) for m in (16, 64)]
CASES += [pytest.param(spec, copy, 6, marks=pytest.mark.slow) for spec in LARGE for copy in (True, False)]


@pytest.mark.parametrize("spec, copy, steps", CASES, ids=str)
def test_kernel_error_is_at_most_twice_naive_error(spec, copy, steps):
    check(spec, copy=copy, steps=steps)


@pytest.mark.parametrize("arch,dtype", [(80, WIDE), (100, WIDE), (80, F16), (100, BF16)])
def test_tiles_of_other_architectures_meet_error_bound(monkeypatch, arch, dtype):
    monkeypatch.setattr(tiles, "arch", lambda device: arch)
    check({"n": 70, "m": 64, "d": 64, "e": 64, "dtype": dtype, "masked": True, "N": 1})


@pytest.mark.parametrize("dtype", [WIDE, BF16])
def test_many_sequence_parts_are_combined_before_next_launch(monkeypatch, dtype):
    """In the tests above there are at most PARTS parts, which every program of the next launch combines itself."""
    monkeypatch.setattr(tiles, "PARTS", 1)
    check({"n": 700, "m": 16, "d": 16, "e": 16, "dtype": dtype, "masked": True})


@pytest.mark.parametrize("dtype", [F16, BF16])
def test_triton_rounded_error_is_at_most_four_times_naive_error(dtype):
    spec = {"n": 300, "m": 32, "d": 16, "e": 32, "dtype": dtype, "masked": True}
    rounded = check(spec, factor=4.0, impl="triton_rounded")
    assert sum(error for *_, error in rounded) > sum(error for *_, error in errors(spec))


def test_triton_rounded_equals_triton_in_float32_with_steps_of_numpy():
    tensors, rows, cols, mask, dout = case(n=90, m=16, d=8, e=6, dtype=WIDE, masked=True)
    call = lambda impl: run(lambda *x: fused(*x, rows, cols, mask, True, np.int64(2), impl), tensors, dout, WIDE)
    assert all(map(torch.equal, *map(call, ("triton", "triton_rounded"))))


@pytest.mark.parametrize("examples", [6, pytest.param(30, marks=pytest.mark.slow)])
def test_kernel_error_on_random_cases(examples):
    # derandomize seeds the examples from the source code of ``check_drawn``: an edit there changes all cases.
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
def test_landmark_gradient_error_is_at_most_twice_eager_error(masked):
    (q, k, v), _, _, mask, dout = case(n=70, m=16, d=24, e=8, dtype=WIDE, masked=True, H=2)
    generators = [torch.Generator().manual_seed(i) for i in (1, 2)]
    landmarks = [torch.randn(2, 2, 12, 24, dtype=torch.float64, generator=g) for g in generators]
    real = torch.arange(12) < torch.tensor([[12], [5]])[:, None] if masked else None  # (N,1,c), for both heads

    def product(impl, *tensors):
        masks = {"mask": mask if masked else None, "q_landmark_mask": real, "k_landmark_mask": real}
        return landmark_product(*tensors, pinv=partial(cubic, steps=6), impl=impl, **masks)[0]

    call = lambda impl, dtype: run(partial(product, impl), (q, k, v, *landmarks), dout, dtype)
    truth, eager_out, kernel_out = call("eager", torch.float64), call("eager", WIDE), call("triton", WIDE)
    for expected, near, result in zip(truth, eager_out, kernel_out, strict=True):
        assert (result - expected).norm() <= 2 * (near - expected).norm()


@pytest.mark.parametrize("class_token", [True, False])
@pytest.mark.parametrize("pairing", PAIRINGS)
@pytest.mark.parametrize("score", ["sum", "abs", "embed"])
def test_fused_selection_matches_eager_selection(score, pairing, class_token):
    (q, k, _), _, _, mask, _ = case(n=150, m=16, d=24, e=8, dtype=WIDE, masked=True, strides="across")
    cur_options = CUROptions(count=16, score=score, pairing=pairing, class_token=class_token)
    left_padding = torch.arange(150) > torch.tensor([0, 3])[: len(q), None]
    for padding in (mask, left_padding, None):
        selections = (select(q.float(), k.float(), cur_options, padding, fused=fused) for fused in (False, True))
        for eager, fused_ in zip(*selections, strict=True):
            assert torch.equal(eager.sort(-1).values, fused_.sort(-1).values)


def small_case():
    (q, k, v), rows, cols, mask, dout = case(n=40, m=16, d=8, e=6, dtype=WIDE, masked=True, N=1)
    q, k, v, dout = (x.float() for x in (q, k, v, dout))
    return [x.requires_grad_() for x in (q, k, v)], rows, cols, mask, dout


def test_operators_pass_opcheck():
    (q, k, v), rows, cols, mask, dout = small_case()
    detached = [x.detach() for x in (q, k, v)]
    near = [*detached[:2], rows, cols, mask[:, None], mask[:, None]]
    torch.library.opcheck(op.landmark_product, (q, k, v, *near, mask, 2, True, True))
    real = torch.ones(1, 1, 12, dtype=torch.bool)
    landmarks = [*(x[:, :, :12] for x in detached[:2]), None, None, real, real]
    torch.library.opcheck(op.landmark_product, (q, k, v, *landmarks, None, 2, False, False))
    saved = [x.detach() for x in op.landmark_product(q, k, v, *near, mask, 2, True, True)[1:]]
    torch.library.opcheck(op.landmark_product_backward, (dout, *detached, *near, mask, *saved, 2, True, True))
    torch.library.opcheck(op.token_scores, (q.detach(), k.detach(), mask, "abs", True))


@pytest.mark.parametrize("order", ["heads", "rows"])
def test_gradient_strides_match_input_strides(order):
    """Autograd would copy a gradient of any other layout."""
    tensors, rows, cols, mask, dout = small_case()
    two_heads = lambda x: torch.cat([x, x], 1)
    arrange = torch.Tensor.contiguous if order == "heads" else lambda x: x.transpose(1, 2).contiguous().transpose(1, 2)
    leaves = [arrange(two_heads(x.detach())).requires_grad_() for x in tensors]
    out = fused(*leaves, two_heads(rows), two_heads(cols), mask, True, 2)
    assert [x.stride() for x in torch.autograd.grad(out, leaves, two_heads(dout))] == [x.stride() for x in leaves]


@pytest.mark.compiles
def test_cur_compiles_without_graph_breaks():
    module = CUR(Sizes(heads=1, head_dim=8, value_dim=6, length=64), count=16, impl="triton")
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager", dynamic=True)
    (q, k, v), _, _, mask, dout = small_case()
    for length in (40, 33):
        slices = [x[:, :, :length].detach().requires_grad_() for x in (q, k, v)]
        outputs = (f(*slices, mask[:, :length]) for f in (module, compiled))
        pair = (torch.autograd.grad(out, slices, dout[:, :, :length]) for out in outputs)
        torch.testing.assert_close(*pair, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [F16, BF16])
def test_autocast_output_equals_output_of_16_bit_inputs(dtype):
    (q, k, v), rows, cols, mask, _ = small_case()
    with torch.autocast("cpu", dtype):
        out = fused(q, k, v, rows, cols, mask, True, 2)
        op_out = op.landmark_product(q, k, v, q, k, rows, cols, *[mask[:, None]] * 2, mask, 2, True, True)[0]
    # The operator itself is registered with autocast to bfloat16.
    assert out.dtype == dtype and op_out.dtype == BF16
    assert torch.equal(out, fused(*(x.to(dtype) for x in (q, k, v)), rows, cols, mask, True, 2))
    assert all(x.dtype == WIDE and x.isfinite().all() for x in torch.autograd.grad(out.float().sum(), (q, k, v)))


def test_library_inverse_is_contiguous_and_its_backward_ignores_autocast(monkeypatch):
    """Without ``on_chip`` library products compute the inverse, and autocast would round them."""
    monkeypatch.setattr(tiles, "on_chip", lambda *sizes: False)
    (q, k, v), rows, cols, mask, dout = small_case()
    out = fused(q, k, v, rows, cols, mask, True, 2)
    gradients = []
    for inside in (False, True):
        with torch.autocast("cpu", BF16, enabled=inside):
            gradients.append(torch.autograd.grad(out, (q, k, v), dout, retain_graph=True))
    assert all(map(torch.equal, *gradients))
    # Without steps it is a scaled transpose; the fake implementation of the operator promises contiguous matrices.
    z = op.landmark_product(q, k, v, q, k, rows, cols, *[mask[:, None]] * 2, mask, 0, True, True)[-1]
    assert z.is_contiguous()


@pytest.mark.slow
@pytest.mark.parametrize("strides", [(8, 8, 2**26, 1), (2**32 - 64, 8, 64, 1)], ids=["rows", "examples"])
def test_strides_beyond_32_bits_give_same_results(strides):
    """q, k and v each reserve 5 or 8 GB of memory, almost none of which is touched."""
    (q, k, v), rows, cols, mask, dout = case(n=40, m=16, d=8, e=8, dtype=F16, masked=True)
    near = [x.half().requires_grad_() for x in (q, k, v)]
    num_elements = 1 + sum((size - 1) * stride for size, stride in zip(q.shape, strides, strict=True))
    far = [torch.empty(num_elements, dtype=F16).as_strided(x.shape, strides).copy_(x.detach()) for x in near]
    results = []
    for tensors in (near, [x.requires_grad_() for x in far]):
        out = fused(*tensors, rows, cols, mask, True, 2)
        results.append([out, *torch.autograd.grad(out, tensors, dout.half())])
    assert all(map(torch.equal, *results))


@pytest.mark.parametrize(
    "kind,sizes,options,message",
    [
        (CUR, {}, {"count": 129}, "number of selected tokens or landmarks from 1 to 128, not 129"),
        (CUR, {"head_dim": 130}, {}, "head_dim from 1 to 128, not 130"),
        (Nystrom, {"value_dim": 200}, {}, "value size from 1 to 128, not 200"),
        (CUR, {}, {"pinv": exact}, "take lra.ops.pinv.cubic as pinv and no other"),
        (CUR, {}, {"pinv": partial(cubic, steps=2.5)}, "steps must be 0 or more, not 2.5"),
        (CUR, {}, {"pinv": partial(cubic, steps=-1)}, "steps must be 0 or more, not -1"),
        (CUR, {}, {"pinv": partial(cubic)}, "steps must be 0 or more, not null"),
        (NystromOriginal, {}, {"pinv": partial(cubic, steps=6, init="batch")}, "take pinv.init=per_matrix"),
    ],
)
def test_unsupported_options_raise_value_error(kind, sizes, options, message):
    sizes = Sizes(**{"heads": 1, "head_dim": 8, "value_dim": 8, "length": 256} | sizes)
    assert_error(message, kind, sizes, **options, impl="triton")


def test_float64_and_missing_gpu_raise_value_error(monkeypatch):
    (q, k, v), rows, cols, mask, _ = small_case()
    with pytest.raises(ValueError, match=r"take float32, float16 or bfloat16, not torch\.float64"):
        fused(q.double(), k.double(), v.double(), rows, cols, mask, True, 2)
    monkeypatch.delenv("TRITON_INTERPRET")
    message = "need a GPU, the tensors are on cpu; impl=sdpa is the same without one"
    assert_error(message, fused, q, k, v, rows, cols, mask, True, 2)
    assert_error(message, kernels.token_scores, q, k, mask, score="abs", class_token=False)
