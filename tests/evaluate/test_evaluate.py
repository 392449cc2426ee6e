"""Fresh-test scores of finished runs (lra evaluate), and significance of differences between paired outcomes."""

import dataclasses
import functools
import math
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import assert_error, set_up
from hydra.core.override_parser.overrides_parser import OverridesParser
from support.records import flip, replace_text
from support.training import seed_folder, smoke, train_config

from lra.config.entry import name_positional
from lra.data.split import Split
from lra.evaluate import fresh, record, restore
from lra.evaluate.__main__ import evaluate, find_result
from lra.io import typed_json
from lra.ops import metrics
from lra.results import outcome_statistics
from lra.runs import published as tables
from lra.runs.run_dir import RunDir
from lra.studies.first_tokens.__main__ import explained, first_tokens

EXAMPLES = 40
COMPARED = 400
pytestmark = pytest.mark.usefixtures("data_root")


@pytest.fixture(scope="module")
def trained(tmp_path_factory, data_root):
    runs = tmp_path_factory.mktemp("trained")
    train_config(smoke(runs, attn="cur_abs"))
    return runs


@pytest.fixture
def runs(trained, tmp_path):
    """A copy of the run, which a test may change."""
    shutil.copytree(trained, tmp_path / "runs")
    return tmp_path / "runs"


@pytest.fixture
def command(call):
    """Call lra evaluate with arguments; returns its exit message and stderr."""
    return lambda *words: call(evaluate, f"examples={EXAMPLES}", "threads=1", *words)[::2]


@pytest.fixture
def run(runs):
    return RunDir.read(seed_folder(runs, "cur_abs"))


@pytest.fixture
def generators(run, data_root):
    """The experiment of the run and the experiment that generates fresh examples."""
    return fresh.restore_experiments(run, str(data_root), EXAMPLES)


def test_result_is_saved_next_to_record_and_reused(runs, command):
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
    assert stop is None and "already scored" in text and path.read_bytes() == first
    # Other weights are scored again; another number of examples is another data set and gives a new result.
    typed_json.save(dataclasses.replace(result, weights="0" * 64), path)
    assert "already scored" not in command(f"runs={runs}")[1] and path.read_bytes() == first
    assert command(f"runs={runs}", "examples=30")[0] is None and record.load(path).examples == 30


@pytest.mark.parametrize("batch", [3, 32])
def test_scoring_standard_test_set_reproduces_recorded_score(run, generators, batch):
    """Fresh scores use the same scoring code as training: only the examples differ."""
    experiment, _ = generators
    standard = fresh.FreshData(set_up(experiment.task_data()), np.arange(run.record.n_test), 0, "")
    model = restore.load_best_model(run, experiment)
    score = functools.partial(fresh.outcomes, metric="accuracy", batch=batch, precision="fp32", device="cpu")
    correct = score(model, standard)
    assert 100 * correct.mean() == run.record.test
    # Examples that are left out do not shift the others, and random numbers are the same for every model.
    assert (score(model, dataclasses.replace(standard, index=standard.index[5::3])) == correct[5::3]).all()
    draw = lambda inputs, *_: torch.rand(len(inputs), 10)
    assert (score(draw, standard) == score(draw, standard)).all()


@pytest.mark.parametrize("metric", ["accuracy", "within_tolerance"])
def test_mean_outcome_equals_metric(metric):
    torch.manual_seed(0)
    outputs = torch.randn(200, 1 if metric == "within_tolerance" else 10)
    labels = outputs[:, 0] + 0.08 * torch.rand(200) if metric == "within_tolerance" else torch.randint(10, (200,))
    outputs[:3] = torch.nan
    correct = fresh.is_correct(outputs, labels, metric)
    assert 100 * correct.double().mean() == pytest.approx(getattr(metrics, metric)(outputs, labels))


def test_fresh_examples_exclude_examples_of_the_run(run, generators):
    experiment, fresh_experiment = generators
    result = fresh.fresh_data(run, experiment, fresh_experiment, fresh.ExampleHashes())
    assert result.data.source.seed == fresh.FRESH_SEED != experiment.data_source().seed
    # Replace hashes so that 10 of the fresh examples count as training examples of the run.
    hashes = fresh.ExampleHashes()
    hashes.of_split(result.data, "test")
    run_data = set_up(experiment.task_data())
    hashes.of_split(run_data, "train")[:10] = hashes.of_split(result.data, "test")[5:15]
    unseen = fresh.fresh_data(run, experiment, fresh_experiment, hashes)
    assert unseen.seen == 10 and unseen.digest != result.digest
    assert unseen.index.tolist() == [*range(5), *range(15, EXAMPLES)]
    hashes.of_split(run_data, "train")[:30] = hashes.of_split(result.data, "test")[:30]
    with pytest.raises(ValueError, match="30 of 40 fresh examples of listops are in the data of the run"):
        fresh.fresh_data(run, experiment, fresh_experiment, hashes)
    run.choices["provenance.seed"] = 5
    assert_error("was trained on other data", fresh.fresh_data, run, experiment, fresh_experiment, hashes)


def test_examples_that_differ_within_the_limit_have_different_hashes():
    split = Split(torch.tensor([1, 0, 1]), torch.tensor([0, 2, 3]), torch.zeros(2))
    data = SimpleNamespace(source=SimpleNamespace(provenance=0), limit=2, splits={"test": split})
    hashes = fresh.ExampleHashes()
    # A token 0 is not padding.
    assert len(set(hashes.of_split(data, "test"))) == 2
    data.limit = 1
    assert len(set(hashes.of_split(data, "test"))) == 1


def test_collect_writes_results_into_published_study(runs, run, call, command, tmp_path):
    assert "is not a published study" in command(f"runs={runs}", f"collect={tmp_path}")[0]
    study = tmp_path / "paper-smoke"
    tables.save(study, [tables.Published(dataclasses.replace(run.record, test=1.5), run.choices, [])])
    assert "does not have the run listops cur_abs seed 0" in command(f"runs={runs}", f"collect={tmp_path}")[0]
    tables.save(study, [tables.Published(run.record, run.choices, [])])
    # lra evaluate on the study itself writes to its table; the folder of the run keeps the weights alone.
    home = study / "listops/cur_abs/seed-0"
    home.mkdir(parents=True)
    shutil.copy(run.weights, home)
    assert command(f"runs={study}")[0] is None and [path.name for path in home.iterdir()] == ["best.ckpt"]
    (from_study,) = record.read_table(study)
    assert command(f"runs={runs}", f"collect={tmp_path}")[0] is None
    (result,) = record.read_table(study)
    assert result == from_study == record.load(seed_folder(runs, "cur_abs") / record.NAME)
    assert call(first_tokens, f"runs={study / 'listops'}")[0] is None
    second_result = dataclasses.replace(result, seed=7, git=None)
    record.write_table(study, [second_result, result])
    assert record.read_table(study) == [result, second_result]
    published = SimpleNamespace(is_published=True, path=study / "listops/cur_abs/seed-7", result=run.record, seed=7)
    assert find_result(published) == second_result
    # Outcomes that do not have the stated score.
    replace_text(study / record.TABLE, result.outcomes[:8], "AAAAAAAA")
    assert_error("is not a table of fresh-test results", record.read_table, study)


@pytest.mark.parametrize(
    ("name", "damage", "reason"),
    [
        ("best.ckpt", Path.unlink, "has no best.ckpt; copy the weights of the run there"),
        ("best.ckpt", flip, "best.ckpt cannot be used"),
        ("best.ckpt", lambda path: (path.unlink(), path.mkdir()), "best.ckpt: it cannot be read: Is a directory"),
        (record.NAME, lambda path: path.write_text("{}"), "is not a fresh-test result"),
    ],
)
def test_unscorable_run_is_reported_with_reason(runs, command, name, damage, reason):
    damage(seed_folder(runs, "cur_abs") / name)
    stop, _ = command(f"runs={runs}")
    assert "1 of 1 finished runs were not scored" in stop and reason in stop


@pytest.mark.parametrize("seed, generated, reason", [(fresh.FRESH_SEED, True, "reserved"), (0, False, "no generator")])
def test_task_without_generator_raises(run, data_root, monkeypatch, seed, generated, reason):
    experiment = restore.restore_experiment(run, str(data_root))
    changed = experiment.replace(source=experiment.source.replace(seed=seed))
    monkeypatch.setattr(type(experiment.data_source()), "generated", generated)
    monkeypatch.setattr(fresh, "restore_experiment", lambda *_: changed)
    assert_error(reason, fresh.restore_experiments, run, str(data_root), EXAMPLES)


def test_run_on_files_is_scored_on_generated_examples(run, data_root, monkeypatch):
    trained = restore.restore_experiment(run, str(data_root)).replace(provenance={"release": "0123"})
    monkeypatch.setattr(fresh, "restore_experiment", lambda *_: trained)
    _, generated = fresh.restore_experiments(run, str(data_root), EXAMPLES)
    assert generated.data_source().provenance["seed"] == fresh.FRESH_SEED


def test_unreadable_record_is_not_scored_and_folder_without_runs_raises(runs, command, tmp_path):
    home = seed_folder(runs, "cur_abs")
    damaged = shutil.copytree(home, home.with_name("seed-1")) / "record.json"
    damaged.write_text("{}")
    assert f"1 of 2 finished runs were not scored: {damaged} cannot be read" in command(f"runs={runs}")[0]
    assert "has no finished run" in command(f"runs={tmp_path / 'nowhere'}")[0]


def test_positional_arguments_get_option_names(tmp_path):
    assert name_positional(["runs/a", "examples=3"], "runs") == ["runs=runs/a", "examples=3"]
    # A folder whose name has the value of an option.
    folder = tmp_path / "mean-optim.lr=0.001"
    folder.mkdir()
    (word,) = name_positional([str(folder)], "runs")
    assert OverridesParser.create().parse_override(word).value() == str(folder)
    arguments = name_positional(["verify", "mine", "more", "--help"], "verify", "name")
    assert arguments == ["verify=verify", "name=mine", "more", "--help"]


def simulate(rng, mean, seeds, easiness, seed_std=0.03):
    """Sample outcomes (seeds, examples), 1 with probability mean + seed effect + easiness of the example."""
    probability = mean + rng.normal(0, seed_std, (seeds, 1)) + easiness
    return (rng.random(probability.shape) < probability).astype(float)


@pytest.mark.parametrize("seeds", [(3, 3), (5, 5), (5, 2)])
@pytest.mark.parametrize("gap", [0, 5])
def test_confidence_interval_covers_true_difference(gap, seeds):
    """Coverage is 95 % ± 0.9 % over 600 trials; errors that ignore the variance between seeds cover less than 90 %."""
    rng = np.random.default_rng(gap)
    covered, covered_by_examples_only = [], []
    for _ in range(600):
        easiness = rng.choice([-0.25, 0.25], COMPARED)
        first = simulate(rng, 0.40 + gap / 100, seeds[0], easiness)
        result = outcome_statistics.difference(first, simulate(rng, 0.40, seeds[1], easiness))
        covered.append(result.low <= gap <= result.high)
        covered_by_examples_only.append(abs(result.value - gap) <= 1.96 * result.examples_error)
        # A difference is significant if the interval excludes zero.
        assert (result.p < 0.05) == (result.low * result.high > 0)
    assert 0.92 <= np.mean(covered) <= 0.98 and np.mean(covered_by_examples_only) < 0.9


def test_shared_examples_reduce_error_of_difference(monkeypatch):
    rng = np.random.default_rng(2)
    # Every example is either solved by all or by none.
    easiness = rng.choice([-0.5, 0.5], COMPARED)
    first, second = (simulate(rng, 0.5, 3, easiness, seed_std=0.0) for _ in range(2))
    shuffled = rng.permuted(second, axis=1)
    assert outcome_statistics.difference(first, second).examples_error < 0.1
    assert outcome_statistics.difference(first, shuffled).examples_error > 2
    # The seeds have equal means, so that the residual alone is left to subtract from the variance over examples.
    equal = np.array([[1, 1, 0, 0], [1, 0, 1, 0]])
    result = outcome_statistics.difference(equal, np.ones((2, 4)))
    bound = pytest.approx(100 * (1 / 24) ** 0.5)
    assert result.standard_error == result.examples_error == outcome_statistics.standard_error(equal) == bound
    # Of pure noise, the residual is all there is; every variance has its own degrees of freedom.
    assert outcome_statistics.residual_variance(rng.integers(2, size=(2, 4000))) == pytest.approx(0.25, rel=0.01)
    used = []
    monkeypatch.setattr(outcome_statistics, "degrees_of_freedom", lambda terms, _: used.extend(terms) or 9.0)
    outcome_statistics.difference(rng.integers(2, size=(2, 7)), rng.integers(2, size=(3, 7)))
    assert [freedom for _, freedom in used] == [6, 1, 1 * 6, 2, 2 * 6]


def test_single_seed_has_only_error_over_examples():
    rng = np.random.default_rng(3)
    single, several = (simulate(rng, 0.45, seeds, np.zeros(COMPARED)) for seeds in (1, 3))
    result = outcome_statistics.difference(single, several)
    assert (result.low, result.p, result.standard_error) == (None, None, None) and result.examples_error > 1
    with pytest.raises(ValueError, match=r"400 and 300 examples; score both on the same"):
        outcome_statistics.difference(np.zeros((2, 400)), np.zeros((2, 300)))


def test_standard_error_matches_spread_over_seeds_and_examples():
    rng = np.random.default_rng(5)
    scores, errors = [], []
    for _ in range(500):
        outcomes = simulate(rng, 0.4, 5, rng.choice([-0.25, 0.25], COMPARED))
        scores.append(100 * outcomes.mean())
        errors.append(outcome_statistics.standard_error(outcomes))
    assert np.sqrt(np.mean(np.square(errors))) == pytest.approx(np.std(scores), rel=0.1)
    single = simulate(rng, 0.4, 1, np.zeros(COMPARED))
    binomial = 100 * math.sqrt(single.mean() * (1 - single.mean()) / COMPARED)
    assert outcome_statistics.standard_error(single) == pytest.approx(binomial, rel=0.01)


def test_significant_gap_matches_two_test_set_samples():
    """Without variance between seeds, scores differ like two binomial proportions of 2,000 examples each."""
    gap_of = functools.partial(outcome_statistics.significant_gap, 37.0, published_examples=2000)
    gap = gap_of(examples=2000, seed_std=0.0, seeds=5, published_seeds=5)
    assert gap.threshold == pytest.approx(1.96 * 100 * math.sqrt(2 * 0.37 * 0.63 / 2000), rel=1e-3)
    assert 2.9 < gap.threshold < 3.1
    draws = 100 * (np.random.default_rng(4).binomial(2000, 0.37, (4000, 2)) / 2000)
    assert np.mean(np.abs(draws[:, 0] - draws[:, 1]) > gap.threshold) == pytest.approx(0.05, abs=0.015)
    # The variance between seeds enters for both the published and our score: 1² / 4 = 0.25 each.
    wide = gap_of(examples=20_000, seed_std=1.0, seeds=4, published_seeds=4)
    assert wide.standard_error**2 == pytest.approx(wide.draw_error**2 + wide.our_error**2 + 0.25)


def test_share_of_outcomes_that_a_table_explains():
    rng = np.random.default_rng(0)
    groups, labels = rng.integers(0, 4, 20_000), rng.integers(0, 10, 20_000)
    table = np.array([0, 9, 5, 5])
    assert explained(table[groups] == labels, labels, [groups]) == 100
    # Half of the groups are answered correctly, of which a table has one in ten by chance.
    assert explained((table[groups] == labels) | (groups < 2), labels, [groups]) == pytest.approx(50 + 10 / 2, abs=1.5)
    # A group per example says nothing about the other half of the examples; the larger groups around it decide.
    assert explained(rng.random(20_000) < 0.5, labels, [np.arange(20_000)]) == pytest.approx(50, abs=1.5)
    assert explained(table[groups] == labels, labels, [groups, np.arange(20_000)]) == 100


def test_first_tokens_study_prints_share_of_every_scored_run(runs, call, command):
    stop, *_ = call(first_tokens, f"runs={runs}")
    assert "has no run with a fresh test; first: lra evaluate" in stop
    command(f"runs={runs}")
    stop, out, _ = call(first_tokens, f"runs={runs}")
    assert stop is None
    result = record.load(seed_folder(runs, "cur_abs") / record.NAME)
    *baselines, right, trained_run = (line.split() for line in out.splitlines()[1:])
    assert len(baselines) == 3 and right[1:3] == ["(right", "answers)"]
    assert trained_run[:3] == ["listops", "cur_abs", "0"]
    assert float(trained_run[3]) == pytest.approx(result.fresh_test, abs=0.005)
    # The data of another version of the generator are not the ones that were scored.
    typed_json.save(dataclasses.replace(result, data="0" * 64), seed_folder(runs, "cur_abs") / record.NAME)
    assert "has other examples than this version generates" in call(first_tokens, f"runs={runs}")[0]
