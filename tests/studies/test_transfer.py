"""Transfer: what may be grafted, what is measured against hand-made distances and numpy, what a record holds."""

import dataclasses
import re
import statistics
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from conftest import config, session_data
from support.records import unseal

from lra.attention.base import Sizes
from lra.attention.softmax import Softmax
from lra.config.compose import compose
from lra.report import summary as report_tables
from lra.runs import identity, record
from lra.runs.open import finished, scan
from lra.runs.typed_json import save
from lra.studies.graft import TransferOptions, experiments, graft
from lra.studies.qkv import calls, mechanisms
from lra.studies.transfer import figures
from lra.studies.transfer import record as records
from lra.studies.transfer.__main__ import transfer
from lra.studies.transfer.compare import layers
from lra.studies.transfer.control import MeanControl, ZeroControl
from lra.studies.transfer.figures import draw
from lra.studies.transfer.show import show
from lra.studies.transfer.tables import GROUP, POINT, cells, curves, points, tables
from lra.train.__main__ import train
from lra.train.lit import LitClassifier

FEW = ("examples=12", "spectrum=3", "trainer.device=cpu")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two seeds of softmax, trained for six steps."""
    folder = tmp_path_factory.mktemp("transfer")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LRA_DATA", str(session_data(tmp_path_factory)))
        train.__wrapped__(config("softmax", f"runs={folder}", "seeds=[0,1]"))
        yield folder


def trained(runs, attn="softmax"):
    return runs / "paper-smoke" / "listops" / attn


def words(runs, *more, run=None):
    return compose(TransferOptions, [f'run="{run or trained(runs)}"', f"runs={runs}", *FEW, *more])


def models(runs, *more, run=None):
    (one, *_), cfg = finished(Path(run or trained(runs))), words(runs, *more, run=run)
    return graft(one, *experiments(one, cfg))


def batches(runs, count=2):

    (one, *_), cfg = finished(trained(runs)), words(runs, "attn=sdpa")
    data = experiments(one, cfg)[0].task_data()
    data.setup()
    return [data.gather("val", np.arange(6 * i, 6 * i + 6)) for i in range(count)]


def rewrite(home, choices):
    """As if a run had been made by these choices."""
    (home / "config.yaml").write_text(yaml.safe_dump(choices))
    made = record.load(home / "record.json")
    record.save(dataclasses.replace(made, fingerprint=identity.fingerprint(choices | {"seed": made.seed})), home)


def results(runs, place):
    return [records.load(path) for path in sorted(runs.glob(f"transfer/paper-smoke/listops/softmax/{place}/*/*.json"))]


def test_only_the_mechanism_is_new(runs):
    exact, grafted = models(runs, "attn=nystrom", "attn.landmarks=8")
    old, new = exact.state_dict(), grafted.state_dict()
    assert all(torch.equal(old[key], new[key]) for key in old)
    assert new.keys() - old.keys() == {f"blocks.{i}.mixer.attention.conv.weight" for i in range(2)}
    _, again = models(runs, "attn=nystrom", "attn.landmarks=8")
    assert all(torch.equal(value, again.state_dict()[key]) for key, value in new.items())


def test_keeping_everything_with_the_true_inverse_is_the_exact_model(runs):
    true = ["attn.pinv._target_=lra.ops.pinv.exact", "~attn.pinv.steps", "~attn.pinv.init"]
    exact, grafted = models(runs, "attn=cur_abs", "attn.count=128", *true)
    for layer in layers(exact.double(), grafted.double(), batches(runs, 1)):
        assert max(layer.relative, layer.stack_relative) < 1e-9
    batch = batches(runs, 1)[0]
    torch.testing.assert_close(exact(*batch[:2]), grafted(*batch[:2]), rtol=1e-9, atol=1e-9)


class Shifted(Softmax):
    """Off by a known amount in real rows, and by much in padded ones, which do not count."""

    def forward(self, q, k, v, mask=None):
        out = super().forward(q, k, v, mask)
        return out + torch.where(mask, 0.5, 1e6)[:, None, :, None] if mask is not None else out + 0.5


def test_distances_are_those_that_were_put_in(runs):
    exact, grafted = models(runs, "attn=custom", f"attn._target_={__name__}.Shifted")
    some = batches(runs)
    assert any(batch.mask is not None for batch in some)
    outs = []  # real rows of the exact mechanism of the first layer
    for batch in some:
        call = calls(exact, batch)["blocks.0.mixer.attention"][0]
        mask = torch.ones_like(call.out[:, 0, :, 0], dtype=torch.bool) if batch.mask is None else batch.mask[:, 0]
        outs.append(call.out.transpose(1, 2)[mask].double())
    outs = torch.cat(outs)
    first, second = layers(exact, grafted, some)
    assert first.mean_abs == first.stack_mean_abs == pytest.approx(0.5, rel=1e-6)
    assert first.relative == pytest.approx(0.5 * outs.numel() ** 0.5 / outs.norm().item(), rel=1e-6)
    assert second.mean_abs == pytest.approx(0.5, rel=1e-6) and second.stack_mean_abs != pytest.approx(0.5, rel=1e-3)
    assert first.spectrum == []


def test_spectrum_is_that_of_the_dense_map(runs):
    exact, grafted = models(runs, "attn=sdpa")
    (batch,) = batches(runs, 1)
    call = calls(exact, batch)["blocks.1.mixer.attention"][0]
    q, k = (call.arguments[name].double().detach().numpy() for name in "qk")
    expected = []
    for i in range(4):
        real = batch.mask[i, 0].numpy() if batch.mask is not None else np.ones(q.shape[2], bool)
        for h in range(q.shape[1]):
            scores = q[i, h][real] @ k[i, h][real].T / np.sqrt(q.shape[3])
            weights = np.exp(scores - scores.max(1, keepdims=True))
            values = np.linalg.svd(weights / weights.sum(1, keepdims=True), compute_uv=False)
            expected.append(np.pad(values, (0, q.shape[2] - len(values))))
    got = layers(exact, grafted, [batch], spectrum=4)[1]
    np.testing.assert_allclose(got.spectrum, np.mean(expected, 0), rtol=1e-3, atol=1e-6)
    assert got.relative < 1e-5


def test_controls_look_at_nothing():
    torch.manual_seed(0)
    q, v = torch.randn(2, 2, 3, 5, 4), torch.randn(2, 3, 5, 6)
    mask = torch.tensor([[True] * 5, [True, True, False, False, False]])
    sizes = Sizes(heads=3, head_dim=4, value_dim=6, length=5)
    exact = Softmax(sizes)(0 * q[0], 0 * q[1], v, mask)  # equal scores
    mean = MeanControl(sizes)
    torch.testing.assert_close(mean(*q, v, mask)[mask.nonzero(as_tuple=True)[0]], exact[mask.nonzero()[:, 0]])
    torch.testing.assert_close(mean(*q, v), Softmax(sizes)(0 * q[0], 0 * q[1], v))
    assert not ZeroControl(sizes)(*q, v, mask).any()


@pytest.fixture(scope="module")
def mega(runs, tmp_path_factory):
    """A trained MEGA block whose options are not those that mega_cur_* bring along."""
    folder = tmp_path_factory.mktemp("mega")
    made = ("block.z=8", "block.norm=scale", "block.prenorm=false", "block.truncation=7", "seeds=[0]")
    train.__wrapped__(config("mega", f"runs={folder}", *made))
    return folder


def test_mega_cur_is_the_trained_mega(mega):
    """Its block keeps the run's options, so that keeping everything with the true inverse is the run's own model."""
    home = trained(mega, "mega")
    true = ["attn.count=128", "attn.pinv._target_=lra.ops.pinv.exact", "~attn.pinv.steps", "~attn.pinv.init"]
    (one,) = finished(home)
    source, target = experiments(one, words(mega, "attn=mega_cur_step", run=home))
    assert target.block == source.block and target.block.get("truncation") == 7 and not target.block.get("prenorm")
    other = words(mega, "attn=mega_cur_step", "block.truncation=9", run=home)
    assert experiments(one, other)[1].block.get("truncation") == 9
    assert experiments(one, words(mega, "attn=mega_chunk", run=home))[1].block == source.block.changed(chunk=128)
    exact, grafted = (model.double() for model in models(mega, "attn=mega_cur_step", *true, run=home))
    batch = torch.randint(0, 15, (2, 1, 128), generator=torch.manual_seed(0))
    out = exact(batch)
    torch.testing.assert_close(grafted(batch), out, rtol=1e-7, atol=1e-7)  # the 128 x 128 inverse is ill-conditioned
    _, fewer = models(mega, "attn=mega_cur_step", "attn.count=4", run=home)
    assert (fewer.double()(batch) != out).any()
    for control in ("MeanControl", "ZeroControl"):
        _, other = models(mega, "attn=custom", f"attn._target_=lra.studies.transfer.control.{control}", run=home)
        assert (other.double()(batch) != out).any()


def test_the_attention_function_of_a_run_is_not_exchanged_unasked(mega, tmp_path):
    for name in ("config.yaml", "record.json", "best.ckpt"):
        (tmp_path / name).write_bytes((trained(mega, "mega") / "seed-0" / name).read_bytes())
    choices = yaml.safe_load((tmp_path / "config.yaml").read_text())
    rewrite(tmp_path, choices | {"attn.weights": "laplace"})
    with pytest.raises(
        ValueError, match=r"has attn.weights=laplace and attn=mega_cur_step softmax; say attn.weights=l"
    ):
        models(mega, "attn=mega_cur_step", run=tmp_path)
    for said in ("laplace", "softmax"):
        assert models(mega, "attn=mega_cur_step", f"attn.weights={said}", run=tmp_path)


def test_direct_evaluation_and_its_record(runs, capfd):
    transfer.__wrapped__(words(runs, "attn=sdpa"))
    made = results(runs, "sdpa")
    assert [(r.seed, r.steps, r.tuned_test, r.status) for r in made] == [(0, 0, None, "done"), (1, 0, None, "done")]
    for r in made:  # the same function in other rounding
        assert (r.direct_val, r.direct_test) == (r.exact_val, r.exact_test)
        assert (r.n_val, r.n_test, r.examples, r.spectrum_examples) == (64, 64, 12, 3)
        assert [len(layer.spectrum) for layer in r.layers] == [128, 128] and r.layers[0].spectrum[0] > 0
    assert capfd.readouterr().err.count("listops softmax -> sdpa seed") == 2
    stamps = [path.stat().st_mtime_ns for path in runs.rglob("transfer.json")]
    transfer.__wrapped__(words(runs, "attn=sdpa"))
    assert capfd.readouterr().err.count("done before") == 2
    assert stamps == [path.stat().st_mtime_ns for path in runs.rglob("transfer.json")]
    found, damaged = scan(runs)
    assert {r.label for r in found.values()} == {"softmax"} and damaged == []
    assert list(report_tables.collect(runs)[0]) == ["paper-smoke"]
    with pytest.raises(ValueError, match=r"examples: 12 -> 9.*study=<name>"):
        transfer.__wrapped__(words(runs, "attn=sdpa", "examples=9"))


def test_fine_tuning_starts_from_the_weights_and_trains(runs, monkeypatch):
    modes = []
    start = LitClassifier.on_train_batch_start
    monkeypatch.setattr(
        LitClassifier,
        "on_train_batch_start",
        lambda self, *args: (modes.append(all(m.training for m in self.model.modules())), start(self, *args)),
    )
    seed = f"run={trained(runs) / 'seed-0'}"
    transfer.__wrapped__(words(runs, "attn=cur_random", "attn.count=8", "steps=4", "optim.lr=1e-12", seed))
    (still,) = results(runs, "cur_random-count=8-tuned=4")
    assert modes == [True] * 4
    assert (still.tuned_val, still.tuned_test) == (still.direct_val, still.direct_test)
    transfer.__wrapped__(words(runs, "attn=cur_step", "attn.count=8", "steps=4", "optim.lr=0.01", seed))
    folder = runs / "transfer/paper-smoke/listops/softmax/cur_step-count=8-tuned=4/seed-0"
    before, after = (torch.load(f / "best.ckpt", weights_only=True) for f in (trained(runs) / "seed-0", folder))
    assert all((before[key] != after[key]).any() for key in before if key.endswith("mixer.inputs.weight"))
    (tuned,) = results(runs, "cur_step-count=8-tuned=4")
    assert tuned.steps == 4 and tuned.status == "done" and (folder / "metrics.csv").read_text().count("\n") == 2


@pytest.fixture
def copy(runs, tmp_path):
    """A copy of one seed to be damaged."""
    home = tmp_path / "copy"
    home.mkdir()
    for name in ("config.yaml", "record.json", "best.ckpt"):
        (home / name).write_bytes((trained(runs) / "seed-0" / name).read_bytes())
    unseal(home / "record.json")
    return home


@pytest.mark.parametrize(
    "more,reason",
    [
        (["attn=soft"], "soft has one projection for queries and keys and softmax has two: their weights do not fit"),
        (["attn=psf"], r"\(softmax\) do not fit attn=psf: psf needs blocks.0.mixer.*has no place for"),
        (["attn=cur_step", "attn.count=129"], "attn.count must be from 1 to 128 \\(length\\), not 129"),
        (["attn=cur_step", "steps=4", "optim.eval_every=3"], "optim.eval_every must divide optim.steps 4, not 3"),
        (["attn=cur_step", "run=no=where"], "run=no=where is not a folder"),
        (["attn=custom"], "names no mechanism"),
        (["attn=cur_step", "trainer.devices=2", "trainer.device=cpu"], "trainer.devices must be 1 here, not 2: a tran"),
        (["attn=cur_step", "task=text"], "a transfer has the task of its run; leave out task="),
    ],
    ids=lambda x: "-".join(x) if isinstance(x, list) else "",
)
def test_one_line_for_what_cannot_be(runs, monkeypatch, capfd, more, reason):
    monkeypatch.setattr(sys, "argv", ["lra", f"run={trained(runs)}", f"runs={runs}", *more])
    with pytest.raises(SystemExit) as stop:
        transfer()
    assert stop.value.code.startswith("lra: ") and "\n" not in stop.value.code
    assert "Traceback" not in capfd.readouterr().err
    assert re.search(reason, stop.value.code), stop.value.code


def test_a_mechanism_with_weights_of_its_own_has_them_refused(runs, copy):
    """And a folder whose name has an equals sign can be named."""
    home = copy.rename(copy.with_name("nystrom-landmarks=8"))
    (one,), cfg = finished(home), words(runs, "attn=nystrom", "attn.landmarks=8", run=home)
    source, target = experiments(one, cfg)
    torch.save(graft(one, source, target)[1].state_dict(), home / "best.ckpt")
    rewrite(home, target.choices({}))
    with pytest.raises(ValueError, match=r"cur_step has no place for blocks.0.mixer.attention.conv.weight, blocks.1"):
        models(runs, "attn=cur_step", run=home)


def test_a_run_on_other_data_is_refused(runs, copy):
    choices = yaml.safe_load((copy / "config.yaml").read_text())
    rewrite(copy, choices | {"provenance.name": "other"})
    with pytest.raises(ValueError, match=r"trained on other data \(provenance.name: other -> listops\)"):
        transfer.__wrapped__(words(runs, "attn=cur_step", run=copy))
    (copy / "record.json").unlink()
    with pytest.raises(ValueError, match=r"has no finished seed: no record.json, python -m lra.train makes them"):
        finished(copy)


def test_mechanism_inside_another_is_part_of_it():
    class Outer(Softmax):
        def __init__(self):
            super().__init__(Sizes(heads=1, head_dim=1, value_dim=1, length=1))
            self.inner = Softmax(self.sizes)

    assert list(mechanisms(torch.nn.ModuleDict({"a": Outer(), "ab": Outer()}))) == ["a", "ab"]


@pytest.fixture
def swept(runs):
    """A made-up sweep over selection, count and steps of fine-tuning, two seeds each."""
    transfer.__wrapped__(words(runs, "attn=sdpa"))
    like = results(runs, "sdpa")[0]
    made = []
    for score in ("step", "abs"):
        for count in (16, 8):
            for steps in (0, 10):
                for seed in (0, 1):
                    attn = {"_target_": "lra.attention.cur.CUR", "score": score, "count": count, "pinv.steps": 4}
                    values = {"direct_test": 20.0 + count + seed, "tuned_test": 50.0 + count if steps else None}
                    label = f"cur_{score}-count={count}"
                    made.append(dataclasses.replace(like, attn=attn, label=label, steps=steps, seed=seed, **values))
    return made


def lines(some, *hidden):
    """Means of the test scores over seeds by curve and value of the first of the hidden options."""
    found = curves(some, lambda o: next((o[key] for key in hidden if key in o), None), set(hidden))
    scores = found.groupby(["curve", "value"]).test.mean().to_dict()
    return {name: {value: scores[name, value] for name_, value in scores if name_ == name} for name, _ in scores}


def test_points_join_seeds_and_curves_what_differs_in_one_option(swept):
    some = points(swept)
    (group,) = some.groupby(GROUP).groups
    assert group == ("paper-smoke", "listops", "softmax") and some.groupby(POINT).size().to_list() == [2] * 8
    one = some.groupby(POINT).get_group(("cur_abs-count=8", 0))
    text = cells("cur_abs-count=8", 0, one)
    assert text[1:3] == ("8", "0") and text[6] == "2" and text[4] == f"28.50 ± {statistics.stdev([28, 29]):.2f}"
    assert one.test.to_list() == [28, 29]
    assert lines(some, "count") == {
        f"score={score}, tuned={tuned} (n = 2)": values
        for score in ("abs", "step")
        for tuned, values in ((0, {8: 28.5, 16: 36.5}), (10, {8: 58.0, 16: 66.0}))
    }
    assert lines(some, "pinv.steps") == {}
    fewer = [r for r in swept if r.seed == 0 or r.attn["count"] == 8]  # a line compares the same seeds
    assert lines(points(fewer), "count")["score=abs, tuned=0 (n = 1)"] == {8: 28.0, 16: 36.0}
    assert "| cur_step-count=16 | 16 | 10 |" in tables(some)[0].markdown()


def test_a_legend_says_what_tells_mechanisms_apart_and_no_more(swept):
    other = {"_target_": "lra.attention.nystrom.Nystrom", "kernel": 0}
    more = [
        dataclasses.replace(swept[0], attn=other | {"landmarks": kept}, label=f"nystrom-landmarks={kept}", steps=0)
        for kept in (16, 8)
    ]
    some = points([r for r in swept if r.steps == 0] + more)
    legend = {"CUR, score=abs (n = 2)", "CUR, score=step (n = 2)", "Nystrom (n = 1)"}
    assert lines(some, "count", "landmarks").keys() == legend
    words = [f"cur_{score}-count={count}" for score in ("abs", "step") for count in (8, 16)]
    assert list(some.label.unique()) == [*words, "nystrom-landmarks=8", "nystrom-landmarks=16"]


def test_pictures_are_made_for_what_varies(swept, tmp_path, monkeypatch):
    """Errors stand beside scores unless fine-tuning came between."""
    some, group = points(swept), ("paper-smoke", "listops", "softmax")
    panels, save = {}, figures.save

    def seen(figure, path, *args, **legend):
        panels[path.name] = len(figure.axes)
        return save(figure, path, *args, **legend)

    monkeypatch.setattr(figures, "save", seen)
    names = draw(group, some, tmp_path)
    axes = {"count": 2, "selection": 2, "tuned": 1, "spectrum": 1}
    assert panels == {f"paper-smoke-listops-softmax-{axis}.png": count for axis, count in axes.items()}
    assert names == list(panels) and all((tmp_path / name).read_bytes().startswith(b"\x89PNG") for name in names)
    bare = [dataclasses.replace(layer, spectrum=[]) for layer in swept[0].layers]
    mixed = [dataclasses.replace(swept[0], layers=bare, spectrum_examples=0), *swept[1:]]
    assert draw(group, points(mixed), tmp_path) == names  # one was made without singular values, the others have them


def test_show_command(runs, swept, tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(sys, "argv", ["lra", f"runs={tmp_path}"])
    with pytest.raises(SystemExit) as stop:
        show()
    assert stop.value.code.startswith(f"lra: {tmp_path} has no transfer; python -m lra.studies.transfer")
    save(swept[0], tmp_path / records.FILE)
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / records.FILE).write_text("{}")
    capfd.readouterr()
    show()
    out, err = capfd.readouterr()
    assert "is not a record of a transfer" in err and err.count("\n") == 1
    assert "cur_step-count=16" in out and "transfer.md and 1 picture\n" in out
    assert (tmp_path / "transfer" / "transfer.md").read_text().count("![") == 1
