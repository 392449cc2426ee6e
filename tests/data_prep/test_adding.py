"""Adding: labels from the inputs alone, uniform draws (chi-square on fixed seeds, p > 1e-4), batches, a run."""

import hashlib
import time

import numpy as np
import pytest
import torch
from conftest import p_value

from data_prep.adding import Adding
from data_prep.synthetic import LENGTHS
from lra.config.compose import compose
from lra.config.experiment import Experiment
from lra.data.store import Split
from lra.ops import metrics
from lra.runs import record
from lra.train.__main__ import train

LEVEL = 1e-4
N = 128


def rows(source, split="train", n=None, width=None, limit=None):
    """Tokens (n, width[, F]) of the first n examples."""
    drawn = source.open("nowhere")[split]
    tokens, mask = drawn.gather(torch.arange(n or len(drawn)), width or source.length, limit)
    return tokens[:, 0], mask[:, 0]


@pytest.fixture(scope="module")
def drawn():
    """60,000 rows (n, 128, 2) and their labels."""
    source = Adding(length=N, train=60_000, seed=3)
    return rows(source)[0].numpy(), source.open("nowhere")["train"].labels.numpy()


@pytest.mark.parametrize("length", [128, 1024, 16384])
def test_label_is_half_plus_a_quarter_of_the_sum_of_the_marked_values(length):
    source = Adding(length=length, train=50, val=20, test=20)
    for name, split in source.open("nowhere").items():
        tokens, mask = rows(source, name)
        assert tokens.shape == (len(split), length, 2) and tokens.dtype == torch.float32 and mask.all()
        for (values, marks), label in zip(tokens.double().transpose(1, 2).tolist(), split.labels.tolist(), strict=True):
            assert sorted(set(marks)) == [0, 1] and marks.count(1) == 2
            expected = 0.5 + sum(value for value, mark in zip(values, marks, strict=True) if mark) / 4
            assert label == np.float32(expected) and 0 <= label <= 1


def test_values_are_uniform_and_independent(drawn):
    values = drawn[0][:, :, 0]
    assert values.min() > -1 and values.max() <= 1
    bins = np.minimum(((values.astype(np.float64) + 1) * 10).astype(int), 19)
    assert p_value(np.bincount(bins.ravel(), minlength=20)) > LEVEL
    for a, b in ((bins[:, ::2], bins[:, 1::2]), (bins[::2], bins[1::2])):  # neighbours in a row, and in a column
        assert p_value(np.bincount((20 * a + b).ravel(), minlength=400)) > LEVEL
    assert p_value(np.bincount(bins[:, 0], minlength=20)) > LEVEL
    fine = np.bincount((values[:8000] * 2**23).astype(np.int64).ravel() & 255, minlength=256)  # the low bits too
    assert p_value(fine) > LEVEL


def test_every_pair_of_positions_is_equally_likely(drawn):
    marked = np.nonzero(drawn[0][:, :, 1])[1].reshape(-1, 2)
    counts = np.bincount(marked[:, 0] * N + marked[:, 1], minlength=N * N).reshape(N, N)
    pairs = counts[np.triu_indices(N, 1)]
    assert pairs.sum() == len(marked)
    assert p_value(pairs) > LEVEL  # 7.4 a pair; the others have more a bin
    assert p_value(np.bincount(marked.ravel(), minlength=N)) > LEVEL
    gaps = np.bincount(marked[:, 1] - marked[:, 0], minlength=N)[1:]
    weights = np.arange(N - 1, 0, -1)
    assert p_value(gaps, weights / weights.sum() * len(marked)) > LEVEL


def test_labels_have_the_triangular_distribution_of_a_sum(drawn):
    edges = np.linspace(0, 1, 21)
    area = np.where(edges < 0.5, 2 * edges**2, 1 - 2 * (1 - edges) ** 2)
    assert p_value(np.histogram(drawn[1], edges)[0], np.diff(area) * len(drawn[1])) > LEVEL


@pytest.mark.parametrize("length", LENGTHS)
def test_a_row_is_a_function_of_seed_split_and_index(length):
    splits = Adding(length=length, train=300, seed=5).open("nowhere")
    whole = splits["train"].gather(torch.arange(300), length)[0]
    order = torch.randperm(300, generator=torch.Generator().manual_seed(0))
    for part in order.split(7):
        assert torch.equal(splits["train"].gather(part, length)[0], whole[part])
    other = Adding(length=length, train=200, seed=5).open("elsewhere")
    assert torch.equal(other["train"].labels, splits["train"].labels[:200])
    for changed in (Adding(length=length, seed=6).open("nowhere")["train"], splits["val"], splits["test"]):
        assert not torch.equal(changed.gather(torch.arange(7), length)[0], whole[:7])


def test_no_row_twice():
    source = Adding(length=N, train=20_000)
    seen = [row.tobytes() for split in source.sizes for row in rows(source, split)[0].numpy()]
    assert len(set(seen)) == len(seen) == 30_000


@pytest.mark.parametrize(("width", "limit"), [(128, None), (192, None), (64, None), (128, 100), (192, 50), (64, 100)])
def test_gathers_what_a_stored_split_gathers(width, limit):
    source = Adding(length=N, train=30)
    drawn = source.open("nowhere")["train"]
    stored = Split(rows(source)[0].flatten(0, 1), torch.arange(31) * N, drawn.labels)
    index = torch.tensor([4, 4, 29, 0])
    for ours, theirs in zip(drawn.gather(index, width, limit), stored.gather(index, width, limit), strict=True):
        assert torch.equal(ours, theirs) and ours.dtype == theirs.dtype
    assert len(drawn) == len(stored) and torch.equal(drawn.lengths, stored.lengths)
    assert torch.equal(drawn.to("cpu").labels, stored.to("cpu").labels)


def test_made_faster_than_read():
    """A batch of 40 at the greatest length: medians of interleaved calls, a tenth to a quarter when measured."""
    source = Adding(length=16384, train=200)
    drawn = source.open("nowhere")["train"]
    stored = Split(rows(source)[0].flatten(0, 1), torch.arange(201) * 16384, drawn.labels)
    index, seconds = torch.arange(40) * 5, ([], [])
    for _ in range(15):
        for split, times in zip((drawn, stored), seconds, strict=True):
            start = time.perf_counter()
            split.gather(index, 16384)
            times.append(time.perf_counter() - start)
    assert np.median(seconds[0]) < np.median(seconds[1])


def test_the_rows_belong_to_the_version():
    """Records name the version: other rows for the same arguments take a new Adding.version."""
    tokens, labels = rows(Adding(), n=100)[0], Adding().open("nowhere")["train"].labels[:100]
    sha = hashlib.sha256(tokens.numpy().tobytes() + labels.numpy().tobytes())
    assert (Adding.version, sha.hexdigest()[:16]) == ("1.0.0", "f81c315abf14f1d2")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"length": 100}, "adding needs a length among 128, "), ({"val": 0}, "at least one"), ({"seed": -1}, "seed")],
)
def test_invalid_arguments(arguments, message):
    with pytest.raises(ValueError, match=message) as caught:
        Adding(**arguments)
    assert "\n" not in str(caught.value)


def test_batches_are_real_numbers(data_root):
    data = compose(Experiment, ["task=adding", "attn=sdpa", "budget=smoke", "optim.batch=5"]).task_data()
    data.setup()
    batch = next(iter(data.train_dataloader()))
    assert batch.inputs.shape == (5, 1, 128, 2) and batch.inputs.dtype == batch.label.dtype == torch.float32
    labels = data.splits["test"].labels
    within = sum(abs(label - labels.mean().item()) < 0.04 for label in labels.tolist())
    assert data.baseline("test", metrics.within_tolerance) == 100 * within / len(labels)


def test_a_run_trains_by_squared_error_and_stores_nothing(data_root, tmp_path, monkeypatch):
    monkeypatch.setenv("LRA_DATA", str(tmp_path / "data"))
    words = ["task=adding", "attn=sdpa", "budget=smoke", "seeds=[0]", f"runs={tmp_path / 'runs'}"]
    train.__wrapped__(compose(Experiment, words))
    (made,) = (tmp_path / "runs").rglob("record.json")
    result = record.load(made)
    assert (result.task, result.metric, result.status) == ("adding_N128", "within_tolerance", "done")
    assert 0 <= result.test <= 100 and not (tmp_path / "data").exists()
