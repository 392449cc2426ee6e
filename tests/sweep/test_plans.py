"""Tests of sweep plans: the runs of a grid, and sweep=board with its learning-rate search and its resuming."""

import itertools
import random
from dataclasses import replace

import pytest
import yaml
from conftest import MECHANISMS, assert_error, config, of_session
from support.records import RECORD, SMOKE, expand, fail, finish, finish_each
from support.records import config as options_of

from lra.board.duplicates import find_duplicates
from lra.board.runs import Board
from lra.board.search import decide
from lra.config.compose import compose
from lra.config.experiment import Experiment
from lra.config.recipes import choices
from lra.io import atomic
from lra.runs import config_file, published, record
from lra.sweep import __main__ as leader
from lra.sweep import launcher, plan
from lra.sweep.options import SweepOptions

RATES, FURTHER = (3e-4, 1e-3, 3e-3, 1e-2), (3e-5, 1e-4, 3e-2, 1e-1)
LADDER = sorted(RATES + FURTHER)
# So many validation examples that the standard error of a score is negligible.
MANY = 10**6
TASKS = {"tiny_recall": "recall", "tiny_listops": "listops"}


def test_study_name_lists_differences_from_paper():
    assert plan.study(options_of("lr", "budget=quick", "protocol=clean")) == "sweep-lr-clean-quick"
    assert plan.study(options_of("lr", "study=mine")) == "mine"


@pytest.mark.parametrize("name", choices("sweep"))
def test_each_grid_point_is_a_distinct_run(name):
    """All points have different overrides; those along an axis are built, with the first mechanism only."""
    made = options_of(name)
    if made.sweep.search:
        # A sweep with a learning-rate search lists mechanisms and has no grid.
        names = made.mechanisms
        assert len(set(names)) == len(names) > 1 and {words.split()[0] for words in names} <= set(MECHANISMS)
        return
    points = plan.points(made.sweep)
    assert len({tuple(point) for point in points}) == len(points) > 0
    small = options_of(name, *SMOKE, "seeds=[3]")
    for key, grid in made.sweep.grids.items():
        axes = {axis: list(values) for axis, values in grid.items()}
        assert set(axes["attn"]) <= set(MECHANISMS)
        axes["attn"] = axes["attn"][:1]
        for axis, values in axes.items():
            axis_grid = {other: items[:1] for other, items in axes.items()} | {axis: values}
            swept = small.replace(sweep=small.sweep.replace(grids={key: axis_grid}))
            assert len(plan.expand(swept, threads=None)[0]) == len(values)


def test_lr_sweep_has_same_rates_for_each_baseline():
    rates = {}
    for point in plan.points(options_of("lr").sweep):
        words = dict(word.split("=", 1) for word in point)
        rates.setdefault(words["attn"], []).append(float(words["optim.lr"]))
    assert list(rates) == list(options_of("baselines").sweep.grids["methods"]["attn"])
    assert set(map(tuple, rates.values())) == {(1e-4, 3e-4, 1e-3, 3e-3)}


def test_unavailable_mechanism_is_skipped_with_reason(monkeypatch):
    unavailable = property(lambda made: f"attn={made.label} needs a GPU" if "sum" in made.label else None)
    monkeypatch.setattr(Experiment, "unavailable", unavailable)
    runs, skipped = plan.expand(options_of("selection", *SMOKE), threads=None)
    assert skipped == ["listops: attn=cur_sum needs a GPU"] and "cur_sum" not in {run.label for run in runs}


def test_count_above_task_length_is_skipped_with_reason():
    words = ["budget=quick", "tasks=[listops]", "measure=0"]
    runs, skipped = plan.expand(options_of("count", *words), threads=None)
    assert {run.label.partition("=")[2] for run in runs} == {"16", "32"}
    assert len(skipped) == 8 and skipped[0] == "listops: attn.count must be from 1 to 32 (length), not 64"
    wrong_type = "task=listops attn=cur_abs attn.count=abc: attn.count must be a whole number"
    for value, message in {"64": "listops: attn.count must be from 1 to 32", "abc": wrong_type}.items():
        grid = [f"+sweep.grids.mine={{attn:[cur_abs],attn.count:[{value}]}}", "~sweep.grids.methods"]
        assert_error(f"^{message}", plan.expand, options_of("selection", *words, *grid), threads=None)


def test_protocol_options_are_passed_to_runs():
    runs = expand("selection", "protocol.mean_over=real", "protocol=clean")
    assert {"protocol=clean", "protocol.mean_over=real"} <= set(runs[0].overrides)
    assert compose(Experiment, runs[0].overrides).protocol.mean_over == "real"
    # The name of a protocol is an option too, and need not be the one of its yaml.
    for choice, mean_over in ((["protocol=clean"], "real"), ([], "length")):
        protocol = compose(Experiment, expand("selection", *choice, "protocol.name=mine")[0].overrides).protocol
        assert (protocol.name, protocol.mean_over) == ("mine", mean_over)


VAL_SIZES = {
    "task=listops budget=paper": 2_000,
    "task=text budget=paper": 25_000,
    "task=text budget=paper protocol.hold_out=5000": 5_000,
    "task=retrieval budget=paper": 18_090,
    "task=image budget=quick": 500,
    "task=genome": None,
}


@pytest.mark.parametrize("words", VAL_SIZES)
def test_validation_set_size_is_known_before_preparation(words):
    assert compose(Experiment, [*words.split(), "attn=mean"]).data_source().num_val == VAL_SIZES[words]


def test_search_chooses_best_rate_inside_the_tried_range():
    rng = random.Random(0)
    for _ in range(300):
        table = {rate: rng.choice([None, *range(5)]) for rate in LADDER}
        attempts, chosen = {}, None
        while chosen is None:
            next_rates, chosen = decide(attempts, RATES, FURTHER, examples=MANY)
            assert bool(next_rates) == (chosen is None) and not set(next_rates) & set(attempts)
            attempts |= {rate: table[rate] for rate in next_rates}
        ends = LADDER.index(min(attempts)), LADDER.index(max(attempts))
        assert sorted(attempts) == LADDER[ends[0] : ends[1] + 1] and [*attempts][:4] == list(RATES)
        valid_scores = [score for score in attempts.values() if score is not None]
        if valid_scores:
            assert table[chosen] == max(valid_scores)
            assert chosen not in (min(attempts), max(attempts)) or chosen in (LADDER[0], LADDER[-1])
            ties = [rate for rate in attempts if table[rate] == table[chosen]]
            middle = lambda rate: abs(LADDER.index(rate) - 3.5)
            assert chosen == min(ties, key=lambda rate: (middle(rate), rate))
        else:
            assert min(attempts) == LADDER[0] and chosen == 1e-3


@pytest.mark.parametrize(
    "scores, examples, further, chosen",
    [
        ((1.0, 2.0, 3.0, 4.0), MANY, (), 1e-2),
        # The difference of 99.9 and 99.8 has a standard error of 0.17.
        ((82.5, 99.0, 99.8, 99.9), 1000, FURTHER, 3e-3),
        # Standard error 2.2: the lowest rate is not clearly the best.
        ((52.0, 50.0, 30.0, 20.0), 1000, FURTHER, 1e-3),
        # Standard error 1.0: the highest rate is not clearly the best.
        ((5.0, 5.5, 5.2, 6.0), 1000, FURTHER, 1e-3),
    ],
)
def test_search_prefers_middle_rate_within_standard_error(scores, examples, further, chosen):
    assert decide(dict(zip(RATES, scores, strict=True)), RATES, further, examples=examples) == ([], chosen)
    # A further rate between those of the grid is not tried.
    inner = [*further, RATES[0] * 1.5]
    assert decide(dict(zip(RATES, scores, strict=True)), RATES, inner, examples=examples) == ([], chosen)


def test_search_tries_no_higher_rate_if_every_run_diverged():
    assert decide({1e-3: None}, [1e-3], [3e-3], examples=MANY) == ([], 1e-3)
    assert decide({1e-3: None}, [1e-3], [3e-4, 3e-3], examples=MANY) == ([3e-4], None)


def test_board_lists_every_cpu_mechanism():
    """custom needs a class of the user, and flashcur_* need a GPU."""
    labels = compose(SweepOptions, ["sweep=board"]).mechanisms
    assert {words.split()[0] for words in labels} == {name for name in MECHANISMS if not name.startswith("flashcur_")}


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    """Write the YAML files of two tiny tasks once per session, so that Hydra reads each choice of groups once."""
    conf = of_session(tmp_path_factory, "tiny-tasks")
    (conf / "experiment").mkdir(parents=True, exist_ok=True)
    for name, task in TASKS.items():
        path = conf / "experiment" / f"{name}.yaml"
        if not path.exists():
            atomic.write(path, f"# @package _global_\ndefaults: [override /task: {task}, _self_]\nbudget: smoke\n")
    return conf


@pytest.fixture
def board(tmp_path, tasks, monkeypatch, call, data_root):
    """Return a function that runs sweep=board on two tiny tasks and returns exit message, stdout and stderr."""
    monkeypatch.setattr(launcher, "POLL_SECONDS", 0.01)
    monkeypatch.setattr("lra.data.token_baselines.EPOCHS", 1)

    def start(launch, *words):
        monkeypatch.setattr(launcher.Launcher, "launch", lambda _, runs: launch(runs))
        words = ("sweep=board", f"tasks=[{','.join(TASKS)}]", "seeds=[0,1]", "measure=0", *words)
        return call(leader.sweep, "--config-dir", str(tasks), f"runs={tmp_path / 'runs'}", *words)

    return start


def rate(run):
    return float(dict(word.split("=", 1) for word in run.overrides)["optim.lr"])


def test_board_searches_rates_then_runs_seeds_per_mechanism(board, tmp_path):
    rounds = []

    def launch(runs):
        rounds.append([(run.task, run.label, run.seed, rate(run)) for run in runs])
        for run in runs:
            # 1e-2 is at the edge, so a further rate is tried.
            peak = 1e-3 if "recall" in run.task else 1e-2
            finish(run, val=90.0 - 100 * abs(rate(run) - peak), n_val=MANY)

    words = ("mechanisms=[mean,none]", "hydra.launcher.n_jobs=1")
    stop, out, _ = board(launch, *words)
    assert stop is None and "8 rates" not in out and "16 runs for the rates and 8 at the chosen ones" in out
    names = [[(label.split("-")[0], seed) for _, label, seed, _ in items] for items in rounds]
    first_round = lambda *run: next(number for number, items in enumerate(names) if run in items)
    assert max(first_round("mean", 0), first_round("mean", 1)) <= first_round("none", 100)
    expected = []
    for label in ("mean", "none"):
        for task, chosen, further in (("recall_N64_K4", 1e-3, []), ("listops", 1e-2, [3e-2])):
            expected += [(task, f"{label}-optim.lr={lr}", 100, lr) for lr in (*RATES, *further)]
            expected += [(task, label, seed, chosen) for seed in (0, 1)]
    assert sorted(itertools.chain(*rounds)) == sorted(expected)
    assert {path.parts[-4] for path in (tmp_path / "runs").rglob("seed-*")} == {"board", "board-rates"}

    stop, out, _ = board(pytest.fail, *words)
    assert stop is None and "5 rates done, 0.01 chosen; 2 of 2 seeds done" in out and "left:" not in out
    (tmp_path / "runs" / "board" / "listops" / "none" / "seed-1" / record.NAME).unlink()
    rounds.clear()
    assert board(launch, *words)[0] is None and rounds == [[("listops", "none", 1, 1e-2)]]


def test_search_ranks_diverged_runs_last_and_waits_for_failed_ones(board):
    attempts = []

    def launch(runs, failing=True):
        for run in runs:
            attempts.append((run.task, run.seed, rate(run)))
            if failing and run.task == "listops" and rate(run) == 1e-3:
                fail(run, "no memory")
            elif rate(run) == 3e-3:
                finish(run, val=99.0, collapsed=True)
            elif rate(run) > 5e-4:
                finish(run, val=None, test=None, status="diverged")
            else:
                finish(run, val=1.0)

    stop, _, err = board(launch, "mechanisms=[mean]")
    assert stop == "lra: 1 of 11 runs failed; the same command tries them again" and "failed, no memory" in err
    assert {run for run in attempts if run[1] != 100} == {("recall_N64_K4", seed, 3e-4) for seed in (0, 1)}
    assert attempts.count(("listops", 100, 1e-3)) == 1 and ("recall_N64_K4", 100, 1e-4) in attempts
    attempts.clear()
    assert board(lambda runs: launch(runs, failing=False), "mechanisms=[mean]")[0] is None
    assert attempts == [("listops", 100, lr) for lr in (1e-3, 1e-4)] + [("listops", seed, 3e-4) for seed in (0, 1)]


def test_board_plan_counts_runs_of_custom_mechanism(board):
    words = ("attn=custom", "attn._target_=lra.attention.controls.Mean", "tasks=[tiny_recall]", "plan=true")
    stop, out, _ = board(pytest.fail, *words, "measure=60")
    assert stop is None and "  Mean tiny_recall: 0 rates done, 4 left; 0 of 2 seeds done; time left about" in out
    assert "left: 4 runs for the rates and 2 at the chosen ones" in out and "time one after the other: about" in out


def test_board_rejects_record_of_another_configuration(board, tmp_path):
    words = ("mechanisms=[mean]", "tasks=[tiny_recall]")
    assert board(finish_each(val=1.0), *words)[0] is None
    folder = tmp_path / "runs" / "board-rates" / "recall_N64_K4" / "mean-optim.lr=0.001" / "seed-100"
    (folder / "config.yaml").write_text(yaml.safe_dump({"optim.lr": 0.5}))
    stop, *_ = board(pytest.fail, *words)
    assert stop.startswith(f"lra: {folder} was made by another configuration (") and "optim.lr: 0.5 -> 0.001" in stop


def test_mechanism_equal_to_earlier_one_at_task_length_is_not_run(board):
    attempts = set()
    launch = finish_each(lambda run: attempts.add((run.task, run.label.split("-optim")[0])), val=50.0)
    no_dropout = "overrides=['model.dropout=0']"
    words = ("mechanisms=['local attn.block=64','mean block=glu','none block=glu',mean]", no_dropout)
    duplicate_note = "local attn.block=64 on tiny_recall: skipped, computes the same as sdpa"
    stop, out, _ = board(launch, *words, "plan=true")
    assert stop is None and out.count("computes the same") == 1 and f"  {duplicate_note}\n" in out and not attempts
    stop, _, err = board(launch, *words)
    assert stop is None and err.endswith(f"{duplicate_note}\n")
    distinct = itertools.product(("recall_N64_K4", "listops"), ("mean", "mean-block=glu", "none-block=glu"))
    assert attempts == {*distinct, ("listops", "local-block=64")}
    stop, out, _ = board(pytest.fail, "mechanisms=['local attn.block=64']", no_dropout, "tasks=[tiny_recall]")
    assert stop is None and duplicate_note in out


def test_default_budget_and_protocol_leave_experiment_of_board():
    words = ["sweep=board", "tasks=[board_recall]", "mechanisms=[mean]", "budget=paper", "protocol=paper", "measure=0"]
    (entry,) = Board(compose(SweepOptions, words), 1).entries
    assert (entry.experiment.budget, entry.experiment.protocol.name) == ("board", "clean")


def test_mechanisms_with_equal_labels_or_options_of_search_raise():
    made = lambda mechanisms: compose(SweepOptions, ["sweep=board", "tasks=[board_recall]", "measure=0", mechanisms])
    assert_error("sdpa optim.lr=1: optim.lr is decided by the search", made, "mechanisms=['sdpa optim.lr=1']")
    options = made("mechanisms=['sdpa block=glu','sdpa block=glu block.norm=scale']")
    assert_error("have the same label sdpa-block=glu on recall", Board, options, 1)


def test_published_runs_of_same_configuration_count_as_finished(board, tmp_path, monkeypatch):
    monkeypatch.setattr(published, "HOME", tmp_path / "published")
    words = ("tasks=[curformer_listops]", "budget=smoke", "mechanisms=[mean]")
    (entry,) = Board(compose(SweepOptions, ["sweep=board", f"runs={tmp_path}", "measure=0", *words]), 1).entries

    def publish(**changes):
        """Publish a search and one seed at the best rate, with changed choices at the rate 1e-3."""
        runs = {"board-smoke": [], "board-smoke-rates": []}
        for lr, seed in [*((lr, 100) for lr in RATES), (3e-3, 0)]:
            run = entry.at(lr, seed, search=seed == 100)
            choices = entry.choices | {"optim.lr": lr} | (changes if lr == 1e-3 else {})
            fields = {"study": run.folder.parts[-4], "label": run.label, "seed": seed, "n_val": MANY}
            fields |= {"fingerprint": config_file.fingerprint(choices | {"seed": seed})}
            made = replace(RECORD, **fields, val=90.0 - 1000 * abs(lr - 3e-3))
            runs[made.study].append(published.Published(made, choices, []))
        for study, study_runs in runs.items():
            published.save(published.HOME / study, study_runs)

    launches = []
    launch = finish_each(lambda run: launches.append((rate(run), run.seed)), val=1.0)
    publish()
    stop, out, _ = board(launch, *words)
    assert stop is None and "4 rates done, 0.003 chosen; 1 of 2 seeds done" in out and "do not count" not in out
    assert launches == [(3e-3, 1)]
    launches.clear()
    publish(**{"model.dim": 32})
    stop, out, _ = board(launch, *words)
    message = "do not count: 1, such as board-smoke-rates/listops/mean-optim.lr=0.001/seed-100 (model.dim"
    assert stop is None and message in out and launches == [(1e-3, 100)]


def test_bag_of_tokens_is_fitted_once_before_first_run(board, tmp_path):
    words = ("mechanisms=[mean]", "tasks=[tiny_recall]", f"overrides=['data.root={tmp_path / 'data'}']")
    bags = lambda: list((tmp_path / "data" / "bags").glob("recall*.json"))
    board(pytest.fail, *words, "plan=true")
    assert not bags()
    counts = []
    launch = finish_each(lambda run: counts.append(len(bags())), val=1.0)
    stop, _, err = board(launch, *words)
    assert stop is None and set(counts) == {1} and err.count("fitting the bag of tokens") == 1
    (tmp_path / "runs" / "board" / "recall_N64_K4" / "mean" / "seed-0" / record.NAME).unlink()
    assert "fitting" not in board(launch, *words)[2]


def test_duplicate_mechanisms_are_detected_by_their_outputs():
    exact = ["bigbird attn.block=65", "sinkhorn attn.block=65", "longformer attn.window=200", "softmax attn.dropout=0"]
    distinct = ["local attn.block=64", "softmax", "linear", "mean", "soft attn.count=8", "soft_fixed attn.count=8"]
    task = ("task=adding", "budget=quick", "task.length=64", "model.pool=class", "model.dropout=0")
    duplicates = find_duplicates({words: config(words, *task) for words in ["sdpa", *exact, *distinct]})
    assert duplicates == dict.fromkeys(exact, "sdpa") | {"soft_fixed attn.count=8": "soft attn.count=8"}
