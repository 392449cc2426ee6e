"""Recall, registers, majority and chain: labels from the words of a row, uniform draws (chi-square, p > 1e-4)."""

from collections import Counter

import numpy as np
import pytest
import torch
from conftest import LEVEL, p_value
from server import gathered

from data_prep.chain import Chain
from data_prep.majority import Majority
from data_prep.recall import Recall
from data_prep.registers import Registers
from lra.model.embed import PairEmbedding


def words(source):
    """Words and label of every example."""
    for split in source.sizes:
        for row, label in zip(*gathered(source, split), strict=True):
            yield [source.alphabet[id] for id in row], label


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
    for row, label in words(source):
        memory = dict(word.split("=") for word in row if "=" in word)
        (asked,) = (word[1:] for word in row if word.startswith("?"))
        assert len(memory) == len(set(memory.values())) == pairs and row.count(".") == length - pairs - 1
        assert label == int(memory[asked])


def test_keys_values_and_the_question_are_uniform():
    source = Recall(length=64, train=60_000, seed=3)
    rows, labels = gathered(source)
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
    place = parts(gathered(source)[0], source)[3]
    weights = power * np.arange(1, 61.0) ** (power - 1)
    counts, expected = np.bincount(place - 4, minlength=60), len(place) * weights / weights.sum()
    rare = expected < 20  # too few for the chi-square law: one class of their own, left out where that is rare too
    counts, expected = (np.append(x[~rare], x[rare].sum()) for x in (counts, expected))
    often = expected >= 20
    assert counts[~often].sum() <= 60 and p_value(counts[often], expected[often]) > LEVEL


def test_longer_rows_have_the_same_pairs_and_questions():
    short, long = (gathered(Recall(length=length, train=300, seed=5)) for length in (128, 256))
    assert np.array_equal(long[0][:, :4], short[0][:, :4]) and np.array_equal(long[1], short[1])


SIZES = {"train": 300, "val": 40, "test": 40}
RECALL = {"length": 128, "writes": [4, 8, 16, 32], "registers": 64, "values": 64, "overwrite": False}


def written(rows, source):
    """Register and value of every write, -1 elsewhere: two (n, L - 1)."""
    registers, values = np.divmod(rows[:, :-1] - 1, source.values + 1)
    assert (values[registers >= 0] < source.values).all()
    return registers, np.where(registers < 0, -1, values)


WRITTEN = {"length": 64, "writes": [63, 1], "registers": 2, "values": 3}


@pytest.mark.parametrize("options", [{}, RECALL, WRITTEN, {**WRITTEN, "writes": [43, 1], "gap": 20}])
def test_the_label_is_what_a_dictionary_holds_after_the_writes(options):
    source = Registers(**options, **SIZES)
    for (*row, last), label in words(source):
        writes = [word.split("=") for word in row if word != "."]
        memory = {register: int(value) for register, value in writes}
        assert last[0] == "?" and memory[last[1:]] == label and len(writes) in source.writes
        assert source.overwrite or len(memory) == len(set(memory.values())) == len(writes)


@pytest.mark.parametrize(
    "options",
    [{"length": 64, "writes": [12, 24]}, {**RECALL, "writes": [4, 8]}, {"length": 64, "writes": [12, 43], "gap": 20}],
)
def test_sizes_places_registers_and_values_are_uniform(options):
    source = Registers(**options, train=40_000, val=1, test=1, seed=3)
    rows, labels = gathered(source)
    registers, values = written(rows, source)
    taken, counts = registers >= 0, (registers >= 0).sum(1)
    assert p_value(np.array([(counts == n).sum() for n in source.writes])) > LEVEL
    assert p_value(np.bincount(labels, minlength=source.values)) > LEVEL
    places = taken.shape[1] - source.gap
    assert not taken[:, places:].any()
    for n in source.writes:
        # Places of one row are drawn without replacement: their counts vary less than the law assumes, never more.
        assert p_value(taken[counts == n, :places].sum(0)) > LEVEL
    first = taken.argmax(1)
    for drawn in (registers, values):
        assert p_value(np.bincount(drawn[np.arange(len(rows)), first])) > LEVEL
    if source.overwrite:  # a value says nothing about its register
        both = registers[taken] * source.values + values[taken]
        assert p_value(np.bincount(both, minlength=source.registers * source.values)) > LEVEL


def test_every_write_of_distinct_registers_is_as_likely_to_be_asked_for():
    source = Registers(**{**RECALL, "writes": [4]}, train=40_000, val=1, test=1, seed=5)
    rows, _ = gathered(source)
    registers, _ = written(rows, source)
    order = np.cumsum(registers >= 0, 1) - 1
    asked = order[registers == (rows[:, -1:] - 1) // 65]
    assert len(asked) == len(rows) and p_value(np.bincount(asked, minlength=4)) > LEVEL
    assert source.floor == 25 and Registers().floor is None


@pytest.mark.parametrize("options", [{}, {"length": 64, "present": 3, "groups": 4, "values": 2, "votes": 21, "gap": 0}])
def test_the_label_is_the_value_with_most_votes_of_the_group(options):
    source = Majority(**{"winning": 11 if options else 3, **options}, **SIZES)
    for (*row, last), label in words(source):
        votes = {}
        for group, value in (word.split("=") for word in row if word != "."):
            votes.setdefault(group, []).append(int(value))
        assert len(votes) == source.present and {len(cast) for cast in votes.values()} == {source.votes}
        ((most, n),) = Counter(votes[last[1:]]).most_common(1)
        assert last[0] == "?" and most == label and n == source.winning


def test_groups_values_and_places_of_votes_are_uniform():
    source = Majority(train=40_000, val=1, test=1, seed=3)
    rows, labels = gathered(source)
    groups, values = np.divmod(rows[:, :-1] - 1, source.values + 1)
    taken, places = groups >= 0, rows.shape[1] - 1 - source.gap
    assert not taken[:, places:].any() and p_value(taken[:, :places].sum(0)) > LEVEL
    asked = rows[:, -1] // (source.values + 1) - 1
    assert p_value(np.bincount(labels)) > LEVEL and p_value(np.bincount(asked, minlength=64)) > LEVEL
    first = taken.argmax(1)
    for drawn in (groups, values):
        assert p_value(np.bincount(drawn[np.arange(len(rows)), first])) > LEVEL
    against = (groups == asked[:, None]) & (values != labels[:, None])
    distance = (values - labels[:, None])[against] % source.values - 1
    assert (against.sum(1) == 2).all() and p_value(np.bincount(distance, minlength=15)) > LEVEL
    assert source.floor == 12.5


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


@pytest.mark.parametrize("options", [{}, {"length": 128, "links": [5, 26], "names": 26, "hops": 4}])
def test_the_label_is_where_a_dictionary_of_the_links_leads(options):
    source = Chain(**options, **SIZES)
    for (*row, question), label in words(source):
        links = dict(word.split(">") for word in row if word != ".")
        at, hops = question.removeprefix("?").split("+")
        assert len(links) in source.links and set(links) == set(links.values()) and int(hops) <= source.hops
        assert len(links) == sum(word != "." for word in row)
        for _ in range(int(hops)):
            at = links[at]
        assert at == (chr(ord("a") + label) if source.names <= 26 else f"n{label}")


def test_sizes_hops_names_and_places_are_uniform():
    source = Chain(train=40_000, val=1, test=1, seed=3)
    rows, labels = gathered(source)
    first, second = np.divmod(rows - 1, source.names + source.hops)
    counts = (rows[:, :-1] > 0).sum(1)
    assert p_value(np.array([(counts == n).sum() for n in source.links])) > LEVEL
    hops = second[:, -1] - source.names
    assert p_value(np.bincount(hops * 3 + np.searchsorted(source.links, counts), minlength=6)) > LEVEL
    assert p_value(np.bincount(labels, minlength=32)) > LEVEL and p_value(np.bincount(first[:, -1])) > LEVEL
    assert p_value((rows[:, :-1] > 0).sum(0)) > LEVEL
    # The answer is any other name of the row with the same probability, in the order of the places too.
    fewest = counts == 4
    names, asked = first[fewest][:, :-1], first[fewest][:, -1:]
    others = names[(names >= 0) & (names != asked)].reshape(len(names), -1)
    assert p_value(np.bincount((others == labels[fewest, None]).argmax(1), minlength=3)) > LEVEL
    assert source.floor == pytest.approx(100 * (1 / 2 + 1 / 3 + 1 / 5) / 3)
