"""Tests of the bfloat16 warning, heap trimming, evaluation without enough memory, and compiled steps."""

import re
import subprocess
import sys

import pytest
import torch
from conftest import config, set_up, slow
from support.training import result, trained
from torch._dynamo.backends.registry import lookup_backend
from torch.nn import functional as F

from lra.config.errors import explain, is_user_error
from lra.config.experiment import MIN_GPU_EVAL_BATCH
from lra.data.datamodule import Batch
from lra.ops import precision
from lra.train import trainer
from lra.train.compilation import GRAPHS, MAX_NUM_WIDTHS, list_modes, trial_batches
from lra.train.lit import LitClassifier

# Live small blocks between freed large ones fragment the heap. Each trim returns more than 10 MB.
PROGRAM = """
import random
import torch
from lra.train import device
device.keep_pages()
device.GROWTH = 1
trim, kept = device.TrimHeap(), []
def fragment():
    for step in range(24):
        kept.append([(torch.empty(random.randrange(2**16, 2**20)), torch.ones(64))[1] for _ in range(20)])
        parts = [torch.ones(random.randrange(2**16, 2**20)) for _ in range(20)]
        del parts
    return device.resident_bytes()
random.seed(0)
for hook in (trim.on_validation_end, trim.on_train_batch_end, trim.on_validation_batch_end, trim.on_test_batch_end):
    # The first call after a trim sets the baseline of the growth.
    hook(None, None)
    before = fragment()
    hook(None, None)
    assert device.resident_bytes() < before - 10 * 2**20 and trim.baseline is None
"""


@pytest.mark.parametrize(("able", "said"), [(False, 1), (True, 0)])
def test_bf16_is_recorded_and_warns_without_cpu_support(monkeypatch, tmp_path, data_root, capfd, able, said):
    operations = set()

    class Recorder(precision.ProductsInFloat32):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            operations.add(func)
            return super().__torch_dispatch__(func, types, args, kwargs)

    monkeypatch.setattr(precision, "supports_bf16", lambda: able)
    monkeypatch.setattr(trainer, "ProductsInFloat32", Recorder)
    run_dir = trained(tmp_path, "trainer.precision=bf16", "trainer.device=cpu", attn="mean")
    # Forward and backward passes.
    aten = torch.ops.aten
    assert (operations >= {aten.addmm.default, aten.embedding_dense_backward.default}) is not able
    assert capfd.readouterr().err.count("no bfloat16 instructions; trainer.precision=fp32 is faster") == said
    assert "trainer.precision: bf16\n" in (run_dir / "config.yaml").read_text()


@pytest.mark.parametrize(
    "function, shapes",
    [
        (F.linear, [(4, 512), (8, 512), (8,)]), (F.conv1d, [(2, 64, 16), (4, 64, 5)]),
        (torch.bmm, [(2, 4, 512), (2, 512, 4)]), (torch.baddbmm, [(2, 4, 4), (2, 4, 512), (2, 512, 4)]),
        (F.scaled_dot_product_attention, [(1, 2, 256, 16)] * 3),
    ],
)  # fmt: skip
def test_emulated_bf16_products_are_rounded_once(function, shapes):
    """Forward and backward passes equal the float32 computation of the same numbers, rounded."""
    inputs = [torch.randn(shape).bfloat16().requires_grad_() for shape in shapes]
    exact_inputs = [x.detach().float().requires_grad_() for x in inputs]
    with precision.ProductsInFloat32():
        out = function(*inputs)
        gradients = torch.autograd.grad(out.sum(), inputs)
    exact = function(*exact_inputs)
    exact_gradients = torch.autograd.grad(exact.sum(), exact_inputs)
    assert torch.equal(out, exact.bfloat16())
    # The backward pass of fused attention reads the rounded output.
    tolerance = 2**-7 if function is F.scaled_dot_product_attention else 0
    for gradient, value in zip(gradients, exact_gradients, strict=True):
        torch.testing.assert_close(gradient, value.bfloat16(), rtol=tolerance, atol=tolerance)


@pytest.mark.skipif(sys.platform != "linux", reason="mallopt and malloc_trim are glibc's")
def test_heap_is_trimmed_after_evaluation_and_when_memory_grows():
    subprocess.run([sys.executable, "-c", PROGRAM], check=True)


CPU_ALLOCATOR = "[enforce fail at alloc_cpu.cpp:114] err == 0. DefaultCPUAllocator: can't allocate memory: you tried"
OUT_OF_MEMORY = {
    "cuda": torch.OutOfMemoryError("CUDA out of memory"),
    "context": torch.AcceleratorError("CUDA error: out of memory\nSearch for `cudaErrorMemoryAllocation'"),
    "cublas": RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    "cpu": RuntimeError(CPU_ALLOCATOR),
    "macos": RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 8 bytes."),
    "c++": RuntimeError("std::bad_alloc"),
    "python": MemoryError(),
}


class Small(torch.nn.Module):
    """Raises ``error`` for more than ``most`` examples."""

    def __init__(self, most, error):
        super().__init__()
        self.most, self.error, self.calls, self.encode_separately = most, error, [], False

    def forward(self, inputs, mask, positions):
        self.calls.append(len(inputs))
        if len(inputs) > self.most:
            raise self.error
        return inputs[:, 0, :1].float() * (1 if mask is None else mask[:, 0, :1])


@pytest.mark.parametrize("error", OUT_OF_MEMORY.values(), ids=OUT_OF_MEMORY)
def test_evaluation_halves_batch_when_out_of_memory(error):
    module, inputs = LitClassifier.of(config("mean"), Small(3, error), seed=0).eval(), torch.arange(14)[:, None, None]
    batch = Batch(inputs, torch.ones_like(inputs, dtype=torch.bool), torch.zeros(14))
    for _ in range(2):
        module.validation_step(batch, 0)
    assert [out.flatten().tolist() for out, _ in module._evaluated] == [list(range(14))] * 2
    # 14 and 7 examples fail; the second evaluation begins with the limit of 3.
    assert module.model.calls == [14, 7, 3, 3, 3, 3, 2, 3, 3, 3, 3, 2] and module.eval_limit == 3
    # No smaller batch is possible: examples interact, or a single example is too large.
    for most, encode_separately in ((3, True), (0, False)):
        module.model.most, module.model.encode_separately = most, encode_separately
        module.eval_limit = None
        with pytest.raises(type(error)) as excinfo:
            module.validation_step(batch, 0)
        message = explain(excinfo.value)
        assert is_user_error(excinfo.value) and message.startswith("out of memory") and "Search" not in message


def test_eval_batch_is_larger_on_gpu_unless_examples_interact(monkeypatch):
    eval_batch = lambda name, *words: config(name, "optim.batch=8", *words).eval_batch
    assert eval_batch("cur_abs") == 8
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert eval_batch("cur_abs") == MIN_GPU_EVAL_BATCH and eval_batch("cur_abs", "optim.batch=600") == 600
    assert eval_batch("cur_abs", "trainer.device=cpu") == 8 and eval_batch("cur_abs", "data.eval_batch=7") == 7
    assert eval_batch("nystrom_original") == 8


# No dropout: compiled code draws other random numbers than eager code.
WORDS = "model.norm=batch", "model.dropout=0", "model.layers=1"


def patch_compile(monkeypatch, working_modes):
    """Patch torch.compile to trace in some modes and to fail in others; returns the modes that were tried."""
    original_compile, tried_modes = torch.compile, []

    def compile_eagerly(function, mode=None):
        def backend(graph, examples):
            tried_modes.append(mode)
            if mode not in working_modes:
                raise RuntimeError(f"no {mode}\nand why")
            return lookup_backend("eager")(graph, examples)

        return original_compile(function, backend=backend)

    monkeypatch.setattr(torch, "compile", compile_eagerly)
    return tried_modes


@pytest.mark.compiles
@pytest.mark.parametrize("working_modes", [(GRAPHS, None), slow((None,)), ()])
def test_compiled_training_matches_eager_and_logs_failures(working_modes, data_root, tmp_path, monkeypatch, capfd):
    """With batch norm too, whose buffers the trial steps update."""
    eager = result(trained(tmp_path / "eager", *WORDS, attn="cur_abs"))
    tried_modes = patch_compile(monkeypatch, working_modes)
    assert result(trained(tmp_path, *WORDS, f"trainer.compile={GRAPHS}", attn="cur_abs")) == eager
    # Training steps with CUDA graphs, evaluations without.
    assert set(tried_modes) == {GRAPHS, None}
    lines = [line for line in capfd.readouterr().err.splitlines() if "continues without" in line]
    failures = {GRAPHS: f"CUDA graphs: .* no {GRAPHS} and why", None: r"torch\.compile: .* no None and why"}
    patterns = [text for mode, text in failures.items() if mode not in working_modes]
    for line, pattern in zip(lines, patterns, strict=True):
        assert re.match(f"listops cur_abs seed 0: continues without {pattern}", line)


@pytest.mark.compiles
# s4d_lin computes on padded batches, so it is compiled.
@pytest.mark.parametrize("name, padded", [("cur_abs", False), ("s4d_lin", True)])
def test_batches_without_padding_are_not_compiled(name, padded, data_root, tmp_path, monkeypatch, capfd):
    tried_modes = patch_compile(monkeypatch, (GRAPHS, None))
    trained(tmp_path, *WORDS, "trainer.compile=auto", "data.pad=none", attn=name)
    message = "continues without torch.compile: with data.pad=none each batch has its own shape"
    assert (set(tried_modes), message in capfd.readouterr().err) == (({None}, False) if padded else (set(), True))


@pytest.mark.gpu
@pytest.mark.parametrize("pad", ["fixed", "batch"])
@pytest.mark.parametrize("name", ["cur_abs", "sdpa", "nystrom"])
def test_gpu_compiles_all_steps(name, pad, data_root, tmp_path, monkeypatch, capfd):
    original, compiled = torch.compile, []
    monkeypatch.setattr(torch, "compile", lambda f, **options: compiled.append(f) or original(f, **options))
    assert result(trained(tmp_path, "trainer=gpu", f"data.pad={pad}", attn=name))["status"] == "done"
    assert compiled and "continues without" not in capfd.readouterr().err


@pytest.mark.parametrize(
    "words, wanted, device, graphs",
    [
        (["data.pad=fixed"], "auto", "cuda", True), (["data.pad=fixed"], "auto", "cpu", False),
        (["data.pad=fixed"], True, "cuda", False), (["data.pad=fixed", "optim.micro_batch=2"], GRAPHS, "cuda", False),
        (["data.pad=fixed", "optim.micro_batch=2"], "auto", "cuda", False),
        # Batches that are larger than the training set have one width.
        (["data.pad=batch", "optim.batch=512"], "auto", "cuda", True),
    ],
)  # fmt: skip
def test_cuda_graphs_need_few_shapes_and_one_micro_batch(data_root, words, wanted, device, graphs):
    data = set_up(config("sdpa", *words).task_data())
    assert list_modes(wanted, data, device) == [GRAPHS] * graphs + [None]


def test_many_batch_widths_disable_cuda_graphs(data_root):
    data = set_up(config("sdpa", "data.pad=batch", "optim.batch=2").task_data())
    batches = zip(range(len(data.splits["train"]) // 2), data.train_dataloader(), strict=False)
    assert data.count_widths() == len({batch.inputs.shape[-1] for _, batch in batches}) == 2
    trial = trial_batches(data.train_dataloader())
    # The second width makes torch.compile generate kernels for any width.
    assert len({batch.inputs.shape[2] for batch in trial}) == len(trial) == 2
    data.count_widths = lambda: MAX_NUM_WIDTHS + 1
    assert list_modes("auto", data, "cuda") == [None]
