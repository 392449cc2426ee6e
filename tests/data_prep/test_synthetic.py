"""Adding, temporal order, recall, registers, majority and chain: labels from the inputs alone, uniform draws.

Draws are compared with their law by chi-square tests on fixed seeds, p > 1e-4.
"""

from collections import Counter

import numpy as np
import pytest
import torch
from conftest import LEVEL, experiment, p_value
from server import gathered

from data_prep.adding import Adding
from data_prep.chain import Chain
from data_prep.majority import Majority
from data_prep.recall import Recall
from data_prep.registers import Registers
from data_prep.temporal_order import TemporalOrder
from lra.data.store import Split
from lra.model.embed import PairEmbedding
from lra.ops import metrics

N = 128
SIZES = {"train": 300, "val": 40, "test": 40}
MANY = {"train": 40_000, "val": 1, "test": 1}
RECALL = {"length": 128, "writes": [4, 8, 16, 32], "registers": 64, "values": 64, "overwrite": False}


def assert_uniform(values, size):
    """Assert that integers from 0 to size - 1 are drawn with equal probability."""
    assert p_value(np.bincount(np.ravel(values), minlength=size)) > LEVEL


def pair_counts(marked):
    """How often each pair of positions, marked (n, 2), was drawn."""
    counts = np.bincount(marked[:, 0] * N + marked[:, 1], minlength=N * N).reshape(N, N)
    return counts[np.triu_indices(N, 1)]


@pytest.fixture(scope="module")
def drawn():
    """60,000 sequences (n, 128, 2)."""
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
    assert_uniform(bins, 20)
    assert_uniform(bins[:, 0], 20)
    # Neighbours in a sequence, and in consecutive sequences.
    assert_uniform(20 * bins[:, ::2] + bins[:, 1::2], 400)
    assert_uniform(20 * bins[::2] + bins[1::2], 400)
    # The low bits too.
    assert_uniform((values[:8000] * 2**23).astype(np.int64) & 255, 256)


def test_every_pair_of_positions_is_equally_likely(drawn):
    marked = np.nonzero(drawn[:, :, 1])[1].reshape(-1, 2)
    pairs = pair_counts(marked)
    assert pairs.sum() == len(marked)
    assert p_value(pairs) > LEVEL
    assert_uniform(marked, N)
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
    assert_uniform(labels, 4)
    signal = ids >= 4
    assert (signal.sum(1) == 2).all()
    assert_uniform(ids[~signal], 4)
    assert_uniform(ids[signal] - 4, 2)
    noise = ~(signal[:, ::2] | signal[:, 1::2])
    neighbours = 4 * ids[:, ::2] + ids[:, 1::2]
    assert_uniform(neighbours[noise], 16)
    marked = np.nonzero(signal)[1].reshape(-1, 2)
    assert p_value(pair_counts(marked)) > LEVEL
    # The positions of the signals do not depend on the class.
    for quarter in range(4):
        assert_uniform(labels[marked[:, 0] // 32 == quarter], 4)


def words(source):
    """Words and label of every example."""
    for split in source.sizes:
        for row, label in zip(*gathered(source, split), strict=True):
            yield [source.alphabet[id] for id in row], label


def parts(rows, source):
    """Keys (n, K) and values (n, K) of the pairs, the asked key (n,) and the position of the query (n,)."""
    pairs = rows[:, : source.pairs] - 1 - source.keys
    assert (pairs >= 0).all() and (pairs < source.keys * source.values).all()
    rest = rows[:, source.pairs :]
    assert ((rest > 0).sum(1) == 1).all() and (rest <= source.keys).all()
    place = rest.argmax(1)
    keys, values = np.divmod(pairs, source.values)
    return keys, values, rest.max(1) - 1, place + source.pairs


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
    assert_uniform(labels, 8)
    assert_uniform(asked, 8)
    assert_uniform(number * 8 + labels, 32)
    # A value does not depend on its key.
    assert_uniform(asked * 8 + labels, 64)
    for k in range(4):
        assert_uniform(keys[:, k] * 8 + values[:, k], 64)
    # Two pairs have different keys and different values.
    for drawn in (keys, values):
        for a, b in ((0, 1), (1, 3), (2, 3)):
            both = np.bincount(drawn[:, a] * 8 + drawn[:, b], minlength=64).reshape(8, 8)
            assert (np.diag(both) == 0).all()
            assert p_value(both[~np.eye(8, dtype=bool)]) > LEVEL


@pytest.mark.parametrize("power", [0.01, 0.5, 1, 3])
def test_the_gap_has_the_published_law(power):
    """Probability a i^(a-1) over slots i = 1, 2, ..., normalised, as in Zoology's code."""
    source = Recall(length=64, power=power, train=40_000, seed=4)
    place = parts(gathered(source)[0], source)[3]
    weights = power * np.arange(1, 61.0) ** (power - 1)
    counts = np.bincount(place - 4, minlength=60)
    expected = len(place) * weights / weights.sum()
    # Too few for the chi-square law: one class together, left out where that is rare too.
    rare = expected < 20
    counts, expected = (np.append(x[~rare], x[rare].sum()) for x in (counts, expected))
    often = expected >= 20
    assert counts[~often].sum() <= 60 and p_value(counts[often], expected[often]) > LEVEL


def test_longer_sequences_have_the_same_pairs_and_questions():
    short, short_labels = gathered(Recall(length=128, train=300, seed=5))
    long, long_labels = gathered(Recall(length=256, train=300, seed=5))
    assert np.array_equal(long[:, :4], short[:, :4]) and np.array_equal(long_labels, short_labels)


def written(rows, source):
    """Register (or group) and value of every write (or vote), -1 elsewhere: two (n, L - 1)."""
    registers, values = np.divmod(rows[:, :-1] - 1, source.values + 1)
    assert (values[registers >= 0] < source.values).all()
    return registers, np.where(registers < 0, -1, values)


def first_of(drawn):
    """The first entry of each sequence that is not -1."""
    return drawn[np.arange(len(drawn)), (drawn >= 0).argmax(1)]


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
    source = Registers(**options, **MANY, seed=3)
    rows, labels = gathered(source)
    registers, values = written(rows, source)
    taken = registers >= 0
    counts = taken.sum(1)
    assert p_value(np.array([(counts == n).sum() for n in source.writes])) > LEVEL
    assert_uniform(labels, source.values)
    places = taken.shape[1] - source.gap
    assert not taken[:, places:].any()
    # Positions are drawn without replacement: their counts vary less than the law assumes, never more.
    for n in source.writes:
        assert p_value(taken[counts == n, :places].sum(0)) > LEVEL
    assert_uniform(first_of(registers), source.registers)
    assert_uniform(first_of(values), source.values)
    # A value does not depend on its register.
    if source.overwrite:
        assert_uniform(registers[taken] * source.values + values[taken], source.registers * source.values)


def test_every_write_of_distinct_registers_is_as_likely_to_be_asked_for():
    source = Registers(**RECALL | {"writes": [4]}, **MANY, seed=5)
    rows, _ = gathered(source)
    registers, _ = written(rows, source)
    order = np.cumsum(registers >= 0, 1) - 1
    asked = order[registers == (rows[:, -1:] - 1) // 65]
    assert len(asked) == len(rows)
    assert_uniform(asked, 4)
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
    source = Majority(**MANY, seed=3)
    rows, labels = gathered(source)
    groups, values = written(rows, source)
    taken = groups >= 0
    places = taken.shape[1] - source.gap
    assert not taken[:, places:].any()
    assert p_value(taken[:, :places].sum(0)) > LEVEL
    asked = rows[:, -1] // (source.values + 1) - 1
    assert_uniform(labels, source.values)
    assert_uniform(asked, source.groups)
    assert_uniform(first_of(groups), source.groups)
    assert_uniform(first_of(values), source.values)
    # Votes for another value of the asked group.
    against = (groups == asked[:, None]) & (values != labels[:, None])
    assert (against.sum(1) == 2).all()
    distance = (values - labels[:, None])[against] % source.values - 1
    assert_uniform(distance, 15)
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
    source = Chain(**MANY, seed=3)
    rows, labels = gathered(source)
    first, second = np.divmod(rows - 1, source.names + source.hops)
    counts = (rows[:, :-1] > 0).sum(1)
    assert p_value(np.array([(counts == n).sum() for n in source.links])) > LEVEL
    hops = second[:, -1] - source.names
    assert_uniform(hops * 3 + np.searchsorted(source.links, counts), 6)
    assert_uniform(labels, 32)
    assert_uniform(first[:, -1], 32)
    assert p_value((rows[:, :-1] > 0).sum(0)) > LEVEL
    # The answer is any other name of the sequence with the same probability, in the order of the positions too.
    fewest = counts == 4
    names, asked = first[fewest][:, :-1], first[fewest][:, -1:]
    others = names[(names >= 0) & (names != asked)].reshape(len(names), -1)
    assert_uniform((others == labels[fewest, None]).argmax(1), 3)
    assert source.floor == pytest.approx(100 * (1 / 2 + 1 / 3 + 1 / 5) / 3)
