"""Generated data: ListOps compared with a reference generator; seeds, versions and options of all synthetic tasks."""

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
from server import DISTINCT, assert_error, assert_rejected, prepared, trained

from data_prep import bench
from data_prep.adding import Adding
from data_prep.chain import Chain
from data_prep.expressions import decode
from data_prep.listops import ListOps
from data_prep.majority import Majority
from data_prep.pathfinder.generator import Pathfinder
from data_prep.recall import Recall
from data_prep.registers import Registers
from data_prep.synthetic import LENGTHS
from data_prep.temporal_order import TemporalOrder

SMALL = {"min_length": 5, "max_length": 60, "max_depth": 5, "max_args": 4, "p_operator": 0.4}
TINY_EVAL_SPLITS = {"train": 100, "val": 1, "test": 1}
OPERATORS = {
    "[MIN": lambda *values: min(values),
    "[MAX": lambda *values: max(values),
    "[MED": lambda *values: int(median(values)),
    "[SM": lambda *values: sum(values) % 10,
}


def evaluate(text):
    """Evaluate an expression with Python: [MED 4 7 ] becomes the call MED(4,7)."""
    code = "".join(f"{word[1:]}(" if word[0] == "[" else ")," if word == "]" else f"{word}," for word in text.split())
    return eval(code.rstrip(","), {name[1:]: function for name, function in OPERATORS.items()})


def reference_node(rng, depth=1):
    """Draw a node by the definition in `data_prep.listops`; return its tokens and its value."""
    r = rng.random() if depth < SMALL["max_depth"] else 1
    if r > SMALL["p_operator"]:
        digit = rng.randint(0, 9)
        return [str(digit)], digit
    children = [reference_node(rng, depth + 1) for _ in range(rng.randint(2, SMALL["max_args"]))]
    operator = rng.choice(list(OPERATORS))
    value = OPERATORS[operator](*(value for _, value in children))
    return [operator, *(word for words, _ in children for word in words), "]"], value


@pytest.fixture(scope="module")
def drawn():
    """20,000 trees of the generator and 20,000 distinct ones of the reference, each as (text, value)."""
    generated = [(decode(ids), value) for ids, value in islice(ListOps(**SMALL, seed=3).examples(), 20_000)]
    rng, trees = random.Random(5), {}
    while len(trees) < 20_000:
        words, value = reference_node(rng)
        if SMALL["min_length"] < len(words) < SMALL["max_length"]:
            trees.setdefault(" ".join(words), value)
    return generated, list(trees.items())


def depths(text):
    """Nesting depth after each token: the number of open operators."""
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


@pytest.mark.parametrize("statistic", STATISTICS)
def test_listops_matches_reference_distribution(drawn, statistic):
    """A chi-square test of homogeneity; bins with a mean count below 20 are merged into one."""
    observed = [Counter(STATISTICS[statistic](*tree) for tree in trees) for trees in drawn]
    bins = [key for key, n in sum(observed, Counter()).items() if n >= 20 * len(observed)]
    table = torch.tensor([[counts[key] for key in bins] for counts in observed], dtype=torch.float64)
    rare_counts = torch.tensor([[counts.total()] for counts in observed]) - table.sum(1, keepdim=True)
    table = torch.cat([table, rare_counts], 1) if rare_counts.sum() >= 20 * len(observed) else table
    assert chi2_contingency(table, correction=False).pvalue > LEVEL


def test_listops_trees_are_distinct_with_correct_labels_and_lengths(drawn):
    generated, reference_trees = drawn
    assert len({text for text, _ in generated}) == len(generated)
    assert all(SMALL["min_length"] < len(text.split()) < SMALL["max_length"] for text, _ in generated)
    assert all(evaluate(text) == value for text, value in (*generated, *reference_trees))


def test_data_bench_measures_listops_and_both_ways_to_read_a_batch():
    assert min(*bench.ms_per_batch(Adding(length=128), 2), bench.ms_per_example(10, 0)) > 0


def test_default_listops_length_and_label_statistics():
    """Expected values: a simulation. A label share of 17 % has a standard error of 0.5 % in 6,000 trees."""
    trees = list(islice(ListOps(seed=1).examples(), 6000))
    lengths = np.array([len(ids) for ids, _ in trees])
    shares = np.bincount([value for _, value in trees], minlength=10) / 60
    assert lengths.min() > 500 and lengths.max() < 2000
    assert abs(lengths.mean() - 1055) < 30 and abs((lengths > 1000).mean() - 0.48) < 0.04
    assert abs(shares[0] - 17.0) < 2 and abs(shares[9] - 17.4) < 2
    assert (shares[1:9] > 6).all() and (shares[1:9] < 10.5).all()


def test_prepared_files_do_not_depend_on_number_of_workers(tmp_path):
    sizes = {"train": 3000, "val": 200, "test": 100}
    source = ListOps(min_length=20, max_length=300, **sizes)
    contents = []
    for workers in (1, 2, 3):
        folder = source.prepare(tmp_path / str(workers), workers=workers)
        contents.append({path.name: path.read_bytes() for path in folder.iterdir()})
    assert contents[0] == contents[1] == contents[2]
    splits = prepared(source, tmp_path / "1")
    assert {name: len(split) for name, split in splits.items()} == sizes
    sequences = [sequence for split in splits.values() for _, sequence in split]
    other_seed = next(ListOps(min_length=20, max_length=300, seed=1).examples())[0]
    assert len(set(sequences)) == 3300 and other_seed.tobytes() != sequences[0]


def test_listops_content_is_pinned_to_version():
    """If this hash changes, increase ListOps.version, so that data prepared by the old version are not reused."""
    sha = hashlib.sha256()
    for ids, value in islice(ListOps().examples(), 100):
        sha.update(ids.tobytes() + bytes([value]))
    assert (ListOps.version, sha.hexdigest()[:16]) == ("1.0.0", "2a937c9ce4a37005")


@pytest.mark.parametrize("arguments", [{"max_args": 2, "max_depth": 3}, {"min_length": 0, "max_length": 3}])
def test_unsatisfiable_listops_options_raise_instead_of_looping(tmp_path, arguments):
    assert_rejected(ListOps(**{"min_length": 20, "max_length": 40} | arguments), tmp_path, "too few new trees")


@pytest.mark.parametrize(
    "kind, length",
    [(Recall, 128), (TemporalOrder, 256), (Chain, 64), (Registers, 256), *((Adding, n) for n in LENGTHS)],
)
def test_sequence_depends_only_on_seed_split_and_index(kind, length):
    make_source = partial(kind, length=length, train=300, val=40, test=40)
    splits = make_source(seed=5).open("nowhere")
    full = splits["train"].gather(torch.arange(300), length)[0]
    for indices in torch.randperm(300, generator=torch.Generator().manual_seed(0)).split(7):
        assert torch.equal(splits["train"].gather(indices, length)[0], full[indices])
    # A limit truncates the end, where some tasks have their query.
    truncated, mask = splits["train"].gather(torch.arange(300), length, 9)
    assert torch.equal(truncated[:, :, :9], full[:, :, :9]) and not truncated[:, :, 9:].any()
    assert (mask.sum(-1) == 9).all()
    assert torch.equal(make_source(seed=5, train=200).open("elsewhere")["train"].labels, splits["train"].labels[:200])
    for other_split in (make_source(seed=6).open("nowhere")["train"], splits["val"], splits["test"]):
        assert not torch.equal(other_split.gather(torch.arange(7), length)[0], full[:7])


@pytest.mark.parametrize(
    ("source", "sha"),
    [
        (Adding(), "f81c315abf14f1d2"), (Recall(), "98208e31283b9405"), (TemporalOrder(), "020dc0580a439c92"),
        (Chain(**TINY_EVAL_SPLITS), "75cbafdcefcd667f"), (Registers(**TINY_EVAL_SPLITS), "6d390923b93ecf7a"),
        (Registers(**DISTINCT, **TINY_EVAL_SPLITS), "c6407601b006c576"),
    ],
)  # fmt: skip
def test_synthetic_sequences_are_pinned_to_version(source, sha):
    """Run records name the version, so a change of the sequences requires a new version."""
    split = source.open("nowhere")["train"]
    tokens = split.gather(torch.arange(100), source.length)[0]
    actual = hashlib.sha256(tokens.numpy().tobytes() + split.labels[:100].numpy().tobytes()).hexdigest()
    assert (source.version, actual[:16]) == ("1.0.0", sha)


INVALID = [
    (Adding, {"length": 100}, "adding needs a length among 128, "), (Adding, {"val": 0}, "at least one"),
    (Adding, {"seed": -1}, "seed"), (Recall, {"pairs": 9}, "recall needs source.pairs from 1 to the smallest"),
    (Recall, {"values": 1, "pairs": 1}, "recall needs at least one key and two values"),
    (Recall, {"power": 0}, "recall needs a power above 0, not 0"),
    (Recall, {"length": 2048}, "recall needs a length among 64, 128, 256, 512, 1024, not 2048"),
    (Recall, {"keys": 200, "values": 200}, "recall needs fewer tokens"),
    (Chain, {"links": [40]}, "source.links from 3 to 32"), (Chain, {"hops": 0}, "at least one hop"),
    (Chain, {"names": 190}, "below 32,767"), (Majority, {"present": 22}, "at most 107 votes, not 110"),
    (Majority, {"present": 65}, "source.present from 1 to source.groups=64"),
    (Majority, {"votes": 6}, "source.winning above half of source.votes"),
    (Majority, {"values": 1}, "one group and two values"), (Majority, {"groups": 5000}, "below 32,768"),
    (Majority, {"gap": 128}, "source.gap from 0 to 127"),
    (Registers, {"writes": [256]}, "source.writes from 1 to 255"),
    (Registers, {"gap": -1}, "source.gap from 0 to 254"), (Registers, {"gap": 240}, "source.writes from 1 to 15"),
    (Registers, {"writes": [9], "overwrite": False}, "source.writes from 1 to 8"),
    (Registers, {"values": 1}, "one register and two values"),
    (Registers, {"registers": 200, "values": 200}, "below 32,768"),
    (ListOps, {"min_length": 10, "max_length": 11}, "a length strictly between"),
    (ListOps, {"max_args": 1}, "max_args >= 2"), (ListOps, {"p_operator": 1.5}, "p_operator in 0..1"),
    (ListOps, {"val": 0}, "at least one example"), (ListOps, {"seed": -1}, "seed"),
    (Pathfinder, {"size": 48}, "size=48: choose one of 32, 64, 128, 256"),
    (Pathfinder, {"contour": 15}, "contour=15: choose one of 6, 9, 14"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "options", "reason"), INVALID)
def test_invalid_option_error_names_option(kind, options, reason):
    assert_error(reason, kind, **options)


@pytest.mark.parametrize(
    "name", ["recall_N64_K4", "temporal_order_N128", "adding_N128", "chain_N64", "registers_N256", "majority_N128"]
)
def test_run_on_synthetic_task_records_length_and_stores_no_data(name, tmp_path):
    result = trained(tmp_path, f"task={name.partition('_N')[0]}", "attn=sdpa")
    assert (result.task, result.status) == (name, "done")
    assert result.metric == ("within_tolerance" if result.task == "adding_N128" else "accuracy")
    assert 0 <= result.test <= 100 and not (tmp_path / "data").exists()
