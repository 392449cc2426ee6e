"""How far mechanisms reach: probes with confined layers and derivatives, and errors over the length of a task."""

import csv
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from conftest import MECHANISMS, config
from support.features import model_and_batch
from support.records import RECORD, add, rows, table, texts
from support.sweeps import finish

from lra.config.compose import compose
from lra.data.datamodule import Batch
from lra.io.typed_json import save
from lra.runs.reader import finished
from lra.studies.lengths import __main__ as show
from lra.studies.lengths.__main__ import lengths
from lra.studies.probes import local_window, measure, record
from lra.studies.probes.__main__ import ProbesOptions, _transfer_options, probe
from lra.studies.probes.report import matrices, smallest, within
from lra.studies.swap import TransferOptions
from lra.sweep import job
from lra.sweep.launcher import Launcher
from lra.train.__main__ import train

L = 24


@pytest.mark.parametrize(
    "name", ["sdpa", "softmax", "cur_abs", "nystrom", "linear", "mean", "conv", "s4d_lin", "local"]
)
def test_a_reach_of_the_whole_sequence_changes_nothing_and_no_model_is_changed(name):
    model, batch = model_and_batch(name)
    before = model(batch.inputs, batch.mask)
    weights = {key: value.clone() for key, value in model.state_dict().items()}
    with local_window.confined(model, L), torch.no_grad():
        torch.testing.assert_close(model(batch.inputs, batch.mask), before, rtol=1e-8, atol=1e-10)
    with local_window.confined(model, 1), torch.no_grad():
        assert not torch.allclose(model(batch.inputs, batch.mask), before, atol=1e-6)
    assert torch.equal(model(batch.inputs, batch.mask), before)
    assert all(torch.equal(value, weights[key]) for key, value in model.state_dict().items())


@pytest.mark.parametrize("name", ["sdpa", "s4d_lin", "conv"])
def test_what_is_confined_by_mask_or_kernel_sees_no_further(name):
    model, batch = model_and_batch(name)
    with local_window.confined(model, 2):
        shares = measure.beyond(model, [batch], list(range(1, L)), rows=6)
    assert shares[0] > 0.001 and max(shares[3:]) < 1e-20  # two layers of a reach of 2


@pytest.mark.parametrize("name", ["sdpa", "softmax"])
def test_exact_attention_is_one_softmax_over_the_neighbours(name):
    model, _ = model_and_batch(name)
    q, k, v = torch.randn(3, 2, 2, L, 32, dtype=torch.float64)
    mask = torch.rand(2, L) < 0.7
    with local_window.confined(model, 3):
        out = model.blocks[0].mixer.attention(q, k, v, mask)
    for n, i in mask.nonzero().tolist():
        near = [j for j in range(max(0, i - 3), min(L, i + 4)) if mask[n, j]]
        weights = F.softmax(q[n, :, i, None] @ k[n][:, near].mT / 32**0.5, -1)
        torch.testing.assert_close(out[n, :, i], (weights @ v[n][:, near])[:, 0])
    assert out.isfinite().all()


def test_a_map_is_not_normalised_again():
    model, _ = model_and_batch("mean")
    v = torch.randn(1, 2, L, 32, dtype=torch.float64)
    with local_window.confined(model, 3):
        out = model.blocks[0].mixer.attention(v, v, v, None)
    for i in range(L):
        torch.testing.assert_close(out[:, :, i], v[:, :, max(0, i - 3) : i + 4].sum(2) / L)


@pytest.mark.parametrize("name", MECHANISMS)
def test_every_mechanism_says_whether_it_can_be_confined(name):
    model = config(name).meta_model
    how = local_window.confinement(model)
    if name in ("sdpa", "softmax", "mega", "mega_chunk"):
        assert how == "mask"
    elif name == "conv" or name.startswith("s4d"):
        assert how == "kernel"
    elif name in ("luna", "transformer_ls"):
        assert how is None
        with pytest.raises(ValueError, match="no mask, map or kernel"), local_window.confined(model, 1):
            pass
    else:
        assert how in ("map", None)


def test_shares_of_derivatives_are_those_of_the_whole_jacobian():
    model, batch = model_and_batch("sdpa", "model.layers=1", "model.dim=8")
    batch = Batch(batch.inputs[:1], None, batch.label[:1])
    x = model.embed(batch.inputs[0]).detach()
    block = lambda x: model.norm(model.blocks[0](x, None, None)[0])
    squares = torch.autograd.functional.jacobian(block, x)[0, :, :, 0].square().sum((1, 3))  # (L,L)
    distance = (torch.arange(L)[:, None] - torch.arange(L)).abs()
    found = measure.beyond(model, [batch], [1, 4, 16], rows=4000)
    for k, share in zip((1, 4, 16), found, strict=True):
        want = float(squares[distance > k].sum() / squares.sum())
        assert abs(share - want) < 0.05 * want + 1e-4, k  # the mean of 4,000 draws


def test_derivatives_of_towers_one_after_the_other_are_those_of_all_at_once():
    words = ("model.layers=1", "model.dim=8", "task.towers=2")
    model, _ = model_and_batch("sdpa", *words)
    mask = torch.arange(L) < torch.tensor([[L, 5], [9, 12]])[..., None]
    batch, found = Batch(torch.randint(1, 16, (2, 2, L)), mask, torch.zeros(2)), []
    for model.encode_separately in (False, True):
        found.append(measure.beyond(model, [batch], [1, 4, 8], rows=2000))
    torch.testing.assert_close(*map(torch.tensor, found), rtol=0.1, atol=1e-4)  # 2,000 draws each


def test_reaches_double():
    assert measure.reaches(24) == [1, 2, 4, 8, 16, 24] and measure.reaches(32) == [1, 2, 4, 8, 16, 32]


def test_runs_are_probed_once_drawn_and_swapped(data_root, tmp_path, capfd):
    home = tmp_path / "probes/paper-smoke/listops"
    names = ("sdpa", "nystrom")  # the latter has weights that the former has no place for
    for name in names:
        train.__wrapped__(config(name, f"runs={tmp_path}", "seeds=[0]"))
    folders = ",".join(str(tmp_path / "paper-smoke/listops" / name) for name in names)
    words = [f"run=[{folders}]", f"runs={tmp_path}", "examples=20", "derived=2", "rows=2", "threads=1"]
    probe.__wrapped__(compose(ProbesOptions, words))
    made = record.load(home / "sdpa/seed-0/probes.json")
    assert made.by == "mask" and made.reaches[-1] == 128 and made.scores[-1] == made.score and made.examples == 20
    assert made.beyond == sorted(made.beyond, reverse=True) and made.beyond[-1] == 0
    assert (home / "probes.png").stat().st_size > 1000
    capfd.readouterr()
    for more, again in ((), True), (("rows=3",), False), (("derived=3",), False):  # other derivatives than before
        probe.__wrapped__(compose(ProbesOptions, [*words, *more]))
        assert ("done before" in capfd.readouterr().err) == again
    probe.__wrapped__(compose(ProbesOptions, [*words, "swaps=[sdpa,nystrom]"]))
    saved = lambda name: csv.DictReader((home.parent / name).read_text().splitlines())
    table = {row["trained with"]: row for row in saved("swaps.csv") if row["task"] == "listops"}
    assert table["nystrom"]["sdpa"] == "" and table["sdpa"]["nystrom"]
    for name in names:
        assert table[name]["own"] == table[name][name] == str(record.load(home / name / "seed-0/probes.json").score)
    assert "| task | trained with | own | nystrom | sdpa |" in (home.parent / "swaps.md").read_text()
    probe.__wrapped__(compose(ProbesOptions, [*words, "filled=true"]))
    with pytest.raises(ValueError, match="give one of them"):
        probe.__wrapped__(compose(ProbesOptions, [*words, "filled=true", "swaps=[sdpa]"]))
    lines = {line["trained with"]: line for line in saved("filled.csv")}
    for name in names:
        assert lines[name]["own"] == str(record.load(home / name / "seed-0/probes.json").score)
        assert lines[name]["task"] == "listops" and lines[name].keys() >= {"trained with", "16", "32"}


def test_scores_over_the_tokens_of_a_sequence_leave_out_padding_and_filler():
    rows = torch.tensor([[1, 0, 0, 0], [2, 5, 0, 0], [1, 0, 5, 5], [2, 5, 5, 5], [1, 5, 5, 5]])
    mask = torch.tensor([4, 4, 4, 4, 3])[:, None, None] > torch.arange(4)  # the last row has three tokens
    label = torch.tensor([1, 2, 0, 0, 1])
    model = lambda inputs, mask: F.one_hot(inputs[:, 0, 0], 3)  # answers with the first token
    batches = [Batch(rows[:2, None], None, label[:2]), Batch(rows[2:, None], mask[2:], label[2:])]
    scores = measure.over_filled(model, batches, "accuracy")
    assert scores == {"own": 60.0, "1": 100.0, "2": pytest.approx(200 / 3), "4": 0.0}


def test_what_is_swapped_in_keeps_as_much_as_the_run(data_root, tmp_path):
    train.__wrapped__(config("cur_abs", f"runs={tmp_path}", "seeds=[0]", "attn.count=5"))
    (run,) = finished(tmp_path / "paper-smoke/listops/cur_abs-count=5", None)
    kept = lambda name, *words: _transfer_options(run, compose(ProbesOptions, [f"run={run.path}", *words]), name).attn
    assert kept("cur_step").get("count") == kept("nystrom").get("landmarks") == 5
    assert kept("cur_step", "kept=9").get("count") == 9
    assert kept("mean") == compose(TransferOptions, [f"run={run.path}", "attn=mean"]).attn


def probed(runs, label, scores, seed=0, fingerprint="f", reaches=(1, 2, 4, 8)):
    about = {"study": "paper-paper", "task": "listops", "label": label, "seed": seed, "fingerprint": fingerprint}
    about |= {"git": None, "metric": "accuracy", "examples": 10, "by": "mask", "derived": 0, "rows": 8, "beyond": None}
    made = record.Probes(**about, reaches=list(reaches), scores=scores, score=scores[-1])
    save(made, record.folder(runs, made) / record.NAME)
    return made


def test_the_smallest_reach_from_which_on_all_keep_95_percent_of_the_gain(tmp_path):
    made = probed(tmp_path, "sdpa", [20.0, 39.0, 30.0, 40.0])
    assert smallest(made, 20.0) == 8  # 39 keeps 95 %, and 30 behind it does not
    shorter = probed(tmp_path, "sdpa", [10.0, 20.0, 30.0, 40.0], reaches=(1, 2, 4, 6))
    assert record.means([made, shorter], "scores").to_dict() == {1: 15.0, 2: 29.5, 4: 30.0}
    assert smallest(probed(tmp_path, "sdpa", [20.0, 38.9, 39.0, 40.0]), 20.0) == 4
    assert smallest(probed(tmp_path, "sdpa", [40.0, 41.0, 40.0, 40.0]), 20.0) == 1


def test_the_report_has_the_reach_of_a_mechanism_and_its_scores_within_each(tmp_path):
    """Medians and means over the probed seeds; none of another run, or without a gain over the control."""
    for label, test in (("mean", 20.0), ("sdpa", 40.0), ("cur_abs", 40.0), ("linear", 19.0)):
        for seed in (0, 1):
            add(tmp_path, label=label, seed=seed, test=test)
    scores = lambda: within("paper-paper", [*rows(tmp_path).values()])
    assert "locality" not in table(tmp_path)["listops"].head and scores() == []
    for seed, found in enumerate(([20.0, 25.0, 39.5, 40.0], [20.0, 20.0, 20.0, 41.0])):
        probed(tmp_path, "sdpa", found, seed)
    probed(tmp_path, "cur_abs", [40.0] * 4, fingerprint="another run")
    probed(tmp_path, "linear", [19.0] * 4)
    shown = {label: cells["locality"] for label, cells in texts(table(tmp_path)["listops"]).items()}
    assert shown == {"sdpa": "6", "cur_abs": "", "linear": "", "mean": ""}
    lines = {cells[0].text: [cell.text for cell in cells[1:]] for _, cells in scores()[0].rows()}
    assert lines.keys() == {"sdpa", "linear"}
    assert lines["sdpa"] == ["listops", "2", "20.00", "22.50", "29.75", "40.50"]


def test_a_study_whose_runs_were_swapped_has_their_table(tmp_path):
    add(tmp_path, label="sdpa", test=40.0)
    home = tmp_path / record.FOLDER / "paper-paper"
    home.mkdir(parents=True)
    (home / record.SWAPS).write_text("task,trained with,own,sdpa,mean\nlistops,nystrom,41.0,,12.345\n")
    (made,) = matrices("paper-paper", [*rows(tmp_path).values()])
    assert made.head == ["task", "trained with", "own", "sdpa", "mean"]
    ((_, cells),) = made.rows()
    assert [cell.text for cell in cells] == ["listops", "nystrom", "41.00", "", "12.35"]


FEW = ("lengths=[128,256]", "mechanisms=[mean,linear]", "seeds=[0]", "tasks=[temporal_order]", "budget=smoke")


def run_record(task, label="mean", seed=0, test=40.0, **changes):
    values = {"task": task, "label": label, "seed": seed, "test": test, "constant_baseline": 25.0}
    return replace(RECORD, **values | changes)


def test_points_are_by_task_length_and_mechanism():
    records = [
        *(run_record("adding_N256", seed=seed, test=test) for seed, test in ((0, 40.0), (1, 60.0))),
        run_record("adding_N128", seed=2, test=None, status="diverged"),
        run_record("temporal_order_N128", "linear"),
        run_record("listops"),
        run_record("recall_N64_K4"),
    ]
    points = show.measured(records).fillna({"error": -1})
    assert points[["task", "length", "mechanism", "seed", "constant", "error"]].to_numpy().tolist() == [
        ["adding", 128, "mean", 2, 75.0, -1],
        ["adding", 256, "mean", 0, 75.0, 60.0],
        ["adding", 256, "mean", 1, 75.0, 40.0],
        ["temporal_order", 128, "linear", 0, 75.0, 60.0],
    ]


def test_printed_numbers_are_errors_of_the_text():
    known = {(n.task, n.attn, n.length): n.error for n in show.printed().itertuples()}
    assert known["adding", "linformer", 512] == 0.48 and known["adding", "performer", 4096] == 28.24
    assert known["temporal_order", "softmax", 16384] == 8.38 and known["temporal_order", "psf", 16384] == 0.11
    psf = {length: error for (task, attn, length), error in known.items() if (task, attn) == ("adding", "psf")}
    assert psf == {2**k: 0 for k in range(7, 15)}


def test_the_picture_has_what_was_measured_and_what_is_published():
    tests = {("sdpa", 0): 90.0, ("sdpa", 1): 80.0, ("mean", 0): 30.0}
    records = [run_record(f"adding_N{n}", *run, test=test) for n in (128, 512) for run, test in tests.items()]
    records.append(run_record("adding_N512", "mean", 1, None, status="diverged"))
    measured = show.measured(records)
    (axes,) = show.draw(measured, show.printed()).axes
    lines = {line.get_label(): line for line in axes.get_lines()}
    assert list(lines["sdpa"].get_ydata()) == [15.0, 15.0] and list(lines["mean"].get_ydata()) == [70.0, 70.0]
    assert list(lines["best constant answer"].get_ydata()) == [75.0, 75.0] and axes.get_xscale() == "log"
    ranges = [path.vertices[:, 1].tolist() for part in axes.collections for path in part.get_paths()]
    assert ranges == [[70.0, 70.0]] * 2 + [[10.0, 20.0]] * 2
    published = lines["Transformer, published"]
    assert list(published.get_xdata()) == [2048] and list(published.get_ydata()) == [84.48]
    assert published.get_color() == lines["sdpa"].get_color() and published.get_markerfacecolor() == "none"
    assert "n = 1 to 2 a point" in show.caption(measured) and "1 run diverged" in show.caption(measured)


def test_runs_that_ended_are_drawn_though_another_failed(tmp_path, monkeypatch, call):
    def launch(_, runs):
        for run in runs:
            run.folder.mkdir(parents=True)
            if run.label == "linear":
                job.fail(run.folder, "no memory")
            else:
                finish(run)

    monkeypatch.setattr(Launcher, "launch", launch)
    command = (*FEW, "measure=0", f"runs={tmp_path}")
    assert call(lengths, *command, "plan=true")[0] is None and not list(tmp_path.iterdir())
    stop, _, log = call(lengths, *command)
    assert stop == "lra: 2 of 4 runs failed; the same command tries them again" and "no memory" in log
    home = tmp_path / "sweep-lengths-smoke"
    lines = (home / "lengths.csv").read_text().splitlines()
    rows = [row for row in csv.DictReader(lines) if row["source"] == "measured"]
    errors = [(row["mechanism"], row["length"], float(row["error"])) for row in rows]
    assert errors == [("mean", length, 100 - RECORD.test) for length in ("128", "256")]
    assert (home / "lengths.png").stat().st_size > 10_000
