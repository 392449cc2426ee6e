"""Associative recall: labels from the row alone, uniform draws and the published law of gaps (chi-square on fixed
seeds, p > 1e-4), batches, what a bag of the values can know, a run."""

import hashlib

import numpy as np
import pytest
import torch
from conftest import p_value

from data_prep.recall import Recall
from lra.config.compose import compose
from lra.config.experiment import Experiment
from lra.runs import record
from lra.train import data_check
from lra.train.__main__ import train

LEVEL = 1e-4


def read(source, split="train", n=None):
    """Rows (n, L) and labels (n,)."""
    drawn = source.open("nowhere")[split]
    n = n or len(drawn)
    tokens, mask = drawn.gather(torch.arange(n), source.length)
    assert tokens.dtype == torch.int16 and mask.all() and tokens.shape == (n, 1, source.length)
    return tokens[:, 0].numpy().astype(int), drawn.labels[:n].numpy()


def parts(rows, source):
    """Keys (n, K) and values (n, K) of the pairs, the asked key (n,) and the place of the query (n,)."""
    pairs = rows[:, : source.pairs] - 1 - source.keys
    assert (pairs >= 0).all() and (pairs < source.keys * source.values).all()
    rest = rows[:, source.pairs :]
    assert ((rest > 0).sum(1) == 1).all() and (rest <= source.keys).all()
    place = rest.argmax(1)
    return pairs // source.values, pairs % source.values, rest[np.arange(len(rows)), place] - 1, place + source.pairs


@pytest.mark.parametrize(("length", "pairs", "keys", "values"), [(64, 4, 8, 8), (128, 1, 3, 2), (1024, 16, 20, 16)])
def test_the_label_is_the_value_that_stands_with_the_asked_key(length, pairs, keys, values):
    source = Recall(length=length, pairs=pairs, keys=keys, values=values, power=0.5, train=60, val=30, test=30)
    for split in source.sizes:
        rows, labels = read(source, split)
        for row, label in zip(rows.tolist(), labels.tolist(), strict=True):
            words = [source.alphabet[id] for id in row]
            memory = dict(word.split("=") for word in words if "=" in word)
            (asked,) = (word[1:] for word in words if word.startswith("?"))
            assert len(memory) == len(set(memory.values())) == pairs and words.count(".") == length - pairs - 1
            assert label == int(memory[asked])


def test_keys_values_and_the_question_are_uniform():
    source = Recall(length=64, train=60_000, seed=3)
    rows, labels = read(source)
    keys, values, asked, _ = parts(rows, source)
    number = (keys == asked[:, None]).argmax(1)
    assert (keys[np.arange(len(keys)), number] == asked).all()
    assert p_value(np.bincount(labels, minlength=8)) > LEVEL and p_value(np.bincount(asked, minlength=8)) > LEVEL
    assert p_value(np.bincount(number * 8 + labels, minlength=32)) > LEVEL
    assert p_value(np.bincount(asked * 8 + labels, minlength=64)) > LEVEL  # a key says nothing about its value
    for drawn in (keys, values):
        for a, b in ((0, 1), (1, 3), (2, 3)):
            both = np.bincount(drawn[:, a] * 8 + drawn[:, b], minlength=64).reshape(8, 8)
            assert (np.diag(both) == 0).all() and p_value(both[~np.eye(8, dtype=bool)]) > LEVEL
    for k in range(4):
        assert p_value(np.bincount(keys[:, k] * 8 + values[:, k], minlength=64)) > LEVEL


@pytest.mark.parametrize("power", [0.01, 0.5, 1, 3])
def test_the_gap_has_the_published_law(power):
    """Probability a i^(a-1) over slots i = 1, 2, ..., normalised, as in Zoology's code."""
    source = Recall(length=64, power=power, train=40_000, seed=4)
    place = parts(read(source)[0], source)[3]
    weights = power * np.arange(1, 61.0) ** (power - 1)
    counts, expected = np.bincount(place - 4, minlength=60), len(place) * weights / weights.sum()
    rare = expected < 20  # too few for the chi-square law: one class of their own, left out where that is rare too
    counts, expected = (np.append(x[~rare], x[rare].sum()) for x in (counts, expected))
    often = expected >= 20
    assert counts[~often].sum() <= 60 and p_value(counts[often], expected[often]) > LEVEL


def test_the_bag_of_the_values_is_worth_one_in_pairs_and_no_more():
    """Every value of a row is as likely to be asked for, so 1 / K is the best without the binding of key and value."""
    source = Recall(length=64, train=40_000, seed=5)
    rows, labels = read(source)
    values = parts(rows, source)[1]
    assert (values == labels[:, None]).sum() == len(labels)
    place = (values == labels[:, None]).argmax(1)
    rank = (np.sort(values, 1) == labels[:, None]).argmax(1)
    assert p_value(np.bincount(place, minlength=4)) > LEVEL and p_value(np.bincount(rank, minlength=4)) > LEVEL


def test_a_row_is_a_function_of_seed_split_and_index():
    source = Recall(length=128, train=300, seed=5)
    splits = source.open("nowhere")
    whole = splits["train"].gather(torch.arange(300), 128)[0]
    for part in torch.randperm(300, generator=torch.Generator().manual_seed(0)).split(7):
        assert torch.equal(splits["train"].gather(part, 128)[0], whole[part])
    short, mask = splits["train"].gather(torch.arange(300), 128, 3)  # a limit cuts
    assert torch.equal(short[..., :3], whole[..., :3]) and not short[..., 3:].any() and (mask.sum(-1) == 3).all()
    assert not np.array_equal(read(Recall(length=128, train=300, seed=6))[0], whole[:, 0].numpy())
    assert not np.array_equal(read(source, "val", 300)[0], read(source, "test", 300)[0])
    longer = Recall(length=256, train=300, seed=5)  # the same pairs and questions in longer rows
    assert np.array_equal(read(longer)[0][:, :4], whole[:, 0, :4].numpy())
    assert np.array_equal(read(longer)[1], splits["train"].labels.numpy())


def test_the_rows_belong_to_the_version():
    """Records name the version: other rows for the same arguments take a new Recall.version."""
    rows, labels = read(Recall(), n=100)
    sha = hashlib.sha256(rows.astype(np.int16).tobytes() + labels.tobytes())
    assert (Recall.version, sha.hexdigest()[:16]) == ("1.0.0", "98208e31283b9405")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"pairs": 9}, "pairs from 1 to the keys, the values"),
        ({"pairs": 0}, "pairs from 1"),
        ({"values": 1, "pairs": 1}, "at least one key and two values"),
        ({"power": 0}, "a power above 0, not 0"),
        ({"length": 2048}, "a length among 64, 128, 256, 512, 1024, not 2048"),
        ({"keys": 200, "values": 200}, "fewer tokens"),
    ],
)
def test_options_that_make_no_row(options, reason):
    with pytest.raises(ValueError, match=f"recall needs {reason}"):
        Recall(**options)


@pytest.mark.parametrize("length", [64, 1024])
def test_batches_and_parameters(length):
    config = compose(
        Experiment, ["task=recall", "attn=sdpa", "budget=smoke", f"task.length={length}", "source.power=1"]
    )
    data = config.task_data()
    data.setup()
    data_check.check(config, data)
    batch = next(iter(data.train_dataloader()))
    assert batch.inputs.shape == (8, 1, length) and batch.inputs.dtype == torch.int64
    assert config.classifier()(batch.inputs, batch.mask).shape == (8, 8)


def test_a_run_names_its_length_and_its_pairs(tmp_path, monkeypatch):
    monkeypatch.setenv("LRA_DATA", str(tmp_path / "data"))
    words = ["task=recall", "attn=sdpa", "budget=smoke", "source.pairs=2", "seeds=[0]", f"runs={tmp_path / 'runs'}"]
    train.__wrapped__(compose(Experiment, words))
    (made,) = (tmp_path / "runs").rglob("record.json")
    assert record.load(made).task == "recall_N64_K2" and not (tmp_path / "data").exists()
