"""Threads, 16-bit matrix products, memory of training and evaluation, and compiled steps."""

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import config
from support.training import result, trained
from torch._dynamo.backends.registry import lookup_backend

from lra.config.experiment import MIN_GPU_EVAL_BATCH
from lra.data.datamodule import Batch
from lra.train import device
from lra.train.callbacks import GRAPHS, MAX_WIDTHS, modes, trial_batches
from lra.train.lit import LitClassifier

# Small blocks that stay, between large ones that go, fragment a heap. Printed: MB before and after each trimming.
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
    return device.resident_bytes() >> 20
def step(phase):
    getattr(trim, f"on_{phase}_batch_end")(None, None, None, None, 0)
    return device.resident_bytes() >> 20
random.seed(0)
print(fragment(), trim.on_validation_end(None, None) or device.resident_bytes() >> 20)
for phase in ("train", "validation", "test"):
    step(phase)
    print(fragment(), step(phase))
    assert trim.baseline is None
"""


def test_a_run_without_a_number_of_threads_has_that_of_the_process(monkeypatch):
    before, set_to = torch.get_num_threads(), []
    monkeypatch.setattr(torch, "get_num_threads", lambda: set_to[-1] if set_to else before)
    monkeypatch.setattr(torch, "set_num_threads", set_to.append)
    for threads in (None, before + 2, None, None):
        device.prepare_process("cpu", threads)
    assert set_to == [before + 2, before]


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_this_processor_says_whether_it_multiplies_16_bit_numbers():
    flags = Path("/proc/cpuinfo").read_text()
    assert device.supports_bf16() == ("amx_tile" in flags or "avx512_bf16" in flags)


@pytest.mark.parametrize(("able", "said"), [(False, 1), (True, 0)])
def test_bf16_is_used_and_recorded_and_its_slowness_is_said(monkeypatch, tmp_path, data_root, capfd, able, said):
    monkeypatch.setattr(device, "supports_bf16", lambda: able)
    run_dir = trained(tmp_path, "trainer.precision=bf16", "trainer.device=cpu", attn="mean")
    assert capfd.readouterr().err.count("no bfloat16 instructions; trainer.precision=fp32 is faster") == said
    assert "trainer.precision: bf16\n" in (run_dir / "config.yaml").read_text()


@pytest.mark.skipif(sys.platform != "linux", reason="mallopt and malloc_trim are glibc's")
def test_free_pages_are_given_back_after_an_evaluation_and_when_memory_has_grown():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    for before, after in (map(int, line.split()) for line in done.stdout.splitlines()):
        assert after < before - 10, done.stdout


CPU_ALLOCATOR = "[enforce fail at alloc_cpu.cpp:114] err == 0. DefaultCPUAllocator: can't allocate memory: you tried"
OUT_OF_MEMORY = {
    "cuda": torch.OutOfMemoryError("CUDA out of memory"),
    "cpu": RuntimeError(CPU_ALLOCATOR),
    "c++": RuntimeError("std::bad_alloc"),
    "python": MemoryError(),
}


class Small(torch.nn.Module):
    """Raises an error above a number of examples."""

    def __init__(self, most, error):
        super().__init__()
        self.most, self.error, self.calls, self.encode_separately = most, error, [], False

    def forward(self, inputs, mask, positions):
        self.calls.append(len(inputs))
        if len(inputs) > self.most:
            raise self.error
        return inputs[:, 0, :1].float() * (1 if mask is None else mask[:, 0, :1])


def evaluation(model):
    module = LitClassifier.of(config("mean"), model, seed=0).eval()
    inputs = torch.arange(14)[:, None, None]
    return module, Batch(inputs, torch.ones_like(inputs, dtype=torch.bool), torch.zeros(14))


@pytest.mark.parametrize("error", OUT_OF_MEMORY.values(), ids=OUT_OF_MEMORY)
def test_evaluation_continues_with_half_the_examples_if_memory_runs_out(error):
    module, batch = evaluation(Small(3, error))
    for _ in range(2):
        module.validation_step(batch, 0)
    assert [out.flatten().tolist() for out, _ in module._evaluated] == [list(range(14))] * 2
    assert module.model.calls == [14, 7, 3, 3, 3, 3, 2, 3, 3, 3, 3, 2] and module.eval_limit == 3
    # Examples interact; one is too many.
    for most, encode_separately in ((3, True), (0, False)):
        module.model.most, module.model.encode_separately = most, encode_separately
        module.eval_limit = None
        with pytest.raises(type(error)):
            module.validation_step(batch, 0)


def test_another_error_of_the_model_is_not_retried():
    module, batch = evaluation(Small(3, RuntimeError("shapes do not match")))
    with pytest.raises(RuntimeError, match="shapes"):
        module.validation_step(batch, 0)
    assert module.model.calls == [14]


@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_AS is enforced by Linux")
def test_evaluation_fits_into_a_memory_limit_of_the_process():
    """The address space of a child is limited to 512 MiB more; 14 examples take 14 times 128 MiB."""

    class Large(Small):
        def forward(self, inputs, mask, positions):
            self.calls.append(len(inputs))
            torch.empty(len(inputs), 2**25).fill_(1.0)
            return inputs[:, 0, :1].float()

    child = os.fork()
    if not child:
        module, batch = evaluation(Large(14, None))
        limit = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() + 2**29
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        module.validation_step(batch, 0)
        is_retried = module.model.calls == [14, 7, 3, 3, 3, 3, 2] and len(module._evaluated[0][0]) == 14
        os._exit(0 if is_retried else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_more_examples_are_evaluated_on_a_gpu_unless_they_interact(monkeypatch):
    rows = lambda name, *words: config(name, "optim.batch=8", *words).eval_batch
    assert rows("cur_abs") == 8
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert rows("cur_abs") == MIN_GPU_EVAL_BATCH and rows("cur_abs", "optim.batch=600") == 600
    assert rows("cur_abs", "trainer.device=cpu") == 8 and rows("cur_abs", "data.eval_batch=7") == 7
    assert rows("nystrom_original") == 8


WORDS = "model.norm=batch", "model.dropout=0", "model.layers=1"  # compiled code draws dropout by itself


def with_backend(monkeypatch, works):
    """Compile by tracing alone where ``works(mode)``, and fail elsewhere; returns the modes that were tried."""
    compiled, tried = torch.compile, []

    def patched(function, mode=None):
        def backend(graph, examples):
            tried.append(mode)
            if not works(mode):
                raise RuntimeError(f"no {mode}\nand why")
            return lookup_backend("eager")(graph, examples)

        return compiled(function, backend=backend)

    monkeypatch.setattr(torch, "compile", patched)
    return tried


@pytest.fixture
def plain(data_root, tmp_path):
    return result(trained(tmp_path / "plain", *WORDS, attn="cur_abs"))


@pytest.mark.compiles
def test_compiled_steps_train_as_others_do(plain, tmp_path, monkeypatch, capfd):
    """Also with batch norm, whose buffers the first try would change."""
    tried = with_backend(monkeypatch, lambda mode: True)
    assert result(trained(tmp_path, *WORDS, f"trainer.compile={GRAPHS}", attn="cur_abs")) == plain
    assert {GRAPHS, None} == set(tried)  # steps and evaluations
    assert "continues without" not in capfd.readouterr().err


@pytest.mark.compiles
@pytest.mark.parametrize("graphs", [pytest.param(True, marks=pytest.mark.slow), False])
def test_what_cannot_be_compiled_continues_with_a_message(graphs, plain, tmp_path, monkeypatch, capfd):
    with_backend(monkeypatch, lambda mode: graphs and mode is None)
    assert result(trained(tmp_path, *WORDS, f"trainer.compile={GRAPHS}", attn="cur_abs")) == plain
    lines = [line for line in capfd.readouterr().err.splitlines() if "continues without" in line]
    title = "listops cur_abs seed 0: continues without"
    assert lines[0].startswith(f"{title} CUDA graphs: ") and f"no {GRAPHS}" in lines[0]
    assert [line.startswith(f"{title} torch.compile: ") for line in lines[1:]] == [True] * (not graphs)


@pytest.mark.compiles
@pytest.mark.parametrize("name, padded", [("cur_abs", False), ("s4d_lin", True)])  # which keeps its padding
def test_batches_without_padding_are_not_compiled(name, padded, data_root, tmp_path, monkeypatch, capfd):
    tried = with_backend(monkeypatch, lambda mode: True)
    trained(tmp_path, *WORDS, "trainer.compile=auto", "data.pad=none", attn=name)
    message = "continues without torch.compile: with data.pad=none each batch has its own shape"
    is_logged = message in capfd.readouterr().err
    assert (set(tried), is_logged) == (({None}, False) if padded else (set(), True))


@pytest.mark.gpu
@pytest.mark.parametrize("pad", ["fixed", "batch"])
@pytest.mark.parametrize("name", ["cur_abs", "sdpa", "nystrom"])
def test_a_gpu_compiles_all_steps(name, pad, data_root, tmp_path, capfd):
    assert result(trained(tmp_path, "trainer=gpu", f"data.pad={pad}", attn=name))["status"] == "done"
    assert "continues without" not in capfd.readouterr().err


@pytest.mark.parametrize(
    "words, wanted, device, graphs",
    [
        (["data.pad=fixed"], "auto", "cuda", True),
        (["data.pad=fixed"], "auto", "cpu", False),
        (["data.pad=fixed", "optim.micro_batch=2"], "auto", "cuda", False),
        (["data.pad=fixed"], True, "cuda", False),
        (["data.pad=fixed", "optim.micro_batch=2"], GRAPHS, "cuda", True),
    ],
)
def test_graphs_are_for_steps_of_few_shapes(data_root, words, wanted, device, graphs):
    data = config("sdpa", *words).task_data()
    data.setup()
    assert modes(wanted, data, device) == [GRAPHS] * graphs + [None]


def test_the_widths_of_batches_are_counted(data_root):
    data = config("sdpa", "data.pad=batch", "optim.batch=2").task_data()
    data.setup()
    batches = zip(range(len(data.splits["train"]) // 2), data.train_dataloader(), strict=False)
    assert data.widths() == len({batch.inputs.shape[-1] for _, batch in batches}) == 2
    trial = trial_batches(data.train_dataloader())
    assert len({batch.inputs.shape[2] for batch in trial}) == len(trial) == 2  # kernels for any width are tried too
    data.widths = lambda: MAX_WIDTHS + 1
    assert modes("auto", data, "cuda") == [None]
