"""Generated data: ListOps against a plain transcription of its definition; seeds, versions and options of all tasks.

Distributions are compared by chi-square tests on fixed seeds at p > 1e-4, so that a correct generator always passes.
"""

import hashlib
import random
from collections import Counter
from functools import partial
from itertools import islice
from statistics import median

import numpy as np
import pytest
import torch
from conftest import LEVEL
from scipy.stats import chi2_contingency
from server import examples, trained

from data_prep.adding import Adding
from data_prep.chain import Chain
from data_prep.listops import ListOps, decode
from data_prep.majority import Majority
from data_prep.pathfinder.generator import Pathfinder
from data_prep.recall import Recall
from data_prep.registers import Registers
from data_prep.synthetic import LENGTHS
from data_prep.temporal_order import TemporalOrder
from lra.data.store import verify

SMALL = {"min_length": 5, "max_length": 60, "max_depth": 5, "max_args": 4, "p_operator": 0.4}
OPERATORS = {
    "[MIN": lambda *values: min(values),
    "[MAX": lambda *values: max(values),
    "[MED": lambda *values: int(median(values)),
    "[SM": lambda *values: sum(values) % 10,
}


def evaluate(text):
    """By Python, [MED 4 7 ] as MED(4,7)."""
    code = "".join(f"{word[1:]}(" if word[0] == "[" else ")," if word == "]" else f"{word}," for word in text.split())
    return eval(code.rstrip(","), {name[1:]: function for name, function in OPERATORS.items()})


def reference_node(draw, rule, depth=1):
    """Steps 1 to 4 and 7: the node's words and its value."""
    r = draw.random() if depth < rule["max_depth"] else 1
    if r > rule["p_operator"]:
        digit = draw.randint(0, 9)
        return [str(digit)], digit
    children = [reference_node(draw, rule, depth + 1) for _ in range(draw.randint(2, rule["max_args"]))]
    operator = draw.choice(list(OPERATORS))
    value = OPERATORS[operator](*(value for _, value in children))
    return [operator, *(word for words, _ in children for word in words), "]"], value


def reference(n, **mistake):
    """Steps 5 and 6: n distinct trees in the order in which they were drawn."""
    draw, trees, rule = random.Random(5), {}, SMALL | mistake
    while len(trees) < n:
        words, value = reference_node(draw, rule)
        if rule["min_length"] < len(words) < rule["max_length"]:
            trees.setdefault(" ".join(words), value)
    return list(trees.items())


@pytest.fixture(scope="module")
def drawn():
    """20,000 trees of the source and as many of the reference, each as (text, value)."""
    ours = [(decode(ids), value) for ids, value in islice(ListOps(**SMALL, seed=3).examples(), 20_000)]
    return ours, reference(20_000)


def depths(text):
    """The number of operators that are open after each word."""
    return np.cumsum([word.startswith("[") - (word == "]") for word in text.split()])


STATISTICS = {
    "length": lambda text, value: len(text.split()) // 3,
    "label": lambda text, value: value,
    "operators nested": lambda text, value: depths(text).max(),
    "root operator": lambda text, value: text.split()[0],
    "arguments of the root": lambda text, value: (depths(text)[1:] == 1).sum(),
    "label by root operator": lambda text, value: (text.split()[0], value),
    "first argument": lambda text, value: text.split()[1],
    "last argument": lambda text, value: text.split()[-2],
    "operators in the tree": lambda text, value: text.count("[") // 2,
}


def p_value(observed: list[Counter]) -> float:
    """That the samples come from one distribution: chi-square over the bins with 20 or more in the mean."""
    bins = [key for key, n in sum(observed, Counter()).items() if n >= 20 * len(observed)]
    table = torch.tensor([[counts[key] for key in bins] for counts in observed], dtype=torch.float64)
    rest = torch.tensor([[counts.total()] for counts in observed]) - table.sum(1, keepdim=True)
    table = torch.cat([table, rest], 1) if rest.sum() >= 20 * len(observed) else table
    return chi2_contingency(table, correction=False).pvalue


@pytest.mark.parametrize("statistic", STATISTICS)
def test_same_distribution_as_the_definition(drawn, statistic):
    assert p_value([Counter(STATISTICS[statistic](*tree) for tree in trees) for trees in drawn]) > LEVEL


@pytest.mark.parametrize("option, value", [("max_args", 3), ("max_depth", 4), ("p_operator", 0.35), ("max_length", 57)])
def test_a_mistake_would_be_noticed(drawn, option, value):
    samples = drawn[0], reference(8_000, **{option: value})
    found = [p_value([Counter(read(*tree) for tree in trees) for trees in samples]) for read in STATISTICS.values()]
    assert min(found) < LEVEL


def test_values_and_lengths_and_no_duplicates(drawn):
    ours, theirs = drawn
    assert len({text for text, _ in ours}) == len(ours)
    assert all(SMALL["min_length"] < len(text.split()) < SMALL["max_length"] for text, _ in ours)
    assert all(evaluate(text) == value for text, value in (*ours, *theirs))


def test_paper_size_statistics():
    """6,000 trees as in the simulation behind the task's facts; a share of 17 percent has a standard error of 0.5."""
    trees = list(islice(ListOps(seed=1).examples(), 6000))
    lengths = np.array([len(ids) for ids, _ in trees])
    shares = np.bincount([value for _, value in trees], minlength=10) / 60
    assert lengths.min() > 500 and lengths.max() < 2000
    assert abs(lengths.mean() - 1055) < 30 and abs((lengths > 1000).mean() - 0.48) < 0.04
    assert abs(shares[0] - 17.0) < 2 and abs(shares[9] - 17.4) < 2
    assert (shares[1:9] > 6).all() and (shares[1:9] < 10.5).all()


def test_same_bytes_for_any_number_of_workers(tmp_path):
    source = ListOps(min_length=20, max_length=300, train=3000, val=200, test=100)
    contents = []
    for workers in (1, 2, 3):
        folder = source.prepare(tmp_path / str(workers), workers=workers)
        verify(folder)
        contents.append({path.name: path.read_bytes() for path in folder.iterdir()})
    assert contents[0] == contents[1] == contents[2]
    splits = {name: examples(split) for name, split in source.load(tmp_path / "1").items()}
    assert {name: len(rows) for name, rows in splits.items()} == {"train": 3000, "val": 200, "test": 100}
    rows = [row for split in splits.values() for _, row in split]
    other = next(ListOps(min_length=20, max_length=300, seed=1).examples())[0]
    assert len(set(rows)) == 3300 and other.tobytes() != rows[0]


def test_the_bytes_belong_to_the_version():
    """Data prepared by an older version must not pass for this one's: new bytes take a new ListOps.version."""
    sha = hashlib.sha256()
    for ids, value in islice(ListOps().examples(), 100):
        sha.update(ids.tobytes() + bytes([value]))
    assert (ListOps.version, sha.hexdigest()[:16]) == ("1.0.0", "2a937c9ce4a37005")


@pytest.mark.parametrize("arguments", [{"max_args": 2, "max_depth": 3}, {"min_length": 0, "max_length": 3}])
def test_what_cannot_be_drawn_ends(tmp_path, arguments):
    with pytest.raises(ValueError, match="too few new trees"):
        ListOps(**{"min_length": 20, "max_length": 40} | arguments).prepare(tmp_path)
    assert not list(tmp_path.glob("*/"))


LONE = {"train": 100, "val": 1, "test": 1}
RECALL = {"length": 128, "writes": [4, 8, 16, 32], "registers": 64, "values": 64, "overwrite": False}


@pytest.mark.parametrize(
    ("kind", "length"),
    [(Recall, 128), (TemporalOrder, 256), (Chain, 64), (Registers, 256), *((Adding, length) for length in LENGTHS)],
)
def test_a_sequence_is_a_function_of_seed_split_and_index(kind, length):
    make = partial(kind, length=length, train=300, val=40, test=40)
    splits = make(seed=5).open("nowhere")
    whole = splits["train"].gather(torch.arange(300), length)[0]
    for part in torch.randperm(300, generator=torch.Generator().manual_seed(0)).split(7):
        assert torch.equal(splits["train"].gather(part, length)[0], whole[part])
    # A limit cuts, a question at the end first.
    short, mask = splits["train"].gather(torch.arange(300), length, 9)
    assert torch.equal(short[:, :, :9], whole[:, :, :9]) and not short[:, :, 9:].any()
    assert (mask.sum(-1) == 9).all()
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
def test_sequences_belong_to_the_version(source, sha):
    """Records name the version: other sequences for the same arguments take a new one."""
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
def test_wrong_options_are_rejected(kind, options, reason):
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
