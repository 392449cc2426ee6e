"""Associative recall: labels from the row alone, uniform draws and the published law of gaps (chi-square on fixed
seeds, p > 1e-4), what a bag of the values can know."""

import numpy as np
import pytest
import torch
from conftest import p_value

from data_prep.recall import Recall

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


def test_longer_rows_have_the_same_pairs_and_questions():
    short, long = (read(Recall(length=length, train=300, seed=5)) for length in (128, 256))
    assert np.array_equal(long[0][:, :4], short[0][:, :4]) and np.array_equal(long[1], short[1])
