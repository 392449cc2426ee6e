"""Writes to registers and a read: labels from the words of a row, uniform draws (chi-square, p > 1e-4)."""

import numpy as np
import pytest
import torch
from conftest import p_value

from data_prep.registers import Registers
from lra.model.embed import PairEmbedding

LEVEL = 1e-4
SIZES = {"train": 300, "val": 40, "test": 40}
RECALL = {"length": 128, "writes": [4, 8, 16, 32], "registers": 64, "values": 64, "overwrite": False}


def read(source, split="train"):
    """Rows (n, L) and labels (n,)."""
    drawn = source.open("nowhere")[split]
    tokens, mask = drawn.gather(torch.arange(len(drawn)), source.length)
    assert tokens.dtype == torch.int16 and mask.all()
    return tokens[:, 0].numpy().astype(int), drawn.labels.numpy()


def written(rows, source):
    """Register and value of every write, -1 elsewhere: two (n, L - 1)."""
    registers, values = np.divmod(rows[:, :-1] - 1, source.values + 1)
    assert (values[registers >= 0] < source.values).all()
    return registers, np.where(registers < 0, -1, values)


@pytest.mark.parametrize("options", [{}, RECALL, {"length": 64, "writes": [63, 1], "registers": 2, "values": 3}])
def test_the_label_is_what_a_dictionary_holds_after_the_writes(options):
    source = Registers(**options, **SIZES)
    for split in SIZES:
        rows, labels = read(source, split)
        for row, label in zip(rows.tolist(), labels.tolist(), strict=True):
            *words, last = [source.alphabet[id] for id in row]
            memory, writes = {}, [word.split("=") for word in words if word != "."]
            for register, value in writes:
                memory[register] = int(value)
            assert last[0] == "?" and memory[last[1:]] == label and len(writes) in source.writes
            assert source.overwrite or len(memory) == len(set(memory.values())) == len(writes)


@pytest.mark.parametrize("options", [{"length": 64, "writes": [12, 24]}, {**RECALL, "writes": [4, 8]}])
def test_sizes_places_registers_and_values_are_uniform(options):
    source = Registers(**options, train=40_000, val=1, test=1, seed=3)
    rows, labels = read(source)
    registers, values = written(rows, source)
    taken, counts = registers >= 0, (registers >= 0).sum(1)
    assert p_value(np.array([(counts == n).sum() for n in source.writes])) > LEVEL
    assert p_value(np.bincount(labels, minlength=source.values)) > LEVEL
    for n in source.writes:
        # Places of one row are drawn without replacement: their counts vary less than the law assumes, never more.
        assert p_value(taken[counts == n].sum(0)) > LEVEL
    first = taken.argmax(1)
    for drawn in (registers, values):
        assert p_value(np.bincount(drawn[np.arange(len(rows)), first])) > LEVEL
    if source.overwrite:  # a value says nothing about its register
        both = registers[taken] * source.values + values[taken]
        assert p_value(np.bincount(both, minlength=source.registers * source.values)) > LEVEL


def test_every_write_of_distinct_registers_is_as_likely_to_be_asked_for():
    source = Registers(**{**RECALL, "writes": [4]}, train=40_000, val=1, test=1, seed=5)
    rows, _ = read(source)
    registers, _ = written(rows, source)
    order = np.cumsum(registers >= 0, 1) - 1
    asked = order[registers == (rows[:, -1:] - 1) // 65]
    assert len(asked) == len(rows) and p_value(np.bincount(asked, minlength=4)) > LEVEL
    assert source.floor == 25 and Registers().floor is None


def test_the_embedding_gives_a_pair_the_sum_of_its_parts():
    embed = PairEmbedding(firsts=3, seconds=5, length=40, dim=8, dropout=0.0, positions=False)
    first, second = embed.first.weight, embed.second.weight
    x = embed(torch.arange(1 + 15 + 1)[None])[0]
    pairs = torch.stack([first[1 + a] + second[1 + b] for a in range(3) for b in range(5)])
    assert torch.equal(x[0], first[0] + second[0]) and torch.equal(x[1:16], pairs)
    assert torch.equal(x[16], first[4] + second[0])
    placed = PairEmbedding(firsts=3, seconds=5, length=40, dim=8, dropout=0.0)
    at = torch.tensor([[7, 3]])
    step = placed(at, torch.tensor([[30, 2]])) - placed(at)
    assert torch.allclose(step[0], placed.position.weight[[30, 2]] - placed.position.weight[:2], atol=1e-6)
