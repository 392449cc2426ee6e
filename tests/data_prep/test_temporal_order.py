"""Temporal order: labels from the text alone, uniform draws (chi-square on fixed seeds, p > 1e-4), batches, a run."""

import hashlib

import numpy as np
import pytest
import torch
from conftest import p_value

from data_prep.temporal_order import TemporalOrder
from lra.config.compose import compose
from lra.config.experiment import Experiment
from lra.runs import record
from lra.train.__main__ import train

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


def test_a_row_is_a_function_of_seed_split_and_index():
    source = TemporalOrder(length=256, train=300, seed=5)
    splits = source.open("nowhere")
    whole = splits["train"].gather(torch.arange(300), 256)[0]
    for part in torch.randperm(300, generator=torch.Generator().manual_seed(0)).split(7):
        assert torch.equal(splits["train"].gather(part, 256)[0], whole[part])
    seen = [text for split in source.sizes for text in texts(source, split)[0]]
    assert len(set(seen)) == len(seen) == 10_300
    assert texts(TemporalOrder(length=256, train=5, seed=6))[0] != seen[:5]


def test_the_rows_belong_to_the_version():
    """Records name the version: other rows for the same arguments take a new TemporalOrder.version."""
    split = TemporalOrder().open("nowhere")["train"]
    tokens = split.gather(torch.arange(100), 128)[0]
    sha = hashlib.sha256(tokens.numpy().tobytes() + split.labels[:100].numpy().tobytes())
    assert (TemporalOrder.version, sha.hexdigest()[:16]) == ("1.0.0", "020dc0580a439c92")


@pytest.mark.parametrize("length", [128, 2048])
def test_batches_and_parameters(length, data_root):
    words = ["task=temporal_order", "attn=sdpa", "budget=smoke", f"task.length={length}"]
    config = compose(Experiment, words)
    data = config.task_data()
    data.setup()
    batch = next(iter(data.train_dataloader()))
    assert batch.inputs.shape == (8, 1, length) and batch.inputs.dtype == torch.int64
    assert config.classifier()(batch.inputs, batch.mask).shape == (8, 4)


def test_a_run_names_its_length_and_stores_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("LRA_DATA", str(tmp_path / "data"))
    words = ["task=temporal_order", "attn=sdpa", "budget=smoke", "seeds=[0]", f"runs={tmp_path / 'runs'}"]
    train.__wrapped__(compose(Experiment, words))
    (made,) = (tmp_path / "runs").rglob("record.json")
    assert record.load(made).task == "temporal_order_N128" and not (tmp_path / "data").exists()
