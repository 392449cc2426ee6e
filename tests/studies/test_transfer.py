"""Transfer of trained weights to another mechanism: valid swaps, measured distances, records, tables and figures."""

import dataclasses
import itertools
import re
import statistics
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import assert_error, config, set_up
from scipy.special import softmax
from support.features import model_and_batch, padded_ids

from lra.attention.base import Sizes
from lra.attention.softmax import Softmax
from lra.config.compose import compose
from lra.data.datamodule import Batch
from lra.io.typed_json import save
from lra.runs.reader import finished, scan
from lra.studies.qkv import mechanisms, record_calls
from lra.studies.swap import TransferOptions, _weights_to_keep, experiments, swap
from lra.studies.transfer import record as records
from lra.studies.transfer.__main__ import describe, transfer, transfer_seed
from lra.studies.transfer.control import MeanControl, ZeroControl
from lra.studies.transfer.record import compare_layers
from lra.studies.transfer.show import show
from lra.studies.transfer.tables import curves, points, tables
from lra.train.__main__ import train
from lra.train.lit import LitClassifier

SMALL_OPTIONS = ("examples=12", "spectrum=3", "trainer.device=cpu")
TRUE_INVERSE = ("attn.pinv._target_=lra.ops.pinv.exact", "~attn.pinv.steps", "~attn.pinv.init")


@pytest.fixture(scope="module")
def runs(tmp_path_factory, data_root):
    """The folder of two seeds of softmax, trained for six steps."""
    folder = tmp_path_factory.mktemp("transfer")
    train.__wrapped__(config("softmax", f"runs={folder}", "seeds=[0,1]"))
    return folder


def trained(runs, attn="softmax"):
    return runs / "paper-smoke" / "listops" / attn


def words(runs, *extra, run=None):
    return compose(TransferOptions, [f'run="{run or trained(runs)}"', f"runs={runs}", *SMALL_OPTIONS, *extra])


def models(runs, *extra, run=None):
    (first_run, *_), cfg = finished(Path(run or trained(runs))), words(runs, *extra, run=run)
    return swap(first_run, *experiments(first_run, cfg))


def batches(count=2):
    data = set_up(config("softmax").task_data())
    return [data.gather("val", np.arange(6 * i, 6 * i + 6)) for i in range(count)]


def results(runs, place):
    return [records.load(path) for path in sorted(runs.glob(f"transfer/paper-smoke/listops/softmax/{place}/*/*.json"))]


def test_swap_keeps_trained_weights_and_adds_only_new_ones(runs):
    exact, swapped = models(runs, "attn=nystrom", "attn.landmarks=8")
    old, new = exact.state_dict(), swapped.state_dict()
    assert all(torch.equal(old[key], new[key]) for key in old)
    assert new.keys() - old.keys() == {f"blocks.{i}.mixer.attention.conv.weight" for i in range(2)}
    repeated = models(runs, "attn=nystrom", "attn.landmarks=8")[1].state_dict()
    assert all(torch.equal(value, repeated[key]) for key, value in new.items())
    assert _weights_to_keep(models(runs, "attn=cur_random", "attn.count=8")[1], old).keys() == old.keys()


def test_cur_with_all_tokens_and_exact_inverse_equals_trained_model(runs):
    exact, swapped = models(runs, "attn=cur_abs", "attn.count=128", *TRUE_INVERSE)
    (batch,) = batches(1)
    for layer in compare_layers(exact.double(), swapped.double(), [batch]):
        assert max(layer.relative, layer.stack_relative) < 1e-9
    torch.testing.assert_close(exact(*batch[:2]), swapped(*batch[:2]), rtol=1e-9, atol=1e-9)


class Shifted(Softmax):
    """Softmax plus 0.5 at real tokens, and plus 1e6 at padding, which must not count."""

    def forward(self, q, k, v, mask=None):
        out = super().forward(q, k, v, mask)
        return out + torch.where(mask, 0.5, 1e6)[:, None, :, None] if mask is not None else out + 0.5


def test_layer_distances_match_known_shift(runs):
    exact, swapped = models(runs, "attn=custom", f"attn._target_={__name__}.Shifted")
    entries = batches()
    exact_outputs = lambda batch: record_calls(exact, batch)["blocks.0.mixer.attention"][0].out.transpose(1, 2)
    outs = torch.cat([exact_outputs(batch)[batch.mask[:, 0]] for batch in entries]).double()
    first, second = compare_layers(exact, swapped, entries)
    assert first.mean_abs == first.stack_mean_abs == pytest.approx(0.5, rel=1e-6) and first.spectrum == []
    assert first.relative == pytest.approx(0.5 * outs.numel() ** 0.5 / outs.norm().item(), rel=1e-6)
    assert second.mean_abs == pytest.approx(0.5, rel=1e-6) and second.stack_mean_abs != pytest.approx(0.5, rel=1e-3)


def test_spectrum_matches_svd_of_dense_map(runs):
    exact, swapped = models(runs, "attn=sdpa")
    (batch,) = batches(1)
    call = record_calls(exact, batch)["blocks.1.mixer.attention"][0]
    q, k = (call.arguments[name].double().detach().numpy() for name in "qk")
    expected = []
    for i, h in np.ndindex(4, q.shape[1]):
        real = batch.mask[i, 0].numpy()
        scores = q[i, h][real] @ k[i, h][real].T / np.sqrt(q.shape[3])
        values = np.linalg.svd(softmax(scores, axis=1), compute_uv=False)
        expected.append(np.pad(values, (0, q.shape[2] - len(values))))
    actual = compare_layers(exact, swapped, [batch], spectrum_examples=4)[1]
    np.testing.assert_allclose(actual.spectrum, np.mean(expected, 0), rtol=1e-3, atol=1e-6)
    assert actual.relative < 1e-5


@pytest.mark.parametrize("encode_separately", [False, True])
def test_spectrum_counts_pairs_of_texts(encode_separately):
    model = model_and_batch("softmax", "task.towers=2", "model.layers=1")[0]
    inputs, mask = padded_ids((24, 17), towers=2)
    model.encode_separately = encode_separately
    both, first = (Batch(inputs[:n], mask[:n], None) for n in (2, 1))
    spectrum_of = lambda batches, n: compare_layers(model, model, batches, spectrum_examples=n)[0].spectrum
    assert spectrum_of([both], 2) == spectrum_of([both], 4) != spectrum_of([both], 1)
    assert spectrum_of([both, both], 1) == spectrum_of([first], 1) == spectrum_of([first], 2)


def test_controls_ignore_queries_and_keys():
    q, k, v = torch.randn(3, 2, 3, 5, 4)
    sizes, bias = Sizes(heads=3, head_dim=4, value_dim=4, length=5), torch.randn(3, 5, 5)
    torch.testing.assert_close(MeanControl(sizes)(q, k, v, None, bias), v.mean(2, keepdim=True).expand_as(v))
    assert not ZeroControl(sizes)(q, k, v, None, bias).any()


@pytest.fixture(scope="module")
def mega(runs, tmp_path_factory):
    """A trained MEGA block with other options than the defaults of mega_cur_*."""
    folder = tmp_path_factory.mktemp("mega")
    block = ("block.z=8", "block.norm=scale", "block.prenorm=false", "block.truncation=7")
    train.__wrapped__(config("mega", f"runs={folder}", "seeds=[0]", *block))
    return folder


def test_mega_cur_with_exact_inverse_equals_trained_mega(mega):
    """The swapped block keeps the options of the run, so all tokens and the exact inverse change nothing."""
    home = trained(mega, "mega")
    (first_run,) = finished(home)
    source, target = experiments(first_run, words(mega, "attn=mega_cur_step", run=home))
    assert target.block == source.block and target.block.get("truncation") == 7 and not target.block.get("prenorm")
    other = words(mega, "attn=mega_cur_step", "block.truncation=9", run=home)
    assert experiments(first_run, other)[1].block.get("truncation") == 9
    assert experiments(first_run, words(mega, "attn=mega_chunk", run=home))[1].block == source.block.replace(chunk=128)
    exact, swapped = models(mega, "attn=mega_cur_step", "attn.count=128", *TRUE_INVERSE, run=home)
    batch = torch.randint(0, 15, (2, 1, 128), generator=torch.manual_seed(0))
    out = exact.double()(batch)
    # The 128 x 128 inverse is ill-conditioned.
    torch.testing.assert_close(swapped.double()(batch), out, rtol=1e-7, atol=1e-7)
    _, other = models(mega, "attn=custom", "attn._target_=lra.studies.transfer.control.MeanControl", run=home)
    assert (other.double()(batch) != out).any()


def test_mechanisms_on_chunks_of_other_lengths_are_not_compared():
    exact, batch = model_and_batch("mega", "model.layers=1", "block.bias=false")
    chunked, _ = model_and_batch("mega_chunk", "model.layers=1", "block.bias=false", "block.chunk=8")
    assert_error("gets 24 tokens in the run and 8 with the other", compare_layers, exact, chunked, [batch])


def test_changing_attention_function_requires_explicit_override(mega):
    (run,) = finished(trained(mega, "mega"))
    run.choices["attn.weights"] = "laplace"
    # softmax has the option in its class only, mega_cur_step in its configuration too.
    for attn, override in (("mega_cur_step", "attn.weights"), ("softmax", "+attn.weights")):
        message = f"has attn.weights=laplace and attn={attn} has softmax; add {override}=laplace"
        assert_error(re.escape(message), experiments, run, words(mega, f"attn={attn}"))
        for weights in ("laplace", "softmax"):
            _, target = experiments(run, words(mega, f"attn={attn}", f"{override}={weights}"))
            assert target.attn.get("weights") == weights


def test_transfer_without_tuning_records_scores_once(runs, capfd):
    transfer.__wrapped__(words(runs, "attn=sdpa"))
    result = results(runs, "sdpa")
    assert [(r.seed, r.steps, r.tuned_test, r.status) for r in result] == [(0, 0, None, "done"), (1, 0, None, "done")]
    # sdpa computes the same function as softmax, up to rounding.
    for r in result:
        assert (r.direct_val, r.direct_test) == (r.exact_val, r.exact_test)
        assert (r.n_val, r.n_test, r.examples, r.spectrum_examples) == (64, 64, 12, 3)
        assert [len(layer.spectrum) for layer in r.layers] == [128, 128] and r.layers[0].spectrum[0] > 0
    assert capfd.readouterr().err.count("listops softmax -> sdpa seed") == 2
    stamps = [path.stat().st_mtime_ns for path in runs.rglob("transfer.json")]
    transfer.__wrapped__(words(runs, "attn=sdpa"))
    assert capfd.readouterr().err.count("already done") == 2
    assert stamps == [path.stat().st_mtime_ns for path in runs.rglob("transfer.json")]
    trainings, damaged = scan(runs)
    assert {r.label for r in trainings.values()} == {"softmax"} and damaged == []
    assert_error(r"examples: 12 -> 9.*study=<name>", transfer.__wrapped__, words(runs, "attn=sdpa", "examples=9"))


def test_fine_tuning_starts_from_trained_weights_and_updates_them(runs, monkeypatch):
    modes, start = [], LitClassifier.on_train_batch_start
    is_training = lambda model: all(module.training for module in model.modules())
    record_mode = lambda self, *args: modes.append(is_training(self.model)) or start(self, *args)
    monkeypatch.setattr(LitClassifier, "on_train_batch_start", record_mode)
    monkeypatch.chdir(trained(runs) / "seed-0")
    seed = 'run="."'
    transfer.__wrapped__(words(runs, "attn=cur_random", "attn.count=8", "steps=4", "optim.lr=1e-12", seed))
    (frozen,) = results(runs, "cur_random-count=8-tuned=4")
    assert modes == [True] * 4
    assert (frozen.tuned_val, frozen.tuned_test) == (frozen.direct_val, frozen.direct_test)
    transfer.__wrapped__(words(runs, "attn=cur_step", "attn.count=8", "steps=4", "optim.lr=0.01", seed))
    folder = runs / "transfer/paper-smoke/listops/softmax/cur_step-count=8-tuned=4/seed-0"
    initial, final = (torch.load(f / "best.ckpt", weights_only=True) for f in (trained(runs) / "seed-0", folder))
    assert all((initial[key] != final[key]).any() for key in initial if key.endswith("mixer.inputs.weight"))
    (tuned,) = results(runs, "cur_step-count=8-tuned=4")
    assert tuned.steps == 4 and tuned.status == "done" and (folder / "metrics.csv").read_text().count("\n") == 2


INVALID_OVERRIDES = {
    "attn=soft": "soft has one projection for queries and keys and softmax has two: their weights do not fit",
    "attn=psf": r"\(softmax\) do not fit attn=psf: psf needs blocks.0.mixer.*has no place for",
    "attn=cur_step run=no=where": "run=no=where is not a folder",
    f"attn=cur_step run={Path(__file__).parent}": "has no finished seed: no record.json; train its seeds",
    "attn=cur_step trainer.devices=2 trainer.device=cpu": "trainer.devices must be 1, got 2: a transfer",
    "attn=cur_step task=text": "a transfer has the task of its run; leave out task=",
}


@pytest.mark.parametrize("arguments", INVALID_OVERRIDES)
def test_invalid_swap_error_is_one_line_without_traceback(runs, call, arguments):
    stop, _, log = call(transfer, f"run={trained(runs)}", f"runs={runs}", *arguments.split())
    assert stop.startswith("lra: ") and "\n" not in stop and "Traceback" not in log
    assert re.search(INVALID_OVERRIDES[arguments], stop), stop


def test_run_on_other_data_raises(runs):
    run, _ = finished(trained(runs))
    run.choices["provenance.name"] = "other"
    assert_error(r"other data \(provenance.name: other -> listops\)", transfer_seed, run, words(runs, "attn=cur_step"))


def test_transfer_has_the_precision_of_the_run(runs):
    run, _ = finished(trained(runs))
    run.choices["trainer.precision"] = "bf16"
    for override, expected in (("trainer=gpu", "bf16"), ("trainer.precision=fp32", "fp32")):
        _, target = experiments(run, words(runs, "attn=sdpa", override))
        assert target.trainer.precision == expected


def test_mechanisms_excludes_nested_mechanisms():
    outer, other, inner = (Softmax(Sizes(heads=1, head_dim=1, value_dim=1, length=1)) for _ in range(3))
    outer.inner = inner
    assert mechanisms(torch.nn.ModuleDict({"a": outer, "ab": other})) == {"a": outer, "ab": other}


@pytest.fixture
def swept(runs):
    """Synthetic records of a sweep over selection, count and steps of fine-tuning, two seeds each."""
    transfer.__wrapped__(words(runs, "attn=sdpa"))
    template, result = results(runs, "sdpa")[0], []
    for score, count, steps, seed in itertools.product(("step", "abs"), (16, 8), (0, 10), (0, 1)):
        attn = {"_target_": "lra.attention.cur.CUR", "score": score, "count": count, "pinv.steps": 4}
        values = {"direct_test": 20.0 + count + seed, "tuned_test": 50.0 + count if steps else None}
        label = f"cur_{score}-count={count}"
        result.append(dataclasses.replace(template, attn=attn, label=label, steps=steps, seed=seed, **values))
    return result


def mean_curves(entries, *options):
    """Mean test score over seeds, by curve and by value on the axis, which is the first of the options that exists."""
    by_curve = curves(entries, options).groupby("curve")
    return {curve: group.groupby("value").test.mean().to_dict() for curve, group in by_curve}


def test_points_group_seeds_and_curves_vary_one_option(swept):
    entries = points(swept)
    (result,) = tables(entries)
    (text,) = (line for line in result.markdown().splitlines() if line.startswith("| cur_abs-count=8 | 8 | 0 |"))
    assert text.split(" | ")[4] == f"28.50 ± {statistics.stdev([28, 29]):.2f}" and text.split(" | ")[6] == "2"
    direct, tuned = {8: 28.5, 16: 36.5}, {8: 58.0, 16: 66.0}
    expected = {f"score={score}, tuned=0 (n = 2)": direct for score in ("abs", "step")}
    expected |= {f"score={score}, tuned=10 (n = 2)": tuned for score in ("abs", "step")}
    assert mean_curves(entries, "count") == expected
    # A label that names a default value denotes the same point.
    with_default_label = [dataclasses.replace(r, label=f"{r.label}-pinv.steps=4") for r in swept]
    assert mean_curves(points([*swept, *with_default_label]), "count") == mean_curves(entries, "count")
    assert mean_curves(entries, "pinv.steps") == mean_curves(entries, "pairing") == {}
    # A curve includes only seeds that all its points have.
    incomplete = [r for r in swept if r.seed == 0 or r.attn["count"] == 8]
    assert mean_curves(points(incomplete), "count")["score=abs, tuned=0 (n = 1)"] == {8: 28.0, 16: 36.0}
    diverged = dataclasses.replace(swept[-1], tuned_test=None, status="diverged")
    assert "after 10 steps diverged; mean" in describe(diverged)


def test_curve_legend_names_only_options_that_differ(swept):
    attn = {"_target_": "lra.attention.nystrom.Nystrom", "kernel": 0}
    nystrom_values = lambda size: {"attn": attn | {"landmarks": size}, "label": f"nystrom-landmarks={size}", "steps": 0}
    extra = [dataclasses.replace(swept[0], **nystrom_values(size)) for size in (16, 8)]
    entries = points([r for r in swept if r.steps == 0] + extra)
    legend = {"CUR, score=abs (n = 2)", "CUR, score=step (n = 2)", "Nystrom (n = 1)"}
    assert mean_curves(entries, "count", "landmarks").keys() == legend
    words = [f"cur_{score}-count={count}" for score in ("abs", "step") for count in (8, 16)]
    assert list(entries.label.unique()) == [*words, "nystrom-landmarks=8", "nystrom-landmarks=16"]


def test_show_command_draws_each_varying_option(swept, tmp_path, call):
    message = call(show, f"runs={tmp_path}")[0]
    assert message.startswith(f"lra: {tmp_path} has no results of a transfer; first: lra study transfer")
    # One transfer was measured without singular values.
    without_spectrum = [dataclasses.replace(layer, spectrum=[]) for layer in swept[0].layers]
    swept[0] = dataclasses.replace(swept[0], layers=without_spectrum, spectrum_examples=0)
    for i, entry in enumerate(swept):
        save(dataclasses.replace(entry, study="my study"), tmp_path / str(i) / records.FILE)
    stop, out, _ = call(show, f"runs={tmp_path}")
    assert stop is None and "cur_step-count=16" in out and "transfer.md and 4 pictures\n" in out
    text = (tmp_path / "transfer" / "transfer.md").read_text()
    for axis in ("count", "selection", "tuned", "spectrum"):
        name = f"my study-listops-softmax-{axis}.png"
        assert f"![{name}]({name.replace(' ', '%20')})" in text
        assert (tmp_path / "transfer" / name).read_bytes().startswith(b"\x89PNG")
