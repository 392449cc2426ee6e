"""Temporal order: labels from the text alone, uniform draws (chi-square on fixed seeds, p > 1e-4)."""

import numpy as np
import pytest
import torch
from conftest import p_value

from data_prep.temporal_order import TemporalOrder

LEVEL = 1e-4
N = 128


def texts(source, split="train"):
    drawn = source.open("nowhere")[split]
    tokens, mask = drawn.gather(torch.arange(len(drawn)), source.length)
    assert tokens.dtype == torch.uint8 and mask.all() and tokens.shape[1] == 1
    return ["".join("abcdXY"[id] for id in row) for row in tokens[:, 0].tolist()], drawn.labels.tolist()


@pytest.fixture(scope="module")
def drawn():
    """60,000 rows (n, 128) and their labels."""
    split = TemporalOrder(length=N, train=60_000, seed=3).open("nowhere")["train"]
    return split.gather(torch.arange(60_000), N)[0][:, 0].numpy(), split.labels.numpy()


@pytest.mark.parametrize("length", [128, 1024, 16384])
def test_label_is_the_order_of_the_two_signals(length):
    source = TemporalOrder(length=length, train=40, val=20, test=20)
    for split in source.sizes:
        for text, label in zip(*texts(source, split), strict=True):
            signals = text.translate(str.maketrans("", "", "abcd"))
            assert len(text) == length and label == ["XX", "XY", "YX", "YY"].index(signals)
            assert TemporalOrder.classes[label] == f"({','.join(signals)})"


def test_symbols_positions_and_classes_are_uniform(drawn):
    ids, labels = drawn
    assert p_value(np.bincount(labels, minlength=4)) > LEVEL
    signal = ids >= 4
    assert (signal.sum(1) == 2).all()
    assert p_value(np.bincount(ids[~signal], minlength=4)) > LEVEL
    assert p_value(np.bincount(ids[signal] - 4)) > LEVEL
    noise = ~(signal[:, ::2] | signal[:, 1::2])
    neighbours = 4 * ids[:, ::2].astype(int) + ids[:, 1::2]
    assert p_value(np.bincount(neighbours[noise], minlength=16)) > LEVEL
    marked = np.nonzero(signal)[1].reshape(-1, 2)
    pairs = np.bincount(marked[:, 0] * N + marked[:, 1], minlength=N * N).reshape(N, N)[np.triu_indices(N, 1)]
    assert p_value(pairs) > LEVEL
    for quarter in range(4):  # where the signals are says nothing about the class
        assert p_value(np.bincount(labels[marked[:, 0] // 32 == quarter], minlength=4)) > LEVEL
