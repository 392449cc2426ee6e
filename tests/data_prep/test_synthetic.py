"""The synthetic tasks: labels follow from the inputs, and random draws have the intended distributions."""

from collections import Counter

import numpy as np
import pytest
import torch
from conftest import LEVEL, experiment, p_value, set_up
from server import DISTINCT, gathered

from data_prep.adding import Adding
from data_prep.chain import Chain
from data_prep.majority import Majority
from data_prep.recall import Recall
from data_prep.registers import Registers
from data_prep.temporal_order import TemporalOrder
from lra.data.store import Split
from lra.model.embed import PairEmbedding
from lra.ops import metrics

LENGTH = 128
SIZES = {"train": 300, "val": 40, "test": 40}
LARGE_SIZES = {"train": 40_000, "val": 1, "test": 1}
FEW_REGISTERS = {"length": 64, "writes": [63, 1], "registers": 2, "values": 3}


def assert_uniform(values, size):
    """Assert that integers from 0 to size - 1 are drawn with equal probability."""
    assert p_value(np.bincount(np.ravel(values), minlength=size)) > LEVEL


def assert_uniform_pairs(marked):
    """Assert that each pair of positions is drawn with equal probability; marked: (n, 2), in ascending order."""
    counts = np.bincount(marked[:, 0] * LENGTH + marked[:, 1], minlength=LENGTH * LENGTH).reshape(LENGTH, LENGTH)
    assert p_value(counts[np.triu_indices(LENGTH, 1)]) > LEVEL


@pytest.mark.parametrize("length", [128, 1024, 16384])
def test_adding_label_is_scaled_sum_of_marked_values(length):
    source = Adding(length=length, train=50, val=20, test=20)
    for split in source.sizes:
        sequences, labels = gathered(source, split)
        assert sequences.shape[2] == 2 and sequences.dtype == np.float32
        for (values, marks), label in zip(sequences.swapaxes(1, 2).tolist(), labels.tolist(), strict=True):
            assert sorted(set(marks)) == [0, 1] and marks.count(1) == 2
            expected = 0.5 + sum(value for value, mark in zip(values, marks, strict=True) if mark) / 4
            assert label == np.float32(expected) and 0 <= label <= 1


def test_adding_draws_are_uniform_and_independent():
    sequences, _ = gathered(Adding(length=LENGTH, train=60_000, seed=3))
    values, marks = sequences.transpose(2, 0, 1)
    assert values.min() > -1 and values.max() <= 1
    bins = np.minimum(((values.astype(np.float64) + 1) * 10).astype(int), 19)
    assert_uniform(bins, 20)
    assert_uniform(bins[:, 0], 20)
    # Adjacent positions of a sequence, and equal positions of consecutive sequences, are independent.
    assert_uniform(20 * bins[:, ::2] + bins[:, 1::2], 400)
    assert_uniform(20 * bins[::2] + bins[1::2], 400)
    # The low bits of the mantissa are uniform as well.
    assert_uniform((values[:8000] * 2**23).astype(np.int64) & 255, 256)
    # Pairs of marked positions, each position, and the gaps between them.
    marked = np.nonzero(marks)[1].reshape(-1, 2)
    assert_uniform_pairs(marked)
    assert_uniform(marked, LENGTH)
    gaps = np.bincount(marked[:, 1] - marked[:, 0], minlength=LENGTH)[1:]
    weights = np.arange(LENGTH - 1, 0, -1)
    assert p_value(gaps, weights / weights.sum() * len(marked)) > LEVEL


@pytest.mark.parametrize(("width", "limit"), [(128, None), (192, None), (64, None), (128, 100), (192, 50), (64, 100)])
def test_generated_split_gathers_same_batches_as_stored_split(width, limit):
    source = Adding(length=LENGTH, train=30)
    generated = source.open("nowhere")["train"]
    stored = Split(torch.from_numpy(gathered(source)[0]).flatten(0, 1), torch.arange(31) * LENGTH, generated.labels)
    index = torch.tensor([4, 4, 29, 0])
    expected = stored.gather(index, width, limit)
    torch.testing.assert_close(generated.gather(index, width, limit), expected, rtol=0, atol=0)
    assert len(generated) == len(stored) and torch.equal(generated.lengths, stored.lengths)
    assert torch.equal(generated.to("cpu").labels, stored.to("cpu").labels)


def test_adding_baseline_predicts_mean_label(data_root):
    data = set_up(experiment("task=adding", "attn=sdpa", "budget=smoke").task_data())
    labels = data.splits["test"].labels
    within = sum(abs(label - labels.mean().item()) < 0.04 for label in labels.tolist())
    assert data.baseline("test", metrics.within_tolerance) == 100 * within / len(labels)
    assert Adding().analytic_chance is None


@pytest.mark.parametrize("length", [128, 1024, 16384])
def test_temporal_order_label_is_order_of_signals(length):
    for words, label in decoded_examples(TemporalOrder(length=length, train=40, val=20, test=20)):
        text = "".join(words)
        signals = text.translate(str.maketrans("", "", "abcd"))
        assert len(text) == length and label == ["XX", "XY", "YX", "YY"].index(signals)
        assert TemporalOrder.classes[label] == f"({','.join(signals)})"


def test_temporal_order_draws_are_uniform_and_independent():
    ids, labels = gathered(TemporalOrder(length=LENGTH, train=60_000, seed=3))
    assert_uniform(labels, 4)
    signal = ids >= 4
    assert (signal.sum(1) == 2).all()
    assert_uniform(ids[~signal], 4)
    assert_uniform(ids[signal] - 4, 2)
    assert_uniform((4 * ids[:, ::2] + ids[:, 1::2])[~(signal[:, ::2] | signal[:, 1::2])], 16)
    marked = np.nonzero(signal)[1].reshape(-1, 2)
    assert_uniform_pairs(marked)
    # The positions of the signals do not depend on the class.
    for quarter in range(4):
        assert_uniform(labels[marked[:, 0] // 32 == quarter], 4)


def decoded_examples(source):
    """Yield (decoded tokens, label) of every example of every split."""
    for split in source.sizes:
        for sequence, label in zip(*gathered(source, split), strict=True):
            yield [source.alphabet[id] for id in sequence], label


def split_recall_tokens(sequences, source):
    """Keys (n, K) and values (n, K) of the pairs, the queried key (n,) and the gap between the pairs and it (n,)."""
    pairs = sequences[:, : source.pairs] - 1 - source.keys
    assert (pairs >= 0).all() and (pairs < source.keys * source.values).all()
    after_pairs = sequences[:, source.pairs :]
    assert ((after_pairs > 0).sum(1) == 1).all() and (after_pairs <= source.keys).all()
    return *np.divmod(pairs, source.values), after_pairs.max(1) - 1, after_pairs.argmax(1)


@pytest.mark.parametrize(("length", "pairs", "keys", "values"), [(64, 4, 8, 8), (128, 1, 3, 2), (1024, 16, 20, 16)])
def test_recall_label_is_value_of_queried_key(length, pairs, keys, values):
    source = Recall(length=length, pairs=pairs, keys=keys, values=values, power=0.5, train=60, val=30, test=30)
    for sequence, label in decoded_examples(source):
        memory = dict(word.split("=") for word in sequence if "=" in word)
        (query,) = (word[1:] for word in sequence if word.startswith("?"))
        assert len(memory) == len(set(memory.values())) == pairs and sequence.count(".") == length - pairs - 1
        assert label == int(memory[query])


def test_recall_keys_values_and_queries_are_uniform():
    source = Recall(length=64, train=60_000, seed=3)
    sequences, labels = gathered(source)
    keys, values, query, _ = split_recall_tokens(sequences, source)
    number = (keys == query[:, None]).argmax(1)
    assert (keys[np.arange(len(keys)), number] == query).all()
    assert [Recall(pairs=pairs).analytic_chance for pairs in (1, 2, 8)] == [100.0, 50.0, 12.5]
    assert_uniform(labels, 8)
    assert_uniform(query, 8)
    assert_uniform(number * 8 + labels, 32)
    # A value does not depend on its key.
    assert_uniform(query * 8 + labels, 64)
    for k in range(4):
        assert_uniform(keys[:, k] * 8 + values[:, k], 64)
    # Keys are distinct within a sequence, and so are values.
    for drawn in (keys, values):
        for a, b in ((0, 1), (1, 3), (2, 3)):
            joint_counts = np.bincount(drawn[:, a] * 8 + drawn[:, b], minlength=64).reshape(8, 8)
            assert (np.diag(joint_counts) == 0).all() and p_value(joint_counts[~np.eye(8, dtype=bool)]) > LEVEL


@pytest.mark.parametrize("power", [0.01, 0.5, 1, 3])
def test_recall_gap_has_power_law_distribution(power):
    """Probability a i^(a-1) over slots i = 1, 2, ..., normalised, as in Zoology's code."""
    source = Recall(length=64, power=power, train=40_000, seed=4)
    *_, gaps = split_recall_tokens(gathered(source)[0], source)
    weights = power * np.arange(1, 61.0) ** (power - 1)
    counts = np.bincount(gaps, minlength=60)
    expected = len(gaps) * weights / weights.sum()
    # The chi-square approximation needs expected counts of 20: merge rare gaps, and omit them if still too rare.
    is_rare = expected < 20
    counts, expected = (np.append(x[~is_rare], x[is_rare].sum()) for x in (counts, expected))
    is_frequent = expected >= 20
    assert counts[~is_frequent].sum() <= 60 and p_value(counts[is_frequent], expected[is_frequent]) > LEVEL


def test_recall_pairs_and_labels_do_not_depend_on_length():
    short_tokens, short_labels = gathered(Recall(length=128, train=300, seed=5))
    long_tokens, long_labels = gathered(Recall(length=256, train=300, seed=5))
    assert np.array_equal(long_tokens[:, :4], short_tokens[:, :4]) and np.array_equal(long_labels, short_labels)


def split_register_tokens(sequences, source):
    """Register (or group) and value of each write (or vote), both (n, L - 1); -1 at other positions."""
    registers, values = np.divmod(sequences[:, :-1] - 1, source.values + 1)
    assert (values[registers >= 0] < source.values).all()
    return registers, np.where(registers < 0, -1, values)


def first_valid(drawn):
    """The first entry of each sequence that is not -1, (n, L) -> (n,)."""
    return drawn[np.arange(len(drawn)), (drawn >= 0).argmax(1)]


@pytest.mark.parametrize("options", [{}, DISTINCT, FEW_REGISTERS, {**FEW_REGISTERS, "writes": [43, 1], "gap": 20}])
def test_registers_label_is_last_value_written_to_queried_register(options):
    source = Registers(**options, **SIZES)
    for (*sequence, last), label in decoded_examples(source):
        writes = [word.split("=") for word in sequence if word != "."]
        memory = {register: int(value) for register, value in writes}
        assert last[0] == "?" and memory[last[1:]] == label and len(writes) in source.writes
        assert source.overwrite or len(memory) == len(set(memory.values())) == len(writes)


@pytest.mark.parametrize(
    "options",
    [{"length": 64, "writes": [12, 24]}, {**DISTINCT, "writes": [4, 8]}, {"length": 64, "writes": [12, 43], "gap": 20}],
)
def test_registers_draws_are_uniform_and_independent(options):
    source = Registers(**options, **LARGE_SIZES, seed=3)
    sequences, labels = gathered(source)
    registers, values = split_register_tokens(sequences, source)
    is_filled = registers >= 0
    counts = is_filled.sum(1)
    assert p_value(np.array([(counts == n).sum() for n in source.writes])) > LEVEL
    assert_uniform(labels, source.values)
    num_positions = is_filled.shape[1] - source.gap
    assert not is_filled[:, num_positions:].any()
    # Positions are drawn without replacement, so counts vary less than the test assumes, which only raises p.
    for n in source.writes:
        assert p_value(is_filled[counts == n, :num_positions].sum(0)) > LEVEL
    assert_uniform(first_valid(registers), source.registers)
    assert_uniform(first_valid(values), source.values)
    # A value does not depend on its register.
    if source.overwrite:
        assert_uniform(registers[is_filled] * source.values + values[is_filled], source.registers * source.values)


def test_registers_query_is_uniform_over_distinct_writes():
    source = Registers(**DISTINCT | {"writes": [4]}, **LARGE_SIZES, seed=5)
    sequences, _ = gathered(source)
    registers, _ = split_register_tokens(sequences, source)
    order = np.cumsum(registers >= 0, 1) - 1
    query = order[registers == (sequences[:, -1:] - 1) // 65]
    assert len(query) == len(sequences)
    assert_uniform(query, 4)
    assert source.analytic_chance == 25 and Registers().analytic_chance is None


@pytest.mark.parametrize("options", [{}, {"length": 64, "present": 3, "groups": 4, "values": 2, "votes": 21, "gap": 0}])
def test_majority_label_is_most_frequent_value_of_queried_group(options):
    source = Majority(**{"winning": 11 if options else 3, **options}, **SIZES)
    for (*sequence, last), label in decoded_examples(source):
        votes = {}
        for group, value in (word.split("=") for word in sequence if word != "."):
            votes.setdefault(group, []).append(int(value))
        assert len(votes) == source.present and {len(group_votes) for group_votes in votes.values()} == {source.votes}
        ((winner, n),) = Counter(votes[last[1:]]).most_common(1)
        assert last[0] == "?" and winner == label and n == source.winning


def test_majority_draws_are_uniform():
    source = Majority(**LARGE_SIZES, seed=3)
    sequences, labels = gathered(source)
    groups, values = split_register_tokens(sequences, source)
    is_filled = groups >= 0
    num_positions = is_filled.shape[1] - source.gap
    assert not is_filled[:, num_positions:].any() and p_value(is_filled[:, :num_positions].sum(0)) > LEVEL
    query = sequences[:, -1] // (source.values + 1) - 1
    assert_uniform(labels, source.values)
    assert_uniform(query, source.groups)
    assert_uniform(first_valid(groups), source.groups)
    assert_uniform(first_valid(values), source.values)
    # Votes of the queried group for other values: 2 of 5.
    is_minority = (groups == query[:, None]) & (values != labels[:, None])
    assert (is_minority.sum(1) == 2).all()
    assert_uniform((values - labels[:, None])[is_minority] % source.values - 1, 15)
    assert source.analytic_chance == 12.5


def test_pair_embedding_is_sum_of_component_embeddings():
    embed = PairEmbedding(firsts=3, seconds=5, length=40, dim=8, dropout=0.0, positions=False)
    first, second = embed.first.weight, embed.second.weight
    x = embed(torch.arange(1 + 15 + 1)[None])[0]
    pairs = torch.stack([first[1 + a] + second[1 + b] for a in range(3) for b in range(5)])
    assert torch.equal(x[0], first[0] + second[0]) and torch.equal(x[1:16], pairs)
    assert torch.equal(x[16], first[4] + second[0])
    with_pos = PairEmbedding(firsts=3, seconds=5, length=40, dim=8, dropout=0.0)
    token = torch.tensor([[7, 3]])
    difference = with_pos(token, torch.tensor([[30, 2]])) - with_pos(token)
    assert torch.allclose(difference[0], with_pos.position.weight[[30, 2]] - with_pos.position.weight[:2], atol=1e-6)


@pytest.mark.parametrize("options", [{}, {"length": 128, "links": [5, 26], "names": 26, "hops": 4}])
def test_chain_label_is_name_reached_by_following_links(options):
    source = Chain(**options, **SIZES)
    for (*sequence, question), label in decoded_examples(source):
        links = dict(word.split(">") for word in sequence if word != ".")
        token, hops = question.removeprefix("?").split("+")
        assert len(links) in source.links and set(links) == set(links.values()) and int(hops) <= source.hops
        assert len(links) == sum(word != "." for word in sequence)
        for _ in range(int(hops)):
            token = links[token]
        assert token == (chr(ord("a") + label) if source.names <= 26 else f"n{label}")


def test_chain_draws_are_uniform():
    source = Chain(**LARGE_SIZES, seed=3)
    sequences, labels = gathered(source)
    first, second = np.divmod(sequences - 1, source.names + source.hops)
    counts = (sequences[:, :-1] > 0).sum(1)
    assert p_value(np.array([(counts == n).sum() for n in source.links])) > LEVEL
    assert_uniform((second[:, -1] - source.names) * 3 + np.searchsorted(source.links, counts), 6)
    assert_uniform(labels, 32)
    assert_uniform(first[:, -1], 32)
    assert p_value((sequences[:, :-1] > 0).sum(0)) > LEVEL
    # Given the query, each other name of the sequence is equally likely to be the label, at any position.
    has_four_links = counts == 4
    names, query = first[has_four_links][:, :-1], first[has_four_links][:, -1:]
    other_names = names[(names >= 0) & (names != query)].reshape(len(names), -1)
    assert_uniform((other_names == labels[has_four_links, None]).argmax(1), 3)
    assert source.analytic_chance == pytest.approx(100 * (1 / 2 + 1 / 3 + 1 / 5) / 3)
