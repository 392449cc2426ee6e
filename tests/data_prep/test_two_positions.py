"""Adding and temporal order: labels from the inputs alone, uniform draws (chi-square on fixed seeds, p > 1e-4)."""

import numpy as np
import pytest
import torch
from conftest import LEVEL, experiment, p_value
from server import gathered

from data_prep.adding import Adding
from data_prep.temporal_order import TemporalOrder
from lra.data.store import Split
from lra.ops import metrics

N = 128


@pytest.fixture(scope="module")
def drawn():
    """60,000 rows (n, 128, 2)."""
    return gathered(Adding(length=N, train=60_000, seed=3))[0]


@pytest.mark.parametrize("length", [128, 1024, 16384])
def test_label_is_half_plus_a_quarter_of_the_sum_of_the_marked_values(length):
    source = Adding(length=length, train=50, val=20, test=20)
    for split in source.sizes:
        rows, labels = gathered(source, split)
        assert rows.shape[2] == 2 and rows.dtype == np.float32
        for (values, marks), label in zip(rows.swapaxes(1, 2).tolist(), labels.tolist(), strict=True):
            assert sorted(set(marks)) == [0, 1] and marks.count(1) == 2
            expected = 0.5 + sum(value for value, mark in zip(values, marks, strict=True) if mark) / 4
            assert label == np.float32(expected) and 0 <= label <= 1


def test_values_are_uniform_and_independent(drawn):
    values = drawn[:, :, 0]
    assert values.min() > -1 and values.max() <= 1
    bins = np.minimum(((values.astype(np.float64) + 1) * 10).astype(int), 19)
    assert p_value(np.bincount(bins.ravel(), minlength=20)) > LEVEL
    for a, b in ((bins[:, ::2], bins[:, 1::2]), (bins[::2], bins[1::2])):  # neighbours in a row, and in a column
        assert p_value(np.bincount((20 * a + b).ravel(), minlength=400)) > LEVEL
    assert p_value(np.bincount(bins[:, 0], minlength=20)) > LEVEL
    fine = np.bincount((values[:8000] * 2**23).astype(np.int64).ravel() & 255, minlength=256)  # the low bits too
    assert p_value(fine) > LEVEL


def test_every_pair_of_positions_is_equally_likely(drawn):
    marked = np.nonzero(drawn[:, :, 1])[1].reshape(-1, 2)
    counts = np.bincount(marked[:, 0] * N + marked[:, 1], minlength=N * N).reshape(N, N)
    pairs = counts[np.triu_indices(N, 1)]
    assert pairs.sum() == len(marked)
    assert p_value(pairs) > LEVEL  # 7.4 a pair; the others have more a bin
    assert p_value(np.bincount(marked.ravel(), minlength=N)) > LEVEL
    gaps = np.bincount(marked[:, 1] - marked[:, 0], minlength=N)[1:]
    weights = np.arange(N - 1, 0, -1)
    assert p_value(gaps, weights / weights.sum() * len(marked)) > LEVEL


@pytest.mark.parametrize(("width", "limit"), [(128, None), (192, None), (64, None), (128, 100), (192, 50), (64, 100)])
def test_gathers_what_a_stored_split_gathers(width, limit):
    source = Adding(length=N, train=30)
    drawn = source.open("nowhere")["train"]
    stored = Split(torch.from_numpy(gathered(source)[0]).flatten(0, 1), torch.arange(31) * N, drawn.labels)
    index = torch.tensor([4, 4, 29, 0])
    ours, theirs = (split.gather(index, width, limit) for split in (drawn, stored))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
    assert len(drawn) == len(stored) and torch.equal(drawn.lengths, stored.lengths)
    assert torch.equal(drawn.to("cpu").labels, stored.to("cpu").labels)


def test_the_best_constant_answer_is_the_mean_of_real_labels(data_root):
    data = experiment("task=adding", "attn=sdpa", "budget=smoke").task_data()
    data.setup()
    labels = data.splits["test"].labels
    within = sum(abs(label - labels.mean().item()) < 0.04 for label in labels.tolist())
    assert data.baseline("test", metrics.within_tolerance) == 100 * within / len(labels)


@pytest.mark.parametrize("length", [128, 1024, 16384])
def test_label_is_the_order_of_the_two_signals(length):
    source = TemporalOrder(length=length, train=40, val=20, test=20)
    for split in source.sizes:
        for row, label in zip(*gathered(source, split), strict=True):
            text = "".join("abcdXY"[id] for id in row)
            signals = text.translate(str.maketrans("", "", "abcd"))
            assert len(text) == length and label == ["XX", "XY", "YX", "YY"].index(signals)
            assert TemporalOrder.classes[label] == f"({','.join(signals)})"


def test_symbols_positions_and_classes_are_uniform():
    ids, labels = gathered(TemporalOrder(length=N, train=60_000, seed=3))
    assert p_value(np.bincount(labels, minlength=4)) > LEVEL
    signal = ids >= 4
    assert (signal.sum(1) == 2).all()
    assert p_value(np.bincount(ids[~signal], minlength=4)) > LEVEL
    assert p_value(np.bincount(ids[signal] - 4)) > LEVEL
    noise = ~(signal[:, ::2] | signal[:, 1::2])
    neighbours = 4 * ids[:, ::2] + ids[:, 1::2]
    assert p_value(np.bincount(neighbours[noise], minlength=16)) > LEVEL
    marked = np.nonzero(signal)[1].reshape(-1, 2)
    pairs = np.bincount(marked[:, 0] * N + marked[:, 1], minlength=N * N).reshape(N, N)[np.triu_indices(N, 1)]
    assert p_value(pairs) > LEVEL
    for quarter in range(4):  # where the signals are says nothing about the class
        assert p_value(np.bincount(labels[marked[:, 0] // 32 == quarter], minlength=4)) > LEVEL
