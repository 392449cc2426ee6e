"""ListOps: the compiled generator against a plain transcription of the task's definition, and the release's reader.

Distributions are compared by chi-square tests on fixed seeds at p > 1e-4: a wrong generator fails, a right one always
passes, as nothing here is drawn anew from run to run.
"""

import hashlib
import random
from collections import Counter
from itertools import islice
from statistics import median

import numpy as np
import pytest
import torch
from conftest import LEVEL
from scipy.stats import chi2_contingency
from server import examples, write_folder

from data_prep.listops import ListOps, decode
from lra.data.store import StoreError, verify

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


RELEASE = {
    "basic_train.tsv": "Source\tTarget\n( ( ( [MAX 2 ) 9 ) ] )\t9\n( ( ( [SM ( ( ( [MED 4 ) 7 ) ] ) ) 6 ) ] )\t1\n",
    "basic_val.tsv": "Source\tTarget\n[MIN 3 1 ]\t1\n",
    "basic_test.tsv": "Source\tTarget\r\n( ( ( [MIN 8 ) 4 ) ] )\t4\r\n",
}


def write_release(folder, **changes):
    files = RELEASE | {f"{key}.tsv": text for key, text in changes.items()}
    return write_folder(folder, {name: text.encode() for name, text in files.items() if text is not None})


def test_release(tmp_path):
    inner = write_release(tmp_path / "lra_release" / "listops-1000")
    source = ListOps(release=tmp_path / "lra_release")
    splits = source.open(tmp_path / "data")
    assert [len(split) for split in splits.values()] == [2, 1, 1]
    train = splits["train"]
    assert decode(train.tokens.tolist()) == "[MAX 2 9 ] [SM [MED 4 7 ] 6 ]"
    assert train.labels.tolist() == [9, 1] and train.lengths.tolist() == [[4], [7]]
    assert ListOps(release=inner).folder("data") == source.folder("data")
    other = write_release(tmp_path / "other", basic_val="Source\tTarget\n[MIN 3 2 ]\t2\n")
    assert ListOps(release=other).folder("data") != source.folder("data")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"basic_val": None}, r"basic_val.tsv is missing"),
        ({"basic_val": "Target\tSource\n1\t1\n"}, r"basic_val.tsv: the first line must be Source, a tab, Target"),
        ({"basic_val": "Source\tTarget\n1\t1\n1 1\n"}, r"basic_val.tsv, line 3: not an expression, a tab and a digit"),
        ({"basic_val": "Source\tTarget\n1\t10\n"}, r"basic_val.tsv, line 2: not an expression"),
        ({"basic_test": "Source\tTarget\n[FIRST 1 2 ]\t1\n"}, r"basic_test.tsv, line 2: unknown token '\[FIRST'"),
    ],
)
def test_damaged_release(tmp_path, changes, message):
    release = write_release(tmp_path / "official", **changes)
    with pytest.raises(ValueError, match=message) as caught:
        ListOps(release=release).prepare(tmp_path / "data")
    assert not isinstance(caught.value, StoreError) and "\n" not in str(caught.value)
    assert not list((tmp_path / "data").glob("*/"))
