"""Adding, temporal order and all drawn data: labels from the inputs alone, uniform draws, versions, options."""

import hashlib
from functools import partial

import numpy as np
import pytest
import torch
from conftest import LEVEL, experiment, p_value
from server import gathered, trained

from data_prep.adding import Adding
from data_prep.chain import Chain
from data_prep.listops import ListOps
from data_prep.majority import Majority
from data_prep.pathfinder.generator import Pathfinder
from data_prep.recall import Recall
from data_prep.registers import Registers
from data_prep.synthetic import LENGTHS
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


LONE = {"train": 100, "val": 1, "test": 1}
RECALL = {"length": 128, "writes": [4, 8, 16, 32], "registers": 64, "values": 64, "overwrite": False}


@pytest.mark.parametrize(
    ("kind", "length"),
    [(Recall, 128), (TemporalOrder, 256), (Chain, 64), (Registers, 256), *((Adding, length) for length in LENGTHS)],
)
def test_a_row_is_a_function_of_seed_split_and_index(kind, length):
    make = partial(kind, length=length, train=300, val=40, test=40)
    splits = make(seed=5).open("nowhere")
    whole = splits["train"].gather(torch.arange(300), length)[0]
    for part in torch.randperm(300, generator=torch.Generator().manual_seed(0)).split(7):
        assert torch.equal(splits["train"].gather(part, length)[0], whole[part])
    short, mask = splits["train"].gather(torch.arange(300), length, 9)  # a limit cuts, a question at the end first
    assert torch.equal(short[:, :, :9], whole[:, :, :9]) and not short[:, :, 9:].any() and (mask.sum(-1) == 9).all()
    assert torch.equal(make(seed=5, train=200).open("elsewhere")["train"].labels, splits["train"].labels[:200])
    for changed in (make(seed=6).open("nowhere")["train"], splits["val"], splits["test"]):
        assert not torch.equal(changed.gather(torch.arange(7), length)[0], whole[:7])


@pytest.mark.parametrize(
    ("source", "sha"),
    [
        (Adding(), "f81c315abf14f1d2"),
        (Recall(), "98208e31283b9405"),
        (TemporalOrder(), "020dc0580a439c92"),
        (Chain(**LONE), "75cbafdcefcd667f"),
        (Registers(**LONE), "6d390923b93ecf7a"),
        (Registers(**RECALL, **LONE), "c6407601b006c576"),
    ],
)
def test_the_rows_belong_to_the_version(source, sha):
    """Records name the version: other rows for the same arguments take a new one."""
    split = source.open("nowhere")["train"]
    tokens = split.gather(torch.arange(100), source.length)[0]
    found = hashlib.sha256(tokens.numpy().tobytes() + split.labels[:100].numpy().tobytes()).hexdigest()
    assert (source.version, found[:16]) == ("1.0.0", sha)


@pytest.mark.parametrize(
    ("kind", "options", "reason"),
    [
        (Adding, {"length": 100}, "adding needs a length among 128, "),
        (Adding, {"val": 0}, "at least one"),
        (Adding, {"seed": -1}, "seed"),
        (Recall, {"pairs": 9}, "recall needs pairs from 1 to the keys, the values"),
        (Recall, {"pairs": 0}, "recall needs pairs from 1"),
        (Recall, {"values": 1, "pairs": 1}, "recall needs at least one key and two values"),
        (Recall, {"power": 0}, "recall needs a power above 0, not 0"),
        (Recall, {"length": 2048}, "recall needs a length among 64, 128, 256, 512, 1024, not 2048"),
        (Recall, {"keys": 200, "values": 200}, "recall needs fewer tokens"),
        (Chain, {"links": []}, "source.links from 3 to 32"),
        (Chain, {"links": [2]}, "source.links from 3 to 32"),
        (Chain, {"links": [40]}, "source.links from 3 to 32"),
        (Chain, {"hops": 0}, "at least one hop"),
        (Chain, {"names": 190}, "below 32,767"),
        (Majority, {"present": 22}, "at most 107 votes, not 110"),
        (Majority, {"present": 65}, "source.present from 1 to source.groups=64"),
        (Majority, {"votes": 6}, "source.winning above half of source.votes"),
        (Majority, {"values": 1}, "one group and two values"),
        (Majority, {"groups": 5000}, "below 32,768"),
        (Majority, {"gap": 128}, "source.gap from 0 to 127"),
        (Registers, {"writes": []}, "source.writes from 1 to 255"),
        (Registers, {"writes": [256]}, "source.writes from 1 to 255"),
        (Registers, {"gap": -1}, "source.gap from 0 to 254"),
        (Registers, {"gap": 240}, "source.writes from 1 to 15"),
        (Registers, {"writes": [9], "overwrite": False}, "source.writes from 1 to 8"),
        (Registers, {"values": 1}, "one register and two values"),
        (Registers, {"registers": 200, "values": 200}, "below 32,768"),
        (Registers, {"length": 100}, "a length among 64, 128"),
        (ListOps, {"min_length": 10, "max_length": 11}, "a length strictly between"),
        (ListOps, {"max_args": 1}, "max_args >= 2"),
        (ListOps, {"p_operator": 1.5}, "p_operator in 0..1"),
        (ListOps, {"val": 0}, "at least one example"),
        (ListOps, {"seed": -1}, "seed"),
        (Pathfinder, {"size": 48}, "size=48: choose one of 32, 64, 128, 256"),
        (Pathfinder, {"contour": 15}, "contour=15: choose one of 6, 9, 14"),
    ],
)
def test_options_that_make_no_row(kind, options, reason):
    with pytest.raises(ValueError, match=reason) as refused:
        kind(**options)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("words", "task", "metric"),
    [
        ("task=recall source.pairs=2", "recall_N64_K2", "accuracy"),
        ("task=temporal_order", "temporal_order_N128", "accuracy"),
        ("task=adding", "adding_N128", "within_tolerance"),
        ("task=chain", "chain_N64", "accuracy"),
        ("task=registers", "registers_N256", "accuracy"),
        ("task=majority", "majority_N128", "accuracy"),
    ],
)
def test_a_run_names_its_length_and_stores_nothing(words, task, metric, tmp_path):
    result = trained(tmp_path, *words.split(), "attn=sdpa")
    assert (result.task, result.metric, result.status) == (task, metric, "done")
    assert 0 <= result.test <= 100 and not (tmp_path / "data").exists()
