"""sweep=board: the choice of a learning rate, the order of runs, and going on from the folders alone."""

import itertools
import os
import random
import signal
import subprocess
import sys
from dataclasses import replace

import pytest
import yaml
from conftest import MECHANISMS, config, printed
from support.records import RECORD
from support.sweeps import fail, finish
from support.training import wait

from lra.board.duplicates import find_duplicates
from lra.board.runs import Board
from lra.board.search import decide
from lra.config import CONF
from lra.config.compose import compose
from lra.runs import config_file, published, record
from lra.sweep import __main__ as leader
from lra.sweep import launcher
from lra.sweep.options import SweepOptions

RATES, FURTHER = (3e-4, 1e-3, 3e-3, 1e-2), (3e-5, 1e-4, 3e-2, 1e-1)
LADDER = sorted(RATES + FURTHER)
MANY = 10**6  # examples: a score has no error
ALIKE = ("task=adding", "budget=quick", "task.length=64", "model.pool=class", "model.dropout=0")
TASKS = {"tiny_recall": "recall", "tiny_listops": "listops"}


def searched(score):
    """Search with a function from rates to dev scores: the rates in the order in which they are tried, the choice."""
    scores, tried = {}, []
    while True:
        left, chosen = decide(scores, RATES, FURTHER, examples=MANY)
        if chosen is not None:
            assert not left
            return tried, chosen
        assert left and not set(left) & set(scores)
        tried += left
        scores |= {rate: score(rate) for rate in left}


def test_the_choice_is_the_best_and_inside_of_what_was_tried_unless_there_is_no_further_rate():
    rng = random.Random(0)
    for _ in range(300):
        table = {rate: rng.choice([None, *range(5)]) for rate in LADDER}
        tried, chosen = searched(table.get)
        ends = LADDER.index(min(tried)), LADDER.index(max(tried))
        assert sorted(tried) == LADDER[ends[0] : ends[1] + 1] and tried[:4] == list(RATES)
        living = {rate: table[rate] for rate in tried if table[rate] is not None}
        if living:
            assert table[chosen] == max(living.values())
            assert chosen not in (min(tried), max(tried)) or chosen in (LADDER[0], LADDER[-1])
            ties = [rate for rate in tried if table[rate] == table[chosen]]
            middle = lambda rate: abs(LADDER.index(rate) - 3.5)
            assert chosen == min(ties, key=lambda rate: (middle(rate), rate))
        else:
            assert min(tried) == LADDER[0] and chosen == 1e-3


@pytest.mark.parametrize(
    "scores, examples, further, chosen",
    [
        ((1.0, 2.0, 3.0, 4.0), MANY, (), 1e-2),  # at the edge, where there is nothing further
        ((82.5, 99.0, 99.8, 99.9), 1000, FURTHER, 3e-3),  # the difference of 99.9 and 99.8 has an error of 0.17
        ((52.0, 50.0, 30.0, 20.0), 1000, FURTHER, 1e-3),  # 2.2, so that the lowest rate is no edge
        ((5.0, 5.5, 5.2, 6.0), 1000, FURTHER, 1e-3),  # 1.0, so that the highest rate is no edge
    ],
)
def test_of_scores_within_a_standard_error_the_one_nearer_the_middle_counts(scores, examples, further, chosen):
    assert decide(dict(zip(RATES, scores, strict=True)), RATES, further, examples=examples) == ([], chosen)


def test_the_board_lists_every_mechanism_that_runs_on_a_cpu_once():
    """custom needs a class of the user's; the flashcur_* need a GPU."""
    named = compose(SweepOptions, ["sweep=board"]).mechanisms
    assert len(set(named)) == len(named)
    assert {words.split()[0] for words in named} == {name for name in MECHANISMS if not name.startswith("flashcur_")}


@pytest.fixture
def board(tmp_path, monkeypatch, capfd, data_root):
    """A function that runs the command with other words and launch, for two tiny tasks; returns its last line, stdout
    and stderr."""
    monkeypatch.setattr(launcher, "EVERY", 0.01)
    monkeypatch.setattr("lra.data.bag_of_tokens.EPOCHS", 1)

    def start(launch, *words):
        monkeypatch.setattr(launcher.Launcher, "launch", lambda _, runs: launch(runs))
        return printed(leader.sweep, *command(tmp_path, *words)[3:], patch=monkeypatch, capfd=capfd)

    return start


def command(home, *words):
    for name, task in TASKS.items():
        path = home / "conf" / "experiment" / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"# @package _global_\ndefaults: [override /task: {task}, _self_]\nbudget: smoke\n")
    words = ("seeds=[0,1]", "measure=0", *words)
    few = [f"tasks=[{','.join(TASKS)}]"] * (not any(word.startswith("tasks=") for word in words))
    start = ["--config-dir", str(home / "conf"), "sweep=board", f"runs={home / 'runs'}"]
    return [sys.executable, "-m", "lra.sweep", *start, *few, *words]


def rate(run):
    return float(dict(word.split("=", 1) for word in run.overrides)["optim.lr"])


def test_rates_first_then_seeds_at_the_best_mechanism_by_mechanism(board, tmp_path):
    rounds = []

    def launch(runs):
        rounds.append([(run.task, run.label, run.seed, rate(run)) for run in runs])
        for run in runs:
            peak = 1e-3 if "recall" in run.task else 1e-2  # the latter is at the edge
            finish(run, val=90.0 - 100 * abs(rate(run) - peak), n_val=MANY)

    words = ("mechanisms=[mean,none]", "hydra.launcher.n_jobs=1")
    stop, out, _ = board(launch, *words)
    assert stop is None and "8 rates" not in out and "16 runs for the rates and 8 at the chosen ones" in out
    runs = list(itertools.chain(*rounds))
    names = [[(label.split("-")[0], seed) for _, label, seed, _ in some] for some in rounds]
    first = lambda *run: next(number for number, some in enumerate(names) if run in some)
    assert max(first("mean", 0), first("mean", 1)) <= first("none", 100)
    expected = []
    for label in ("mean", "none"):
        for task, chosen, further in (("recall_N64_K4", 1e-3, []), ("listops", 1e-2, [3e-2])):
            expected += [(task, f"{label}-optim.lr={lr}", 100, lr) for lr in (*RATES, *further)]
            expected += [(task, label, seed, chosen) for seed in (0, 1)]
    assert sorted(runs) == sorted(expected)
    homes = {"/".join(path.parts[-4:-3]) for path in (tmp_path / "runs").rglob("seed-*")}
    assert homes == {"board", "board-rates"}

    stop, out, _ = board(pytest.fail, *words)
    assert stop is None and "5 rates done, 0.01 chosen; 2 of 2 seeds done" in out and "left:" not in out
    (tmp_path / "runs" / "board" / "listops" / "none" / "seed-1" / record.NAME).unlink()
    rounds.clear()
    assert board(launch, *words)[0] is None and rounds == [[("listops", "none", 1, 1e-2)]]


def test_diverged_and_collapsed_runs_count_as_the_worst_and_failed_ones_leave_the_search_open(board):
    tried = []

    def launch(runs, failing=True):
        for run in runs:
            tried.append((run.task, run.seed, rate(run)))
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
    assert {run for run in tried if run[1] != 100} == {("recall_N64_K4", seed, 3e-4) for seed in (0, 1)}
    assert tried.count(("listops", 100, 1e-3)) == 1 and ("recall_N64_K4", 100, 1e-4) in tried
    tried.clear()
    assert board(lambda runs: launch(runs, failing=False), "mechanisms=[mean]")[0] is None
    assert tried == [("listops", 100, lr) for lr in (1e-3, 1e-4)] + [("listops", seed, 3e-4) for seed in (0, 1)]


def test_a_mechanism_of_the_users_own_and_the_number_of_its_runs(board):
    words = ("attn=custom", "attn._target_=lra.attention.controls.Mean", "tasks=[tiny_recall]", "plan=true")
    stop, out, _ = board(pytest.fail, *words, "measure=60")
    assert stop is None and "  Mean tiny_recall: 0 rates done, 4 left; 0 of 2 seeds done; time left about" in out
    assert "left: 4 runs for the rates and 2 at the chosen ones" in out and "time one after the other: about" in out


def test_a_record_of_another_configuration_is_refused(board, tmp_path):
    words = ("mechanisms=[mean]", "tasks=[tiny_recall]")
    assert board(lambda runs: [finish(run, val=1.0) for run in runs] and None, *words)[0] is None
    folder = tmp_path / "runs" / "board-rates" / "recall_N64_K4" / "mean-optim.lr=0.001" / "seed-100"
    (folder / "config.yaml").write_text(yaml.safe_dump({"optim.lr": 0.5}))
    stop, *_ = board(pytest.fail, *words)
    assert stop.startswith(f"lra: {folder} was made by another configuration (") and "optim.lr: 0.5 -> 0.001" in stop


def test_what_an_earlier_label_computes_is_not_run_and_the_task_s_length_decides(board):
    tried = set()

    def launch(runs):
        for run in runs:
            tried.add((run.task, run.label.split("-optim")[0]))
            finish(run, val=50.0)

    plain = "overrides=['model.dropout=0']"
    words = ("mechanisms=['local attn.block=64','mean block=glu','none block=glu',mean]", plain)
    line = "local attn.block=64 on tiny_recall: = sdpa here"
    stop, out, _ = board(launch, *words, "plan=true")
    assert stop is None and out.count(" here\n") == 1 and f"  {line}\n" in out and not tried
    stop, _, err = board(launch, *words)
    assert stop is None and err.endswith(f"{line}\n")
    others = itertools.product(("recall_N64_K4", "listops"), ("mean", "mean-block=glu", "none-block=glu"))
    assert tried == {*others, ("listops", "local-block=64")}
    stop, out, _ = board(pytest.fail, "mechanisms=['local attn.block=64']", plain, "tasks=[tiny_recall]")
    assert stop is None and line in out


def test_published_runs_of_the_same_configuration_count_as_finished(board, tmp_path, monkeypatch):
    monkeypatch.setattr(published, "HOME", tmp_path / "published")
    words = ("tasks=[curformer_listops]", "budget=smoke", "mechanisms=[mean]")
    options = compose(SweepOptions, ["sweep=board", f"runs={tmp_path}", "measure=0", *words])
    (entry,) = Board(options, 1).entries

    def publish(**changes):
        """The search and a seed at the best rate, with changes of the choices at another rate."""
        runs = {"board-smoke": [], "board-smoke-rates": []}
        for lr, seed in [*((lr, 100) for lr in RATES), (3e-3, 0)]:
            run = entry.at(lr, seed, search=seed == 100)
            choices = entry.choices | {"optim.lr": lr} | (changes if lr == 1e-3 else {})
            fields = {
                "label": run.label,
                "seed": seed,
                "fingerprint": config_file.fingerprint(choices | {"seed": seed}),
            }
            fields |= {"study": run.folder.parts[-4], "val": 90.0 - 1000 * abs(lr - 3e-3), "n_val": MANY}
            runs[fields["study"]].append(published.Published(replace(RECORD, **fields), choices, []))
        for study, study_runs in runs.items():
            published.save(published.HOME / study, study_runs)

    launched = []
    launch = lambda runs: [(launched.append((rate(run), run.seed)), finish(run, val=1.0)) for run in runs] and None
    publish()
    stop, out, _ = board(launch, *words)
    assert stop is None and "4 rates done, 0.003 chosen; 1 of 2 seeds done" in out and "do not count" not in out
    assert launched == [(3e-3, 1)]
    launched.clear()
    publish(**{"model.dim": 32})
    stop, out, _ = board(launch, *words)
    told = "do not count: 1, such as board-smoke-rates/listops/mean-optim.lr=0.001/seed-100 (model.dim"
    assert stop is None and told in out and launched == [(1e-3, 100)]


def test_the_bag_of_tokens_is_fitted_before_the_first_run_of_a_task_and_once(board, tmp_path):
    words = ("mechanisms=[mean]", "tasks=[tiny_recall]", f"overrides=['data.root={tmp_path / 'data'}']")
    bags = lambda: list((tmp_path / "data" / "bags").glob("recall*.json"))
    board(pytest.fail, *words, "plan=true")
    assert not bags()
    found = []
    launch = lambda runs: [(found.append(len(bags())), finish(run, val=1.0)) for run in runs] and None
    stop, _, err = board(launch, *words)
    assert stop is None and set(found) == {1} and err.count("fitting the bag of tokens") == 1
    (tmp_path / "runs" / "board" / "recall_N64_K4" / "mean" / "seed-0" / record.NAME).unlink()
    assert "fitting" not in board(launch, *words)[2]


@pytest.mark.slow
def test_killed_it_goes_on_from_the_folders(tmp_path, data_root):
    words = command(tmp_path, "mechanisms=[mean]", "tasks=[tiny_recall]", "seeds=[0]", "sweep.search.further=[]")
    start = lambda: subprocess.Popen(words, cwd=CONF.parent, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    finished = lambda: {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").rglob(record.NAME)}
    wait(first := start(), lambda: len(finished()) >= 2)
    os.kill(first.pid, signal.SIGKILL)
    first.communicate(timeout=90)
    before = finished()
    _, err = (again := start()).communicate(timeout=300)
    assert again.returncode == 0, err
    after = finished()
    assert before.items() <= after.items() and 2 <= len(before) < len(after) == 5
    searched = [result for result in map(record.load, after) if result.seed == 100]
    scores = {result.lr: None if result.collapsed else result.val for result in searched}
    chosen = decide(scores, RATES, examples=searched[0].n_val)[1]
    (seed,) = (path.parent for path in after if path.parent.name == "seed-0")
    assert yaml.safe_load((seed / "config.yaml").read_text())["optim.lr"] == chosen


def test_labels_that_compute_exact_attention_at_a_length_are_found_by_their_outputs():
    exact = ["bigbird attn.block=65", "sinkhorn attn.block=65", "longformer attn.window=200", "softmax attn.dropout=0"]
    others = ["local attn.block=64", "softmax", "linear", "mean", "soft attn.count=8", "soft_fixed attn.count=8"]
    found = find_duplicates({words: config(words, *ALIKE) for words in ["sdpa", *exact, *others]})
    assert found == dict.fromkeys(exact, "sdpa") | {"soft_fixed attn.count=8": "soft attn.count=8"}
