"""Studies of reach: probes with confined layers and derivatives, and errors as a function of task length."""

from dataclasses import replace

import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from conftest import MECHANISMS, assert_error, config
from support.features import model_and_batch
from support.records import RECORD, add_seeds, fail, finish, rows, table, texts

from lra.attention.base import Attention
from lra.config import CONF
from lra.config.compose import compose
from lra.data.datamodule import Batch
from lra.io.typed_json import save
from lra.runs.reader import finished
from lra.studies.lengths import __main__ as show
from lra.studies.lengths.__main__ import lengths
from lra.studies.probes import local_window, measure, record
from lra.studies.probes.__main__ import ProbesOptions, _transfer_options, probe
from lra.studies.probes.report import locality, matrices, reach_tables, resolves_gain, write_matrix
from lra.studies.swap import TransferOptions
from lra.sweep.launcher import Launcher
from lra.train.__main__ import train

LENGTH = 24
CONFINED = ["sdpa", "softmax", "cur_abs", "nystrom", "linear", "mean", "conv", "s4d_lin", "local"]


@pytest.mark.parametrize("name", CONFINED)
def test_full_reach_keeps_output_and_confinement_is_undone(name):
    model, batch = model_and_batch(name)
    reference_output = model(batch.inputs, batch.mask)
    weights = {key: value.clone() for key, value in model.state_dict().items()}
    with local_window.confined(model, LENGTH), torch.no_grad():
        torch.testing.assert_close(model(batch.inputs, batch.mask), reference_output, rtol=1e-8, atol=1e-10)
    with local_window.confined(model, 1), torch.no_grad():
        assert not torch.allclose(model(batch.inputs, batch.mask), reference_output, atol=1e-6)
    assert torch.equal(model(batch.inputs, batch.mask), reference_output)
    assert all(torch.equal(value, weights[key]) for key, value in model.state_dict().items())


@pytest.mark.parametrize("name", ["sdpa", "s4d_lin", "conv"])
def test_confined_mechanisms_have_no_derivative_beyond_reach(name):
    model, batch = model_and_batch(name)
    with local_window.confined(model, 2):
        shares = measure.shares_beyond(model, [batch], list(range(1, LENGTH)), rows=6)
    # Two layers with a reach of 2 reach 4 positions.
    assert shares[0] > 0.001 and max(shares[3:]) < 1e-20


@pytest.mark.parametrize("name", ["sdpa", "softmax"])
def test_confined_softmax_normalises_over_neighbours(name):
    model, _ = model_and_batch(name)
    q, k, v = torch.randn(3, 2, 2, LENGTH, 32, dtype=torch.float64)
    mask = torch.rand(2, LENGTH) < 0.7
    with local_window.confined(model, 3):
        out = model.blocks[0].mixer.attention(q, k, v, mask)
    for n, i in mask.nonzero().tolist():
        neighbours = [j for j in range(max(0, i - 3), min(LENGTH, i + 4)) if mask[n, j]]
        weights = F.softmax(q[n, :, i, None] @ k[n][:, neighbours].mT / 32**0.5, -1)
        torch.testing.assert_close(out[n, :, i], (weights @ v[n][:, neighbours])[:, 0])
    assert out.isfinite().all()


def test_confined_map_is_not_renormalised():
    model, _ = model_and_batch("mean")
    v = torch.randn(1, 2, LENGTH, 32, dtype=torch.float64)
    with local_window.confined(model, 3):
        out = model.blocks[0].mixer.attention(v, v, v, None)
    for i in range(LENGTH):
        torch.testing.assert_close(out[:, :, i], v[:, :, max(0, i - 3) : i + 4].sum(2) / LENGTH)


@pytest.mark.parametrize("name", MECHANISMS)
def test_confinement_method_of_each_mechanism(name):
    model = config(name).meta_model
    expected = "map" if issubclass(config(name).attn.function, Attention) else None
    if name in ("sdpa", "softmax", "mega", "mega_chunk"):
        expected = "mask"
    elif name == "conv" or name.startswith("s4d"):
        expected = "kernel"
    assert local_window.confinement(model) == expected
    if expected is None:
        assert_error("no mask, map or kernel", local_window.confined(model, 1).__enter__)


def test_derivative_shares_match_full_jacobian():
    model, batch = model_and_batch("sdpa", "model.layers=1", "model.dim=8")
    batch = Batch(batch.inputs[:1], None, batch.label[:1])
    x = model.embed(batch.inputs[0]).detach()
    block = lambda x: model.norm(model.blocks[0](x, None, None)[0])
    squares = torch.autograd.functional.jacobian(block, x)[0, :, :, 0].square().sum((1, 3))  # (L,L)
    distance = (torch.arange(LENGTH)[:, None] - torch.arange(LENGTH)).abs()
    actual = measure.shares_beyond(model, [batch], [1, 4, 16], rows=4000)
    for k, share in zip((1, 4, 16), actual, strict=True):
        expected = float(squares[distance > k].sum() / squares.sum())
        # The estimate is a mean of 4,000 random draws.
        assert abs(share - expected) < 0.05 * expected + 1e-4, k


def test_derivative_shares_do_not_depend_on_encode_separately():
    model, _ = model_and_batch("sdpa", "model.layers=1", "model.dim=8", "task.towers=2")
    mask = torch.arange(LENGTH) < torch.tensor([[LENGTH, 5], [9, 12]])[..., None]
    batch, actual = Batch(torch.randint(1, 16, (2, 2, LENGTH)), mask, torch.zeros(2)), []
    for is_separate in (False, True):
        model.encode_separately = is_separate
        actual.append(measure.shares_beyond(model, [batch], [1, 4, 8], rows=2000))
    torch.testing.assert_close(*map(torch.tensor, actual), rtol=0.1, atol=1e-4)


def test_derivative_distances_count_from_token_to_token_with_class_vector_or_token():
    """A convolution of width 3 reaches one position, and without a mechanism a token depends on itself only."""
    for words, reach in (("conv attn.width=3", 1), ("none", 0)):
        model, batch = model_and_batch(words, "model.pool=class", "model.layers=1")
        assert measure.shares_beyond(model, [batch], [reach], rows=20) == [0]
    only = lambda position: Batch(batch.inputs, torch.arange(LENGTH).expand(2, 1, -1) == position, batch.label)
    assert measure.shares_beyond(model, [only(LENGTH - 1)], [0], rows=4) == [0]
    # The class token does not depend on the token behind it, so only the derivatives of that token are beyond 0.
    model, _ = model_and_batch("conv attn.causal=true", "model.pool=cls", "model.layers=1")
    assert measure.shares_beyond(model, [only(0)], [0], rows=20)[0] > 0.001
    # The reaches of a length are powers of two, and the length.
    assert measure.reaches(24) == [1, 2, 4, 8, 16, 24] and measure.reaches(32) == [1, 2, 4, 8, 16, 32]


def test_probe_command_caches_results_and_writes_tables(data_root, tmp_path, capfd):
    home = tmp_path / "probes/paper-smoke/listops"
    # Nystromformer has a convolution, whose weights do not fit into sdpa.
    names = ("sdpa", "nystrom")
    for name in names:
        train.__wrapped__(config(name, f"runs={tmp_path}", "seeds=[0]"))
    folders = ",".join(str(tmp_path / "paper-smoke/listops" / name) for name in names)
    args = [f"run=[{folders}]", f"runs={tmp_path}", "examples=20", "derived=2", "rows=2", "threads=1"]
    probe.__wrapped__(compose(ProbesOptions, args))
    data = record.load(home / "sdpa/seed-0/probes.json")
    assert data.by == "mask" and data.reaches[-1] == 128 and data.scores[-1] == data.score and data.examples == 20
    assert data.beyond == sorted(data.beyond, reverse=True) and data.beyond[-1] == 0
    assert (home / "probes.png").stat().st_size > 1000
    capfd.readouterr()
    # rows and derived change the derivatives, so the probes are computed again.
    for extra_overrides, is_cached in ((), True), (("rows=3",), False), (("derived=3", f"collect={tmp_path}"), False):
        probe.__wrapped__(compose(ProbesOptions, [*args, *extra_overrides]))
        assert ("already done" in capfd.readouterr().err) == is_cached
    collected = {name: record.load(home / name / "seed-0/probes.json") for name in names}
    assert list(record.load_collection(tmp_path).values()) == [collected["nystrom"], collected["sdpa"]]
    home.parents[1].joinpath(record.COLLECTION).write_text("{}")
    assert_error("line 1 is not a record of probes", record.load_collection, tmp_path)
    probe.__wrapped__(compose(ProbesOptions, [*args, "swaps=[sdpa,nystrom]"]))
    swaps = record.read_table(home.parent / "swaps.csv").set_index(["task", "trained with"]).loc["listops"]
    # The convolution of nystrom has no weights in the other run, and the other way round.
    assert swaps.sdpa["nystrom"] == "" and swaps.nystrom["sdpa"] == ""
    scores = {name: str(collected[name].score) for name in names}
    assert swaps.own.to_dict() == {name: swaps[name][name] for name in names} == scores
    assert "| task | trained with | own | nystrom | sdpa |" in (home.parent / "swaps.md").read_text()
    probe.__wrapped__(compose(ProbesOptions, [*args, "filled=true"]))
    assert_error("give one of them", probe.__wrapped__, compose(ProbesOptions, [*args, "filled=true", "swaps=[sdpa]"]))
    filled = record.read_table(home.parent / "filled.csv").set_index(["task", "trained with"]).loc["listops"]
    assert filled.own.to_dict() == scores and {"16", "32"} <= set(filled)


def test_scores_by_token_count_exclude_padding_filler_and_groups_of_one_class():
    rows = torch.tensor([[1, 0, 0, 0], [2, 5, 0, 0], [1, 0, 5, 5], [2, 5, 5, 5], [1, 5, 5, 5]])
    mask = torch.tensor([4, 4, 4, 4, 3])[:, None, None] > torch.arange(4)
    label = torch.tensor([1, 2, 0, 0, 1])
    # The model predicts the first token.
    model = lambda inputs, mask: F.one_hot(inputs[:, 0, 0], 3)
    batches = [Batch(rows[:2, None], None, label[:2]), Batch(rows[2:, None], mask[2:], label[2:])]
    scores = measure.scores_by_num_tokens(model, batches, "accuracy")
    assert scores == {"own": 60.0, "1": 100.0, "2": pytest.approx(200 / 3), "4": 0.0}
    # These metrics need both classes.
    classes = lambda inputs, mask: F.one_hot(inputs[:, 0, 0] - 1, 2)
    batch = Batch(torch.tensor([[1, 0], [2, 0], [1, 5]])[:, None], None, torch.tensor([0, 1, 0]))
    for metric in ("roc_auc", "balanced_accuracy"):
        assert measure.scores_by_num_tokens(classes, [batch], metric) == {"own": 100.0, "1": 100.0}


def test_matrix_leaves_out_scores_with_other_options_and_of_some_seeds(tmp_path, capfd):
    seeds = {"cur_abs/seed-0": ("100,", "sdpa"), "cur_abs/seed-1": ("100,", "mean"), "psf/seed-0": ("100,", "mean")}
    for name, (options, other) in (seeds | {"dba/seed-0": ("100,8", "sdpa"), "cur/seed-0": ("200,", "sdpa")}).items():
        path = tmp_path / "listops" / name / record.SWAPS
        path.parent.mkdir(parents=True)
        path.write_text(f"scored with,score,examples,kept\nown,40.0,{options}\n{other},20.0,{options}\n")
    write_matrix(tmp_path, record.SWAPS, {"examples": "100", "kept": ""})
    scores = record.read_table(tmp_path / record.SWAPS).to_numpy().tolist()
    assert scores == [["listops", "cur_abs", "40.0", "", ""], ["listops", "psf", "40.0", "", "20.0"]]
    assert capfd.readouterr().err.count("left out: ") == 4


def test_swapped_mechanism_inherits_number_of_selected_tokens():
    run, *_ = finished(CONF.parent / "runs/published/paper/listops/cur_abs")
    run.choices = run.choices | {"attn.count": 5}
    swap = lambda name, *args: _transfer_options(run, compose(ProbesOptions, [f"run={run.path}", *args]), name).attn
    assert swap("cur_step").get("count") == swap("nystrom").get("landmarks") == 5
    assert swap("cur_step", "kept=9").get("count") == 9
    assert swap("mean") == compose(TransferOptions, [f"run={run.path}", "attn=mean"]).attn


def save_probes(runs, label, scores, seed=0, fingerprint="f", reaches=(1, 2, 4, 8), examples=10**4):
    about = {"study": "paper-paper", "task": "listops", "label": label, "seed": seed, "fingerprint": fingerprint}
    about |= {"git": None, "metric": "accuracy", "by": "mask", "derived": 0, "rows": 8, "beyond": None}
    data = record.Probes(**about, examples=examples, reaches=list(reaches), scores=scores, score=scores[-1])
    save(data, record.folder(runs, data) / record.NAME) if seed == 0 else record.collect([data], runs)
    return data


def test_locality_is_smallest_reach_that_keeps_95_percent_of_gain(tmp_path):
    data = save_probes(tmp_path, "sdpa", [20.0, 39.0, 30.0, 40.0])
    # 39 keeps 95 % of the gain, but the longer reach with 30 does not.
    assert locality(data, 20.0) == 8
    shorter = save_probes(tmp_path, "sdpa", [10.0, 20.0, 30.0, 40.0], reaches=(1, 2, 4, 6))
    assert record.means([data, shorter], "scores").to_dict() == {1: 15.0, 2: 29.5, 4: 30.0}
    assert locality(save_probes(tmp_path, "sdpa", [20.0, 38.9, 39.0, 40.0]), 20.0) == 4
    assert locality(save_probes(tmp_path, "sdpa", [40.0, 41.0, 40.0, 40.0]), 20.0) == 1
    # 5 % of the gain are 1 point; the standard error on 2,500 examples is 0.98 points, on 2,300 it is 1.02.
    sizes = [save_probes(tmp_path, "sdpa", [40.0] * 4, examples=examples) for examples in (2500, 2300)]
    assert [resolves_gain(probes, 20.0) for probes in sizes] == [True, False]


def test_report_shows_locality_scores_within_each_reach_and_swaps(tmp_path):
    """Medians and means over probed seeds, ignoring probes of other runs and without a gain over the control."""
    for label, test in (("mean", 20.0), ("sdpa", 40.0), ("cur_abs", 40.0), ("linear", 19.0)):
        add_seeds(tmp_path, label, [test] * 2)
    scores = lambda: reach_tables("paper-paper", [*rows(tmp_path).values()])
    assert "locality" not in table(tmp_path)["listops"].head and scores() == []
    for seed, actual in enumerate(([20.0, 25.0, 39.5, 40.0], [20.0, 20.0, 20.0, 41.0])):
        save_probes(tmp_path, "sdpa", actual, seed)
    save_probes(tmp_path, "cur_abs", [40.0] * 4, fingerprint="another run")
    save_probes(tmp_path, "linear", [19.0] * 4)
    localities = {label: cells["locality"] for label, cells in texts(table(tmp_path)["listops"]).items()}
    assert localities == {"sdpa": "6", "cur_abs": "", "linear": "", "mean": ""}
    lines = {cells[0].text: [cell.text for cell in cells[1:]] for _, cells in scores()[0].rows()}
    assert lines.keys() == {"sdpa", "linear"}
    assert lines["sdpa"] == ["listops", "2", "20.00", "22.50", "29.75", "40.50"]
    swaps = tmp_path / record.FOLDER / "paper-paper" / record.SWAPS
    swaps.write_text("task,trained with,own,sdpa,mean\nlistops,nystrom,41.0,,12.345\n")
    ((_, cells),) = matrices("paper-paper", [*rows(tmp_path).values()])[0].rows()
    assert [cell.text for cell in cells] == ["listops", "nystrom", "41.00", "", "12.35"]


def run_record(task, label="mean", seed=0, test=40.0, **changes):
    values = {"task": task, "label": label, "seed": seed, "test": test, "constant_baseline": 25.0}
    return replace(RECORD, **values | changes)


def test_measured_points_are_sorted_by_task_length_and_mechanism():
    records = [
        *(run_record("adding_N256", seed=seed, test=test) for seed, test in ((0, 40.0), (1, 60.0))),
        run_record("adding_N128", seed=2, test=None, status="diverged"),
        run_record("temporal_order_N128", "linear"),
        run_record("listops"),
        run_record("recall_N64_K4"),
    ]
    points = show.run_errors(records).fillna({"error": -1})
    assert points[["task", "length", "mechanism", "seed", "constant", "error"]].to_numpy().tolist() == [
        ["adding", 128, "mean", 2, 75.0, -1],
        ["adding", 256, "mean", 0, 75.0, 60.0],
        ["adding", 256, "mean", 1, 75.0, 40.0],
        ["temporal_order", 128, "linear", 0, 75.0, 60.0],
    ]


def test_printed_errors_match_values_of_paper():
    error_of = {(n.task, n.attn, n.length): n.error for n in show.published_errors().itertuples()}
    assert error_of["adding", "linformer", 512] == 0.48 and error_of["adding", "performer", 4096] == 28.24
    assert error_of["temporal_order", "softmax", 16384] == 8.38 and error_of["temporal_order", "psf", 16384] == 0.11
    psf = {length: error for (task, attn, length), error in error_of.items() if (task, attn) == ("adding", "psf")}
    assert psf == {2**k: 0 for k in range(7, 15)}


def test_lengths_figure_shows_measured_and_published_errors():
    tests = {("sdpa", 0): 90.0, ("sdpa", 1): 80.0, ("mean", 0): 30.0}
    records = [run_record(f"adding_N{n}", *run, test=test) for n in (128, 512) for run, test in tests.items()]
    records.append(run_record("adding_N512", "mean", 1, None, status="diverged"))
    measured = show.run_errors(records)
    (axes,) = show.draw(measured, show.published_errors()).axes
    lines = {line.get_label(): line for line in axes.get_lines()}
    assert axes.get_xscale() == "log"
    for label, error in {"sdpa": 15.0, "mean": 70.0, "best constant answer": 75.0}.items():
        assert list(lines[label].get_ydata()) == [error, error]
    ranges = [path.vertices[:, 1].tolist() for part in axes.collections for path in part.get_paths()]
    assert ranges == [[70.0, 70.0]] * 2 + [[10.0, 20.0]] * 2
    published = lines["Transformer, published"]
    assert list(published.get_xdata()) == [2048] and list(published.get_ydata()) == [84.48]
    assert published.get_color() == lines["sdpa"].get_color() and published.get_markerfacecolor() == "none"
    assert "n = 1 to 2 per point" in show.caption(measured) and "1 run diverged" in show.caption(measured)


def test_lengths_command_plots_finished_runs_after_failure(tmp_path, monkeypatch, call):
    def launch(_, runs):
        for run in runs:
            fail(run, "no memory") if run.label == "linear" else finish(run)

    monkeypatch.setattr(Launcher, "launch", launch)
    grid = ("lengths=[128,256]", "mechanisms=[mean,linear]", "seeds=[0]", "tasks=[temporal_order]")
    command = (*grid, "budget=smoke", "measure=0", f"runs={tmp_path}")
    assert call(lengths, *command, "plan=true")[0] is None and not list(tmp_path.iterdir())
    stop, _, log = call(lengths, *command)
    assert stop == "lra: 2 of 4 runs failed; the same command tries them again" and "no memory" in log
    home = tmp_path / "sweep-lengths-smoke"
    measured = pd.read_csv(home / "lengths.csv").query("source == 'measured'")[["mechanism", "length", "error"]]
    assert measured.to_numpy().tolist() == [["mean", length, 100 - RECORD.test] for length in (128, 256)]
    assert (home / "lengths.png").stat().st_size > 10_000
