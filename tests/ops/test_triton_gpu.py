"""The kernels on a GPU: CUDA_VISIBLE_DEVICES=0 python -m pytest -m gpu tests/ops/test_triton_gpu.py."""

from contextlib import nullcontext

import pytest
import torch
from conftest import config
from triton_reference import case, check, fused, line

from lra.data.datamodule import Batch
from lra.model.dropout import Dropout
from lra.ops import triton as kernels
from lra.train import lit

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")]
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
CASES = [  # m, d, masked: of each kind of tile, and those of bench preset=figure4 and table2, which find them compiled
    *[(m, d, masked, dtype) for dtype in DTYPES for m, d, masked in ((16, 16, True), (64, 32, True), (128, 64, True))],
    *[(m, 64, False, torch.bfloat16) for m in (32, 64, 128)],
    (64, 32, False, torch.bfloat16),
    (128, 128, True, torch.bfloat16),
    (64, 64, True, torch.float16),
]


@pytest.mark.parametrize("m,d,masked,dtype", CASES)
def test_error_is_at_most_twice_that_of_the_naive_code(m, d, masked, dtype, record_property):
    spec = {"m": m, "d": d, "e": d, "H": 2, "device": "cuda", "dtype": dtype, "masked": masked}
    for content in ("normal", "large", "equal", "shifted"):
        check({**spec, "n": 1027, "content": content}, steps=6)
    spec = {**spec, "n": 4096, "strides": "plain"}
    record_property("measured", line(spec, check(spec, steps=6)))


@pytest.mark.parametrize("d,e,dtype", [(20, 48, DTYPES[0]), (64, 128, DTYPES[1]), (128, 16, DTYPES[2])])
def test_key_and_value_sizes_may_differ(d, e, dtype):
    for strides in ("plain", "across"):
        sizes = {"n": 515, "m": 24, "d": d, "e": e, "device": "cuda"}
        check({**sizes, "dtype": dtype, "masked": True, "strides": strides}, copy=False, steps=6)


def on_gpu(n, m, d, dtype=torch.bfloat16, N=2, H=4):
    tensors, rows, cols, mask, dout = case(n=n, m=m, d=d, e=d, dtype=dtype, masked=True, N=N, H=H, device="cuda")
    return [x.to(dtype).requires_grad_() for x in tensors], rows, cols, mask, dout.to(dtype)


def test_memory_never_holds_n_by_m():
    """Twice the length costs twice the output and gradients, and next to nothing more."""
    m, d, heads = 128, 64, 8
    peaks = []
    for n in (32768, 65536):
        tensors, rows, cols, mask, dout = on_gpu(n, m, d)
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        torch.autograd.grad(fused(*tensors, rows, cols, mask, True, 6), tensors, dout)
        peaks.append(torch.cuda.max_memory_allocated() - before)
    assert peaks[1] - peaks[0] < 2 * heads * 32768 * (4 * d + m / 4)


def test_results_do_not_vary_from_run_to_run():
    tensors, rows, cols, mask, dout = on_gpu(4001, 64, 64)
    step = lambda: torch.autograd.grad(fused(*tensors, rows, cols, mask, True, 6), tensors, dout)
    first = step()
    for _ in range(5):
        assert all(map(torch.equal, first, step()))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU")
def test_a_device_that_is_not_the_current_one():
    """On another stream of it, too."""
    gradients = []
    for device in ("cuda:0", "cuda:1"):
        (q, k, v), rows, cols, mask, dout = case(n=300, m=16, d=16, e=16, dtype=DTYPES[0], masked=True, device=device)
        q, k, v, dout = (x.float().requires_grad_() for x in (q, k, v, dout))
        with torch.cuda.stream(torch.cuda.Stream(device)) if device == "cuda:0" else nullcontext():
            grads = torch.autograd.grad(fused(q, k, v, rows, cols, mask, True, 4), (q, k, v), dout)
            torch.cuda.synchronize(device)
        gradients.append([x.cpu() for x in grads])
        assert torch.cuda.current_device() == 0
    assert all(map(torch.equal, *gradients))


def test_a_cuda_graph_replays_forward_backward_and_selection():
    tensors, *_, mask, dout = on_gpu(1000, 64, 32)

    def step():
        scores = kernels.token_scores(tensors[0], tensors[1], mask, score="abs", class_token=False)
        kept = scores.topk(64, sorted=False).indices
        return torch.autograd.grad(fused(*tensors, kept[0], kept[1], mask, True, 4), tensors, dout)

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    with torch.no_grad():
        for x in tensors:
            x.copy_(torch.randn_like(x))
    graph.replay()
    assert all(map(torch.equal, captured, step()))


def test_compiled_by_inductor_without_breaks():
    mask = on_gpu(512, 32, 32)[3]
    made = config("flashcur_abs", "task.length=512", "model.dim=64").block_factory()().cuda().eval()  # without dropout
    x = torch.randn(2, 512, 64, device="cuda")
    plain = made(x, mask)[0]
    compiled = torch.compile(made, fullgraph=True)
    torch.testing.assert_close(compiled(x, mask)[0], plain, rtol=1e-4, atol=1e-4)


def losses(attn: str, steps: int = 200) -> torch.Tensor:
    torch.manual_seed(0)
    model = config(attn, "task.length=256", "attn.count=32").classifier().cuda().train()
    for part in model.modules():
        if isinstance(part, torch.nn.Dropout | Dropout):
            part.p = 0.0
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(1)
    curve = []
    for _ in range(steps):
        ids = torch.randint(1, 16, (16, 1, 256), generator=g)
        mask = torch.arange(256) < torch.randint(100, 257, (16, 1, 1), generator=g)
        label = (ids * mask).sum((1, 2)) % 2  # the curves are compared, not the accuracy
        optimiser.zero_grad()
        loss = lit.loss(model, Batch((ids * mask).cuda(), mask.cuda(), label.cuda()))
        loss.backward()
        optimiser.step()
        curve.append(loss.detach())
    return torch.stack(curve)


def test_the_loss_curve_is_that_of_sdpa():
    """Selection by steps is the same for both; rounding alone drives the curves apart."""
    kernel, reference = losses("flashcur_step"), losses("cur_step")
    assert (kernel - reference).abs().max() < 1e-3 * reference[0]
