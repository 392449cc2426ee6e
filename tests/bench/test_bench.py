"""The benchmark: what is compared computes the same, every preset's names resolve, what fails is a row."""

import functools
import re

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from lra.attention.base import Sizes
from lra.attention.cur import CUR
from lra.attention.sdpa import SDPA
from lra.bench import contestants, roofline, workloads
from lra.bench.__main__ import bench
from lra.bench.options import BenchOptions
from lra.bench.released_cur import ReleasedCUR
from lra.bench.sdpa_backends import Exact
from lra.config import CONF
from lra.config.compose import compose
from lra.config.experiment import Experiment
from lra.model.dropout import Dropout
from lra.results import bench_record
from lra.runs.reader import scan

PRESETS = sorted(path.stem for path in (CONF / "preset").glob("*.yaml"))
SIZES = Sizes(heads=2, head_dim=8, value_dim=8, length=96)
run = bench.__wrapped__


def qkv(dtype, n=96):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(2, 2, n, 8, generator=generator, dtype=torch.float64).to(dtype) for _ in range(3)]


def both_passes(attention, tensors, mask=None):
    """Output and gradients of a fixed sum of it, as one list."""
    tensors = [x.clone().requires_grad_() for x in tensors]
    out = attention(*tensors, mask)
    weights = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)
    (out * weights).sum().backward()
    return [out.detach(), *(x.grad for x in tensors)]


@pytest.mark.parametrize("impl", ["eager", "sdpa"])
@pytest.mark.parametrize("score", ["sum", "abs", "embed", "step"])
@pytest.mark.parametrize("copy_rv", [True, False])
def test_published_is_the_same_function_as_cur(impl, score, copy_rv):
    cur = CUR(SIZES, count=16, score=score, copy_rv=copy_rv, impl=impl)
    published = ReleasedCUR(SIZES, count=16, score=score, copy_rv=copy_rv)
    masks = [None] if score == "step" else [None, torch.arange(96) < torch.tensor([[96], [40]])]
    for mask in masks:
        exact = both_passes(published, qkv(torch.float64), mask)
        torch.testing.assert_close(both_passes(cur, qkv(torch.float64), mask), exact, rtol=1e-9, atol=1e-9)
        single = both_passes(published, qkv(torch.float32), mask)
        for a, b, truth in zip(both_passes(cur, qkv(torch.float32), mask), single, exact, strict=True):
            # U comes from two different products: each may be as wrong as the published code's own rounding
            assert (a - truth).abs().max() <= 4 * (b - truth).abs().max() + 1e-6 * truth.abs().max()


def test_published_draws_again_in_every_call():
    torch.manual_seed(0)
    drawn = ReleasedCUR(SIZES, count=16, score="random")
    assert not torch.equal(drawn(*qkv(torch.float64)), drawn(*qkv(torch.float64)))


# torch's flash kernel takes no mask on a GPU; a step of full rows has none.
@pytest.mark.parametrize(
    ("backend", "masked"), [("naive", False), ("naive", True), ("flash", False), ("math", False), ("math", True)]
)
def test_exact_backends_agree(backend, masked):
    mask = torch.arange(96) < torch.tensor([[96], [40]]) if masked else None
    got, truth = (both_passes(f, qkv(torch.float64), mask) for f in (Exact(SIZES, backend=backend), SDPA(SIZES)))
    torch.testing.assert_close(got, truth, rtol=1e-9, atol=1e-9)


def test_flex_is_exact_attention():
    """Uncompiled, and forward only: the CPU has no backward of it."""
    mask = torch.arange(96) < torch.tensor([[96], [40]])
    with torch.compiler.set_stance("force_eager"):
        got = Exact(SIZES, backend="flex")(*qkv(torch.float32), mask)
    torch.testing.assert_close(got, SDPA(SIZES)(*qkv(torch.float32), mask), rtol=1e-4, atol=1e-5)


STEP = ("what=step", "modes=training", "tasks=listops", "budget=smoke")
SMALL = ["n=64", "batch=1", "head_dim=8", "repeats=1", "warmup=0", "device=cpu"]


def written(runs):
    (path,) = runs.rglob(bench_record.FILE)
    return bench_record.load(path)


@pytest.fixture
def measured(tmp_path):
    """The record of the smallest benchmark, of one length and one sample, with further words."""

    def call(*words):
        run(compose(BenchOptions, [*SMALL, f"runs={tmp_path}", *words]))
        return written(tmp_path)

    return call


@pytest.fixture(autouse=True)
def rates(monkeypatch):
    """A machine of 1 GB/s and 1 GFLOP/s, known at once; the test of the real rates has its own."""
    real = roofline.rates
    monkeypatch.setattr(roofline, "rates", lambda device, dtypes: (1e9, dict.fromkeys(dtypes, 1e9)))
    return real


def test_rates_of_this_machine(rates, monkeypatch):
    taken = []
    monkeypatch.setattr(roofline, "_seconds", lambda call, device: (call(), taken.append(device), 0.5)[2])
    assert rates("cpu", ["fp32"]) == (2 * 2**27 / 0.5, {"fp32": 2 * 1024**3 / 0.5}) and taken == ["cpu"] * 2


def test_the_trainer_of_a_gpu_says_device_precision_and_compile(measured, monkeypatch):
    """Run on the CPU, with a compiler that only traces."""
    made = compose(BenchOptions, ["what=step", "trainer=gpu"])
    assert (made.device, made.dtype, made.compile) == ("cuda", ["bf16"], "auto")
    compiled, modes = torch.compile, []

    def traced(function, dynamic, mode):
        modes.append(mode)
        return compiled(function, dynamic=dynamic, backend="eager")

    monkeypatch.setattr(torch, "compile", traced)
    (row,) = measured(*STEP, "mechanisms=[mean]", "reference=null", "trainer=gpu", "trainer.device=cpu").rows
    assert modes == ["reduce-overhead"] and (row.status, row.dtype) == ("ok", "bf16")


@functools.cache
def resolved(name):
    made = contestants.experiment(name, ["task=text", "model.heads=16", "model.head_dim=64", "model.dim=1024"])
    if made.unavailable is None:
        made.block_factory()()


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_composes_and_its_names_resolve(preset):
    made = compose(BenchOptions, [f"preset={preset}"])
    names = contestants.names(made.mechanisms)
    assert made.name == preset and set(made.claims) <= {*contestants.MECHANISMS, *contestants.BENCHMARK_ONLY}
    assert made.reference is None or made.reference in names
    for name in set(names) - set(contestants.MECHANISMS):
        resolved(name)


def test_names():
    assert contestants.names(["naive", "all", "sdpa"])[0] == "naive" and "custom" not in contestants.names(["all"])
    made = contestants.experiment("cur_step-count=16-pinv.steps=6", ["task=text"])
    assert (made.attn.get("count"), made.attn.get("pinv").get("steps"), made.attn.get("score")) == (16, 6, "step")


def test_every_kind_of_row(measured, monkeypatch, capfd):
    """All three subjects, both modes, a Mixer and a Block; out of memory, no GPU, too few tokens."""

    def full(*_):
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(SDPA, "forward", full)
    expected = {
        "sdpa": "out of memory",
        "flash": "needs a GPU",
        "cur_step-count=65": "attn.count must be from 1 to",
        "published-count=65": "count must be from 1 to",
    }
    names = ",".join(f'"{name}"' for name in ["naive", "psf", "luna", *expected])
    found = measured(f"mechanisms=[{names}]", "what=[attention,block,step]", "tasks=listops")
    assert "written to" in capfd.readouterr().out
    assert found.kind == "bench" and len(found.rows) == 7 * 2 * 3
    rows = {(row.mechanism, row.what, row.mode): row for row in found.rows}
    for (name, *_), row in rows.items():
        assert (row.status == "ok") == bool(row.samples) == (row.ms is not None) == (name not in expected)
        assert row.peak_bytes > 0 if row.status == "ok" else expected[name] in row.status
    assert rows["psf", "attention", "training"].roofline_bytes is None  # a Mixer moves more than q, k and v
    naive = rows["naive", "attention", "training"]
    assert naive.roofline_bytes == 11 * 2 * 64 * 8 * 4 and naive.flops == 14 * 2 * 64 * 64 * 8
    seconds = max(naive.roofline_bytes / found.machine.copy, naive.flops / found.machine.matmul["fp32"])
    assert naive.roofline_ms == pytest.approx(1000 * seconds)


def test_errors_are_those_of_rounding(measured, monkeypatch, capfd):
    """Oracle: softmax written out, in the dtype and in float64, by its own derivative; a mechanism can fail alone."""
    monkeypatch.setattr(SDPA, "forward", lambda *args: 1 / 0)
    found = measured("what=error", "n=[64,96]", "dtype=[fp32,bf16]", "mechanisms=[softmax,sdpa,psf,mean]")
    assert "gradients, n = 96" in capfd.readouterr().out
    rows = {(r.mechanism, r.mode, r.n, r.dtype): r for r in found.rows}
    assert len(rows) == 4 * 2 * 2 * 2 and not any(row.samples for row in rows.values())
    for (name, mode, n, dtype), row in rows.items():
        if name == "sdpa":
            assert row.status.startswith("failed") and row.errors is None
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
    found = rows["softmax", "training", 96, "fp32"].errors
    for error, (single, double) in zip(found, zip(*results, strict=True), strict=True):
        own = ((single - double).norm() / double.norm()).item()
        assert own / 4 < error < 4 * own


def test_steps_on_data_have_every_padding(measured, data_root):
    pads = ["fixed", "batch", "batch/2", "none"]
    words = [*STEP, "mechanisms=[cur_step]", 'overrides=["attn.count=16"]', "batches=data", "batch=4"]
    rows = measured(*words, f"pads=[{','.join(pads)}]").rows
    assert [(row.pad, row.n, row.status) for row in rows] == [(pad, 128, "ok") for pad in pads]
    assert max(rows[2].peak_bytes, rows[3].peak_bytes) < rows[1].peak_bytes <= rows[0].peak_bytes


def test_steps_in_several_dtypes_are_measured_in_turn(measured, monkeypatch):
    seen = []
    monkeypatch.setattr(workloads, "model_step", lambda config, device, dtype, *more: lambda: seen.append(dtype))
    words = ("mechanisms=mean", "reference=null", "dtype=[fp32,bf16]", "clock=cpu", "repeats=2")
    rows = measured(*STEP, *words).rows
    assert [(row.dtype, row.status, len(row.samples)) for row in rows] == [("fp32", "ok", 2), ("bf16", "ok", 2)]
    assert seen == ["fp32", "bf16"] * 3  # the memory pass, then two rounds


def test_training_step_trains(monkeypatch):
    made = contestants.experiment("cur_abs", ["task=listops", "budget=smoke", "optim.lr=0.01"])
    torch.manual_seed(0)
    model, batch = made.classifier(), made.random_batch("cpu")
    assert batch.inputs.shape == (8, 1, 128) and batch.mask is None and batch.inputs.min() >= 1
    monkeypatch.setattr(Experiment, "classifier", lambda experiment: model)
    before = workloads.lit.loss(model.eval(), batch)
    step = workloads.model_step(made, "cpu", "fp32", "random", "training", False)
    for _ in range(8):
        step()
    assert workloads.lit.loss(model.eval(), batch) < before and all(p.grad is None for p in model.parameters())


def test_the_published_step_with_torchs_dropout():
    counts = []
    for name in ("published", "published-torch_dropout=true"):
        parts = list(workloads.classifier(contestants.experiment(name, ["task=listops", "budget=smoke"])).modules())
        counts.append([sum(type(part) is kind and part.p == 0.1 for part in parts) for kind in (Dropout, nn.Dropout)])
    assert counts == [[7, 0], [0, 7]]  # the embedding's; in each of two layers the mixer's and the MLP's two


def test_a_length_that_would_take_too_long_is_left_out(measured):
    words = ("what=attention", "modes=training", "n=[64,4096]", "limit=1e-9", "mechanisms=[naive]")
    short, long = measured(*words).rows
    assert short.status == "ok" and long.status.startswith("left out: about") and long.samples == ()


def test_same_choices_same_folder_which_training_reports_ignore(measured, tmp_path):
    words = ["what=attention", "mechanisms=[naive]", "modes=inference"]
    measured(*words)
    found = measured(*words, "budget_s=100")  # one file
    assert found.choices["mechanisms"] == ["naive"] and "runs" not in found.choices
    assert found.machine.threads == torch.get_num_threads() and not any(scan(tmp_path))
    run(compose(BenchOptions, [*SMALL, f"runs={tmp_path}", *words, "repeats=2"]))
    assert len(list(tmp_path.rglob(bench_record.FILE))) == 2


OWN = {
    "an option of it": ['mechanisms=["mine-dropout=0.5","naive"]'],
    "a class": ["mechanisms=['custom-_target_=lra.attention.sdpa.SDPA-dropout=0.5']"],
    "a class, as in lra.train": ["attn=custom", "attn._target_=lra.attention.sdpa.SDPA", "+attn.dropout=0.5"],
}


@pytest.mark.parametrize("words", OWN.values(), ids=OWN)
def test_a_custom_mechanism_is_measured(words, tmp_path, call):
    """From a yaml in a folder of --config-dir, or by its class: what lra.train takes."""
    (tmp_path / "conf" / "attn").mkdir(parents=True)
    mine = "_target_: lra.attention.sdpa.SDPA\n_partial_: true\ndropout: 0.0\n"
    (tmp_path / "conf" / "attn" / "mine.yaml").write_text(mine)
    words = ["--config-dir", str(tmp_path / "conf"), f"runs={tmp_path}", *SMALL, "what=attention", *words]
    assert call(bench, *words)[0] is None
    rows = {row.mechanism: row for row in written(tmp_path).rows}
    assert all(row.status == "ok" and row.ms for row in rows.values())
    assert any(name.startswith(("mine", "custom-_target_=lra.attention.sdpa.SDPA")) for name in rows)


def test_flops_are_those_that_torch_counts():
    """The published code has one product fewer than the formula: U is cut out of C."""

    def counted(attention, call):
        with FlopCounterMode(display=False) as counter:
            call(attention)
        return counter.get_total_flops()

    forward = lambda attention: attention(*qkv(torch.float32))
    both = lambda attention: both_passes(attention, qkv(torch.float32))
    formula = lambda attention, backward=False: roofline.flops(attention, 4, 96, 8, backward=backward)
    cur, released, exact = CUR(SIZES, count=16), ReleasedCUR(SIZES, count=16), Exact(SIZES)
    assert formula(cur) == formula(released) == counted(released, forward) + 4 * 2 * 16 * 16 * 8
    assert formula(released, True) == 3 * formula(released)
    assert formula(exact) == counted(exact, forward)
    assert formula(exact, True) == counted(exact, both) + 4 * 2 * 96 * 96 * 8  # the scores once more


def test_profile_sums_to_the_step(capfd):
    """Its steps are more than the budget has."""
    words = ["what=profile", "mechanisms=cur_abs", "n=64", "batch=2", "steps=4", "tasks=listops", "budget=smoke"]
    run(compose(BenchOptions, words))
    out = capfd.readouterr().out
    assert "listops cur_abs" in out and "not arithmetic" in out and "matrix products" in out
    *parts, rest = [float(share) for share in re.findall(r"^ *all .*?(-?[\d.]+)%", out, re.MULTILINE)]
    assert len(parts) > 3 and min(parts) >= 0 and abs(sum(parts) - 100) < 1 and 0 < rest < 100
