"""Tests of the benchmark command: agreement of the implementations it compares, presets, FLOP counts and records."""

import functools
import re
from dataclasses import replace
from unittest.mock import Mock

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from lra.attention.base import Sizes
from lra.attention.cur import CUR
from lra.attention.sdpa import SDPA
from lra.bench import contestants, profile, roofline, workloads
from lra.bench.__main__ import bench
from lra.bench.contestants import BenchOptions
from lra.bench.released_cur import ReleasedCUR
from lra.bench.sdpa_backends import Exact
from lra.config.compose import compose
from lra.config.experiment import Experiment
from lra.config.recipes import choices
from lra.model.dropout import Dropout
from lra.ops.newton import newton
from lra.results import bench_record
from lra.runs.reader import scan
from lra.train.lit import LitClassifier

SIZES = Sizes(heads=2, head_dim=8, value_dim=8, length=96)
STEP = ("what=step", "modes=training", "tasks=listops", "budget=smoke")
SMALL = ["n=64", "batch=1", "head_dim=8", "repeats=1", "warmup=0", "device=cpu"]
run = bench.__wrapped__


def qkv(dtype):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(2, 2, 96, 8, generator=generator, dtype=torch.float64).to(dtype) for _ in range(3)]


def both_passes(attention, tensors, mask=None):
    """Return the output and the gradients of a fixed weighted sum of the output with respect to the tensors."""
    tensors = [x.clone().requires_grad_() for x in tensors]
    out = attention(*tensors, mask)
    (out * torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)).sum().backward()
    return [out.detach(), *(x.grad for x in tensors)]


@pytest.mark.parametrize("impl", ["eager", "sdpa"])
@pytest.mark.parametrize("score", ["sum", "abs", "embed", "step"])
@pytest.mark.parametrize("copy_rv", [True, False])
def test_released_cur_equals_cur(impl, score, copy_rv):
    cur = CUR(SIZES, count=16, score=score, copy_rv=copy_rv, impl=impl)
    reference = ReleasedCUR(SIZES, count=16, score=score, copy_rv=copy_rv)
    masks = [None] if score == "step" else [None, torch.arange(96) < torch.tensor([[96], [40]])]
    for mask in masks:
        exact = both_passes(reference, qkv(torch.float64), mask)
        torch.testing.assert_close(both_passes(cur, qkv(torch.float64), mask), exact, rtol=1e-9, atol=1e-9)
        single = both_passes(reference, qkv(torch.float32), mask)
        for a, b, truth in zip(both_passes(cur, qkv(torch.float32), mask), single, exact, strict=True):
            # The two compute U by different products: CUR may err 4 times as much as the released code does.
            assert (a - truth).abs().max() <= 4 * (b - truth).abs().max() + 1e-6 * truth.abs().max()


# No mask for flash: torch's kernel accepts none on a GPU, and sequences of full length need none.
@pytest.mark.parametrize(
    ("backend", "masked"), [("naive", False), ("naive", True), ("flash", False), ("math", False), ("math", True)]
)
def test_exact_backends_match_sdpa(backend, masked):
    mask = torch.arange(96) < torch.tensor([[96], [40]]) if masked else None
    actual, truth = (both_passes(f, qkv(torch.float64), mask) for f in (Exact(SIZES, backend=backend), SDPA(SIZES)))
    torch.testing.assert_close(actual, truth, rtol=1e-9, atol=1e-9)


def test_flex_backend_matches_sdpa():
    """Uncompiled, and forward only: flex attention has no backward on a CPU."""
    mask = torch.arange(96) < torch.tensor([[96], [40]])
    with torch.compiler.set_stance("force_eager"):
        actual = Exact(SIZES, backend="flex")(*qkv(torch.float32), mask)
    torch.testing.assert_close(actual, SDPA(SIZES)(*qkv(torch.float32), mask), rtol=1e-4, atol=1e-5)


def read_only_record(runs):
    (path,) = runs.rglob(bench_record.FILE)
    return bench_record.load(path)


@pytest.fixture
def measured(tmp_path):
    """Return a function that runs the smallest benchmark, one length and one sample, and returns its record."""

    def call(*words):
        run(compose(BenchOptions, [*SMALL, f"runs={tmp_path}", *words]))
        return read_only_record(tmp_path)

    return call


@pytest.fixture(autouse=True)
def rates(monkeypatch):
    """Replace the measured rates by 1 GB/s and 1 GFLOP/s; returns the real function."""
    measure_rates = roofline.rates
    monkeypatch.setattr(roofline, "rates", lambda device, dtypes: (1e9, dict.fromkeys(dtypes, 1e9)))
    return measure_rates


def test_rates_are_bytes_and_flops_per_second(rates, monkeypatch):
    devices = []

    def half_a_second(operation, device):
        operation()
        devices.append(device)
        return 0.5

    monkeypatch.setattr(roofline, "_seconds", half_a_second)
    assert rates("cpu", ["fp32"]) == (2 * 2**27 / 0.5, {"fp32": 2 * 1024**3 / 0.5}) and devices == ["cpu"] * 2


def test_trainer_gpu_sets_device_precision_and_compile(measured, monkeypatch):
    """The step runs on the CPU, with a compiler that only traces."""
    cfg = compose(BenchOptions, ["what=step", "trainer=gpu"])
    assert (cfg.device, cfg.dtype, cfg.compile) == ("cuda", ["bf16"], "auto")
    modes, original = [], torch.compile
    trace = lambda f, dynamic, mode: modes.append(mode) or original(f, dynamic=dynamic, backend="eager")
    monkeypatch.setattr(torch, "compile", trace)
    (row,) = measured(*STEP, "mechanisms=[mean]", "reference=null", "trainer=gpu", "trainer.device=cpu").rows
    assert modes == ["reduce-overhead"] and (row.status, row.dtype) == ("ok", "bf16")


@functools.cache
def check_mechanism_builds(name):
    cfg = contestants.experiment(name, ["task=text", "model.heads=16", "model.head_dim=64", "model.dim=1024"])
    if cfg.unavailable is None:
        cfg.block_factory()()


@pytest.mark.parametrize("preset", choices("preset"))
def test_preset_composes_and_its_mechanisms_build(preset):
    cfg = compose(BenchOptions, [f"preset={preset}"])
    names = contestants.expand_names(cfg.mechanisms, "mechanisms")
    assert cfg.name == preset and set(cfg.claims) <= {*contestants.MECHANISMS, *contestants.BENCHMARK_ONLY}
    assert cfg.reference is None or cfg.reference in names
    for name in set(names) - set(contestants.MECHANISMS):
        check_mechanism_builds(name)


def test_mechanism_name_may_have_several_options():
    attn = contestants.experiment("cur_step-count=16-pinv.steps=6", ["task=text"]).attn
    assert (attn.get("count"), attn.get("pinv").get("steps"), attn.get("score")) == (16, 6, "step")


def test_row_has_time_or_reason_of_failure(measured, monkeypatch, capfd):
    """All subjects and modes, a Mixer and a Block; failures: out of memory, no GPU, a count above the length."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(SDPA, "forward", Mock(side_effect=torch.OutOfMemoryError("no room")))
    expected = {
        "sdpa": "out of memory",
        "flash": "needs a GPU",
        "cur_step-count=65": "attn.count must be from 1 to",
        "custom-_target_=torch.nn.functional.softmax": "must name a class",
        "published-count=65": "count must be from 1 to",
    }
    names = ",".join(f'"{name}"' for name in ["naive", "psf", "luna", *expected])
    measurement = measured(f"mechanisms=[{names}]", "what=[attention,block,step]", "tasks=listops")
    assert "written to" in capfd.readouterr().out
    assert measurement.kind == "bench" and len(measurement.rows) == 8 * 2 * 3
    rows = {(row.mechanism, row.what, row.mode): row for row in measurement.rows}
    for (name, *_), row in rows.items():
        assert (row.status == "ok") == bool(row.samples) == (row.ms is not None) == (name not in expected)
        assert row.peak_bytes > 0 if row.status == "ok" else expected[name] in row.status
    # The roofline counts q, k, v and the output; a Mixer moves more.
    assert rows["psf", "attention", "training"].roofline_bytes is None
    # 11 G n d elements and 14 G n² d FLOPs with G = 2, n = 64, d = 8, see lra.bench.roofline.
    naive = rows["naive", "attention", "training"]
    assert naive.roofline_bytes == 11 * 2 * 64 * 8 * 4 and naive.flops == 14 * 2 * 64 * 64 * 8
    seconds = max(naive.roofline_bytes / measurement.machine.copy, naive.flops / measurement.machine.matmul["fp32"])
    assert naive.roofline_ms == pytest.approx(1000 * seconds)


def test_error_rows_match_rounding_of_explicit_softmax(measured, monkeypatch, capfd):
    """Oracle: explicit softmax attention and its backward pass in the dtype and in float64; sdpa alone fails."""
    monkeypatch.setattr(SDPA, "forward", lambda self, q, *args: q * torch.nan)
    measurement = measured("what=error", "n=[64,96]", "dtype=[fp32,bf16]", "mechanisms=[softmax,sdpa,psf,mean]")
    assert "gradients, n = 96" in capfd.readouterr().out
    rows = {(r.mechanism, r.mode, r.n, r.dtype): r for r in measurement.rows}
    assert len(rows) == 4 * 2 * 2 * 2 and not any(row.samples for row in rows.values())
    for (name, mode, n, dtype), row in rows.items():
        if name == "sdpa":
            assert "is not finite" in row.status and row.errors is None
            continue
        assert row.status == "ok" and len(row.errors) == (2 if mode == "training" else 1)
        eps = torch.finfo(workloads.DTYPES[dtype]).eps
        assert all(0 < error < 10 * eps for error in row.errors), (name, mode, n, dtype, row.errors)

    inputs = workloads.Inputs(contestants.Shape(96, 1, 2, 8, "fp32"), "cpu")
    results = []
    for dtype in (torch.float32, torch.float64):
        q, k, v = (x.detach().to(dtype) for x in inputs.qkv)
        p = ((q @ k.mT) * 8**-0.5).softmax(-1)
        g = inputs.gradient(torch.empty(1, 2, 96, 8)).to(dtype)
        s = p * (g @ v.mT - (g @ v.mT * p).sum(-1, keepdim=True)) * 8**-0.5
        results.append((p @ v, torch.stack([s @ k, s.mT @ q, p.mT @ g])))
    measurement = rows["softmax", "training", 96, "fp32"].errors
    for error, (single, double) in zip(measurement, zip(*results, strict=True), strict=True):
        oracle_error = ((single - double).norm() / double.norm()).item()
        assert oracle_error / 4 < error < 4 * oracle_error


def test_steps_on_data_cover_every_padding_mode(measured, data_root):
    pads = ["fixed", "batch", "batch/2", "none"]
    words = [*STEP, "mechanisms=[cur_step]", 'overrides=["attn.count=16"]', "batches=data", "batch=4"]
    rows = measured(*words, f"pads=[{','.join(pads)}]").rows
    assert [(row.pad, row.n, row.status) for row in rows] == [(pad, 128, "ok") for pad in pads]
    assert max(rows[2].peak_bytes, rows[3].peak_bytes) < rows[1].peak_bytes <= rows[0].peak_bytes


def test_steps_in_several_dtypes_are_interleaved(measured, monkeypatch):
    dtype_calls = []
    monkeypatch.setattr(workloads, "model_step", lambda config, device, dtype, *more: lambda: dtype_calls.append(dtype))
    words = ("mechanisms=mean", "reference=null", "dtype=[fp32,bf16]", "clock=cpu", "repeats=2")
    rows = measured(*STEP, *words).rows
    assert [(row.dtype, row.status, len(row.samples)) for row in rows] == [("fp32", "ok", 2), ("bf16", "ok", 2)]
    assert dtype_calls == ["fp32", "bf16"] * 3


def test_training_step_lowers_loss(monkeypatch):
    cfg = contestants.experiment("cur_abs", ["task=listops", "budget=smoke", "optim.lr=0.01"])
    torch.manual_seed(0)
    model, batch = cfg.classifier(), cfg.random_batch("cpu")
    assert batch.inputs.shape == (8, 1, 128) and batch.mask is None and batch.inputs.min() >= 1
    monkeypatch.setattr(Experiment, "classifier", lambda experiment: model)
    initial_loss = workloads.lit.loss(model.eval(), batch)
    step = workloads.model_step(cfg, "cpu", "fp32", "random", "training", False)
    for _ in range(8):
        step()
    assert workloads.lit.loss(model.eval(), batch) < initial_loss and all(p.grad is None for p in model.parameters())


def test_torch_dropout_option_replaces_dropout_modules():
    # 7 = 1 of the embedding + 2 layers x (1 of the mixer + 2 of the MLP).
    for name, counts in (("published", [7, 0]), ("published-torch_dropout=true", [0, 7])):
        parts = list(workloads.classifier(contestants.experiment(name, ["task=listops", "budget=smoke"])).modules())
        assert [sum(type(part) is x and part.p == 0.1 for part in parts) for x in (Dropout, nn.Dropout)] == counts


def test_length_over_time_limit_is_skipped(measured):
    short, long = measured("what=attention", "modes=training", "n=[64,4096]", "limit=1e-9", "mechanisms=[naive]").rows
    assert short.status == "ok" and long.status.startswith("left out: about") and long.samples == ()


def test_same_choices_share_a_folder_that_run_scans_ignore(measured, tmp_path):
    words = ["what=attention", "mechanisms=[naive]", "modes=inference"]
    measured(*words)
    # budget_s is not a choice: the record replaces the first one, and ``measured`` finds a single file.
    measurement = measured(*words, "budget_s=100")
    assert measurement.choices["mechanisms"] == ["naive"] and "runs" not in measurement.choices
    assert measurement.machine.threads == torch.get_num_threads() and not any(scan(tmp_path))
    # An interrupted repetition does not replace the record.
    assert bench_record.load(bench_record.save(replace(measurement, rows=[]), tmp_path)) == measurement
    run(compose(BenchOptions, [*SMALL, f"runs={tmp_path}", *words, "repeats=2"]))
    assert len(list(tmp_path.rglob(bench_record.FILE))) == 2


@pytest.mark.parametrize(
    "words",
    [
        ["mechanisms=['mine-dropout=0.5','custom-_target_=lra.attention.sdpa.SDPA-dropout=0.5']"],
        ["attn=custom", "attn._target_=lra.attention.sdpa.SDPA", "+attn.dropout=0.5"],
    ],
    ids=["by their names", "as in lra.train"],
)
def test_custom_mechanism_is_benchmarked(words, tmp_path, call):
    (tmp_path / "conf" / "attn").mkdir(parents=True)
    yaml_text = "_target_: lra.attention.sdpa.SDPA\n_partial_: true\ndropout: 0.0\n"
    (tmp_path / "conf" / "attn" / "mine.yaml").write_text(yaml_text)
    words = ["--config-dir", str(tmp_path / "conf"), f"runs={tmp_path}", *SMALL, "what=attention", *words]
    assert call(bench, *words)[0] is None
    rows = {row.mechanism: row for row in read_only_record(tmp_path).rows}
    assert all(row.status == "ok" and row.ms for row in rows.values())
    assert any(name.startswith("custom-_target_=lra.attention.sdpa.SDPA") for name in rows)


def test_flop_formulas_match_torch_flop_counter():
    """The released code has one product fewer than the formula: it takes U out of C."""

    def count_flops(attention, call):
        with FlopCounterMode(display=False) as counter:
            call(attention)
        return counter.get_total_flops()

    forward = lambda attention: attention(*qkv(torch.float32))
    forward_backward = lambda attention: both_passes(attention, qkv(torch.float32))
    formula = lambda attention, backward=False: roofline.flops(attention, 4, 96, 8, backward=backward)
    cur, released, exact = CUR(SIZES, count=16), ReleasedCUR(SIZES, count=16), Exact(SIZES)
    assert formula(cur) == formula(released) == count_flops(released, forward) + 4 * 2 * 16 * 16 * 8
    assert formula(released, True) == 3 * formula(released) and formula(exact) == count_flops(exact, forward)
    # The formula also counts the scores that the backward pass recomputes.
    assert formula(exact, True) == count_flops(exact, forward_backward) + 4 * 2 * 96 * 96 * 8
    exact.causal = True
    assert 2 * formula(exact) == 4 * 4 * 96 * 97 * 8
    # The steps of another iteration cost something else.
    assert formula(CUR(SIZES, count=16, pinv=functools.partial(newton, steps=20))) is None


def test_profile_shares_sum_to_100_percent(capfd):
    """Warm-up and profiled steps together are more than the steps of the budget."""
    words = ["what=profile", "mechanisms=cur_abs", "n=64", "batch=2", "steps=4", "tasks=listops", "budget=smoke"]
    run(compose(BenchOptions, words))
    out = capfd.readouterr().out
    assert "listops cur_abs" in out and "not arithmetic" in out and "matrix products" in out
    *parts, rest = [float(share) for share in re.findall(r"^ *all .*?(-?[\d.]+)%", out, re.MULTILINE)]
    assert len(parts) > 3 and min(parts) >= 0 and abs(sum(parts) - 100) < 1 and 0 < rest < 100


def test_profiled_step_has_all_micro_batches_of_its_batch(monkeypatch, data_root, capfd):
    steps, step = [], LitClassifier.training_step
    record_step = lambda self, batch, *i: steps.append((self.global_step, len(batch.label))) or step(self, batch, *i)
    monkeypatch.setattr(LitClassifier, "training_step", record_step)
    words = ["what=profile", "mechanisms=mean", "tasks=listops", "budget=smoke", "batches=data", "pads=batch/2"]
    run(compose(BenchOptions, [*words, "batch=8", "steps=2", "device=cpu"]))
    # A bare and a profiled run of 5 steps, the first 3 of them the warm-up.
    assert steps == 2 * [(step, 2) for step in range(5) for _ in range(4)]
    assert re.search(r"^ *Optimizer\.step#AdamW\.step .* 1 *$", capfd.readouterr().out, re.MULTILINE)


def test_operator_kind_matches_its_name():
    assert profile.kind("aten::is_nonzero") == "waiting for the device"
    assert profile.kind("aten::zero_") == "moving data" and profile.kind("aten::_fused_adamw_") == "optimiser"
    assert profile.kind("triton_poi_fused_mm_copy_0") == profile.ELEMENTWISE
    assert profile.kind("aten::t") == "moving data" and profile.kind("AddmmBackward0") == profile.PYTHON
    assert profile.kind("Optimizer.zero_grad#AdamW.zero_grad") == profile.PYTHON
