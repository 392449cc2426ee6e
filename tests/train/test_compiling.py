"""Compiled steps: which mode, that nothing changes a result, and what happens to a model that cannot be compiled."""

import pytest
import torch
from conftest import config
from support.training import result, seed_folder, smoke, train_config
from torch._dynamo.backends.registry import lookup_backend

from lra.train.compiling import GRAPHS, MAX_WIDTHS, modes, trial_batches

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
    train_config(smoke(tmp_path / "plain", *WORDS, attn="cur_abs"))
    return result(seed_folder(tmp_path / "plain", "cur_abs"))


def test_compiled_steps_train_as_others_do(plain, tmp_path, monkeypatch, capfd):
    """Also with batch norm, whose buffers the first try would change."""
    tried = with_backend(monkeypatch, lambda mode: True)
    train_config(smoke(tmp_path, *WORDS, f"trainer.compile={GRAPHS}", attn="cur_abs"))
    assert result(seed_folder(tmp_path, "cur_abs")) == plain
    assert {GRAPHS, None} == set(tried)  # steps and evaluations
    assert "continues without" not in capfd.readouterr().err


@pytest.mark.parametrize("graphs", [pytest.param(True, marks=pytest.mark.slow), False])
def test_what_cannot_be_compiled_goes_on_with_a_line(graphs, plain, tmp_path, monkeypatch, capfd):
    with_backend(monkeypatch, lambda mode: graphs and mode is None)
    train_config(smoke(tmp_path, *WORDS, f"trainer.compile={GRAPHS}", attn="cur_abs"))
    assert result(seed_folder(tmp_path, "cur_abs")) == plain
    lines = [line for line in capfd.readouterr().err.splitlines() if "continues without" in line]
    title = "listops cur_abs seed 0: continues without"
    assert lines[0].startswith(f"{title} CUDA graphs: ") and f"no {GRAPHS}" in lines[0]
    assert [line.startswith(f"{title} torch.compile: ") for line in lines[1:]] == [True] * (not graphs)


@pytest.mark.parametrize("name, padded", [("cur_abs", False), ("s4d_lin", True)])  # which keeps its padding
def test_rows_without_padding_are_not_compiled(name, padded, data_root, tmp_path, monkeypatch, capfd):
    tried = with_backend(monkeypatch, lambda mode: True)
    train_config(smoke(tmp_path, *WORDS, "trainer.compile=auto", "data.pad=none", attn=name))
    told = "continues without torch.compile: with data.pad=none each batch has its own shape" in capfd.readouterr().err
    assert (set(tried), told) == (({None}, False) if padded else (set(), True))


@pytest.mark.gpu
@pytest.mark.parametrize("pad", ["fixed", "batch"])
@pytest.mark.parametrize("name", ["cur_abs", "sdpa", "nystrom"])
def test_a_gpu_compiles_all_steps(name, pad, data_root, tmp_path, capfd):
    train_config(smoke(tmp_path, "trainer=gpu", f"data.pad={pad}", attn=name))
    assert result(seed_folder(tmp_path, name))["status"] == "done"
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
