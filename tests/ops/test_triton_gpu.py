"""The Triton kernels on a GPU: CUDA_VISIBLE_DEVICES=0 python -m pytest -m gpu tests/ops/test_triton_gpu.py."""

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
# (m, d, masked, dtype): each kind of tile, and the sizes of bench preset=figure4 and table2.
CASES = [
    *[(m, d, masked, dtype) for dtype in DTYPES for m, d, masked in ((16, 16, True), (64, 32, True), (128, 64, True))],
    *[(m, 64, False, torch.bfloat16) for m in (32, 64, 128)],
    (64, 32, False, torch.bfloat16),
    (128, 128, True, torch.bfloat16),
    (64, 64, True, torch.float16),
]


@pytest.mark.parametrize("m,d,masked,dtype", CASES)
def test_gpu_kernel_error_is_at_most_twice_naive_error(m, d, masked, dtype, record_property):
    spec = {"m": m, "d": d, "e": d, "H": 2, "device": "cuda", "dtype": dtype, "masked": masked}
    for content in ("normal", "large", "equal", "shifted"):
        check({**spec, "n": 1027, "content": content}, steps=6)
    spec = {**spec, "n": 4096, "strides": "plain"}
    record_property("measured", line(spec, check(spec, steps=6)))


@pytest.mark.parametrize("d,e,dtype", [(20, 48, DTYPES[0]), (64, 128, DTYPES[1]), (128, 16, DTYPES[2])])
def test_key_and_value_sizes_can_differ(d, e, dtype):
    for strides in ("plain", "across"):
        sizes = {"n": 515, "m": 24, "d": d, "e": e, "device": "cuda"}
        check({**sizes, "dtype": dtype, "masked": True, "strides": strides}, copy=False, steps=6)


def on_gpu(n, m, d, dtype=torch.bfloat16, N=2, H=4):
    tensors, rows, cols, mask, dout = case(n=n, m=m, d=d, e=d, dtype=dtype, masked=True, N=N, H=H, device="cuda")
    return [x.to(dtype).requires_grad_() for x in tensors], rows, cols, mask, dout.to(dtype)


def test_peak_memory_has_no_n_by_m_tensor():
    """Twice the length adds the outputs and gradients of the added tokens, and little else."""
    m, d, heads = 128, 64, 8
    peaks = []
    for n in (32768, 65536):
        tensors, rows, cols, mask, dout = on_gpu(n, m, d)
        torch.cuda.reset_peak_memory_stats()
        memory_before = torch.cuda.memory_allocated()
        torch.autograd.grad(fused(*tensors, rows, cols, mask, True, 6), tensors, dout)
        peaks.append(torch.cuda.max_memory_allocated() - memory_before)
    assert peaks[1] - peaks[0] < 2 * heads * 32768 * (4 * d + m / 4)


def test_gradients_are_deterministic():
    tensors, rows, cols, mask, dout = on_gpu(4001, 64, 64)
    step = lambda: torch.autograd.grad(fused(*tensors, rows, cols, mask, True, 6), tensors, dout)
    first = step()
    for _ in range(5):
        assert all(map(torch.equal, first, step()))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU")
def test_tensors_on_another_device_give_same_gradients():
    """On cuda:0 the kernel also runs on a side stream."""
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


def test_cuda_graph_replays_forward_backward_and_selection():
    tensors, *_, mask, dout = on_gpu(1000, 64, 32)

    def step():
        scores = kernels.token_scores(tensors[0], tensors[1], mask, score="abs", class_token=False)
        selected = scores.topk(64, sorted=False).indices
        return torch.autograd.grad(fused(*tensors, selected[0], selected[1], mask, True, 4), tensors, dout)

    side_stream = torch.cuda.Stream()
    side_stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side_stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side_stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        graph_gradients = step()
    with torch.no_grad():
        for x in tensors:
            x.copy_(torch.randn_like(x))
    graph.replay()
    assert all(map(torch.equal, graph_gradients, step()))


def test_inductor_compiles_without_graph_breaks():
    mask = on_gpu(512, 32, 32)[3]
    block = config("flashcur_abs", "task.length=512", "model.dim=64").block_factory()().cuda().eval()
    x = torch.randn(2, 512, 64, device="cuda")
    eager_out = block(x, mask)[0]
    torch.testing.assert_close(torch.compile(block, fullgraph=True)(x, mask)[0], eager_out, rtol=1e-4, atol=1e-4)


def training_losses(attn: str, steps: int = 200) -> torch.Tensor:
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
        # Any label will do: the loss curves are compared, not the accuracy.
        label = (ids * mask).sum((1, 2)) % 2
        optimiser.zero_grad()
        loss = lit.loss(model, Batch((ids * mask).cuda(), mask.cuda(), label.cuda()))
        loss.backward()
        optimiser.step()
        curve.append(loss.detach())
    return torch.stack(curve)


def test_training_loss_curve_matches_sdpa():
    """Strided selection chooses the same tokens in both, so the curves differ by rounding only."""
    kernel, reference = training_losses("flashcur_step"), training_losses("cur_step")
    assert (kernel - reference).abs().max() < 1e-3 * reference[0]
