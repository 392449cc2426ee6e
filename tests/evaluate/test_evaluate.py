"""python -m lra.evaluate: fresh scores of finished runs, resumed, collected and refused."""

import dataclasses
import os
import shutil

import numpy as np
import pytest
import torch
from conftest import printed
from support.records import flip
from support.training import seed_folder, smoke, train_config

from lra.arguments import name_positional
from lra.evaluate import fresh, record, score
from lra.evaluate.__main__ import evaluate
from lra.ops import metrics
from lra.runs import restore
from lra.runs.run_dir import RunDir

EXAMPLES = 40
pytestmark = pytest.mark.usefixtures("data_root")


@pytest.fixture(scope="module")
def trained(tmp_path_factory, data_root):
    """A smoke run of one seed on ListOps, with its data."""
    runs = tmp_path_factory.mktemp("trained")
    train_config(smoke(runs, attn="cur_abs"))
    return runs


@pytest.fixture
def runs(trained, tmp_path):
    """A copy of the run outside the repository."""
    shutil.copytree(trained, tmp_path / "runs")
    return tmp_path / "runs"


@pytest.fixture
def command(monkeypatch, capfd):
    """Run the command; returns the exit message and what it printed on stderr."""

    def run(*words):
        stop, out, err = printed(evaluate, f"examples={EXAMPLES}", "threads=1", *words, patch=monkeypatch, capfd=capfd)
        return stop, out + err

    return run


def opened(runs):
    return RunDir.read(seed_folder(runs, "cur_abs"))


def root():
    """The folder of the data of the session."""
    return os.environ["LRA_DATA"]


def test_a_result_stands_beside_the_record_and_is_not_computed_twice(runs, command):
    stop, text = command(f"runs={runs}")
    assert stop is None and "fresh test" in text
    path = seed_folder(runs, "cur_abs") / record.NAME
    first = path.read_bytes()
    result = record.load(path)
    correct = result.is_correct()
    assert len(correct) == result.examples == EXAMPLES and result.seen == 0
    assert result.fresh_test == 100 * correct.mean()
    assert result.standard_error == pytest.approx(100 * correct.std() / EXAMPLES**0.5)
    stop, text = command(f"runs={runs}")
    assert stop is None and "scored before" in text and path.read_bytes() == first
    # Another number of examples is another data set, hence another result.
    assert command(f"runs={runs}", "examples=30")[0] is None and record.load(path).examples == 30


def test_scoring_the_standard_test_set_gives_the_score_of_the_record(runs):
    """The same function on the run's own test examples: what differs is the examples alone."""
    run = opened(runs)
    experiment, _ = fresh.generator_experiment(run, root(), EXAMPLES)
    data = experiment.task_data()
    data.setup()
    own = fresh.FreshData(data, np.arange(run.record.n_test), 0, "")
    model = restore.best(run, experiment)
    for batch in (3, 32):
        correct = score.outcomes(model, own, metric="accuracy", batch=batch, precision="fp32", device="cpu")
        assert 100 * correct.mean() == run.record.test


@pytest.mark.parametrize("metric", ["accuracy", "within_tolerance"])
def test_the_mean_of_the_outcomes_is_the_metric(metric):
    torch.manual_seed(0)
    outputs = torch.randn(200, 1 if metric == "within_tolerance" else 10)
    labels = outputs[:, 0] + 0.08 * torch.rand(200) if metric == "within_tolerance" else torch.randint(10, (200,))
    outputs[:3] = torch.nan
    correct = score.is_correct(outputs, labels, metric)
    assert 100 * correct.double().mean() == pytest.approx(getattr(metrics, metric)(outputs, labels))


def test_fresh_examples_are_other_ones_and_seen_ones_are_left_out(runs, monkeypatch):
    run = opened(runs)
    experiment, fresh_experiment = fresh.generator_experiment(run, root(), EXAMPLES)
    result = fresh.fresh_data(run, experiment, fresh_experiment, fresh.RowHashes())
    assert result.data.source.seed == fresh.FRESH_SEED != experiment.data_source().seed
    # Hashes that claim that 10 of the fresh examples are training examples.
    known = fresh.RowHashes()
    known.of_split(result.data, "test")
    own = experiment.task_data()
    own.setup()
    known.of_split(own, "train")[:10] = known.of_split(result.data, "test")[5:15]
    without = fresh.fresh_data(run, experiment, fresh_experiment, known)
    assert without.seen == 10 and without.digest != result.digest
    assert without.index.tolist() == [*range(5), *range(15, EXAMPLES)]
    known.of_split(own, "train")[:30] = known.of_split(result.data, "test")[:30]
    with pytest.raises(ValueError, match="30 of 40 fresh examples of listops are in the data of the run"):
        fresh.fresh_data(run, experiment, fresh_experiment, known)


def test_results_are_collected_in_the_table_of_a_published_study(runs, command, tmp_path):
    assert "is not a published study" in command(f"runs={runs}", f"collect={tmp_path}")[0]
    study = tmp_path / "paper-smoke"
    study.mkdir()
    assert command(f"runs={runs}", f"collect={tmp_path}")[0] is None
    (result,) = record.read_table(study)
    assert result == record.load(seed_folder(runs, "cur_abs") / record.NAME)
    other = dataclasses.replace(result, seed=7, git=None)
    record.write_table(study, [other, result])
    assert record.read_table(study) == [result, other]
    table = study / record.TABLE
    table.write_text(table.read_text().replace(result.outcomes[:8], "AAAAAAAA", 1))
    with pytest.raises(ValueError, match="is not a table of fresh-test results"):
        record.read_table(study)


def remove_weights(folder):
    (folder / "best.ckpt").unlink()


def damage_weights(folder):
    flip(folder / "best.ckpt")


def damage_result(folder):
    (folder / record.NAME).write_text("{}")


@pytest.mark.parametrize(
    "damage, reason",
    [
        (remove_weights, "has no best.ckpt; copy the weights of the run there"),
        (damage_weights, "best.ckpt cannot be used"),
        (damage_result, "is not a fresh-test result"),
    ],
)
def test_what_cannot_be_scored_is_named_with_its_reason(runs, command, damage, reason):
    damage(seed_folder(runs, "cur_abs"))
    stop, _ = command(f"runs={runs}")
    assert "1 of 1 runs were not scored" in stop and reason in stop


def test_a_task_without_a_generator_is_refused(runs, monkeypatch):
    run = opened(runs)
    own = restore.configuration(run, root())
    for options, reason in (
        ({"release": "somewhere"}, "was read from files"),
        ({"seed": fresh.FRESH_SEED}, "which is reserved for fresh examples"),
    ):
        changed = own.replace(source=own.source.replace(**options))
        monkeypatch.setattr(fresh, "configuration", lambda *_, changed=changed: changed)
        with pytest.raises(ValueError, match=reason):
            fresh.generator_experiment(run, root(), EXAMPLES)
    downloaded_task = own.replace(source=own.source.replace(seed=0))
    monkeypatch.setattr(type(downloaded_task.data_source()), "generated", False)
    monkeypatch.setattr(fresh, "configuration", lambda *_: downloaded_task)
    with pytest.raises(ValueError, match="listops is downloaded and has no generator"):
        fresh.generator_experiment(run, root(), EXAMPLES)


def test_a_folder_without_runs_is_refused(command, tmp_path):
    assert "has no finished run" in command(f"runs={tmp_path}")[0]


def test_positional_arguments_are_named():
    assert name_positional(["runs/a", "examples=3"], "runs") == ["runs=runs/a", "examples=3"]
    assert name_positional(["verify", "mine", "more", "--help"], "verify", "name") == [
        "verify=verify",
        "name=mine",
        "more",
        "--help",
    ]
