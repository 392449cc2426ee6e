"""Data that are drawn as they are read: rows, versions, a run of every such task; options that no drawn data have."""

import hashlib
from functools import partial

import pytest
import torch
from server import trained

from data_prep.adding import Adding
from data_prep.chain import Chain
from data_prep.listops import ListOps
from data_prep.majority import Majority
from data_prep.pathfinder.generator import Pathfinder
from data_prep.recall import Recall
from data_prep.registers import Registers
from data_prep.synthetic import LENGTHS
from data_prep.temporal_order import TemporalOrder

LONE = {"train": 100, "val": 1, "test": 1}
RECALL = {"length": 128, "writes": [4, 8, 16, 32], "registers": 64, "values": 64, "overwrite": False}


@pytest.mark.parametrize(
    ("kind", "length"),
    [(Recall, 128), (TemporalOrder, 256), (Chain, 64), (Registers, 256), *((Adding, length) for length in LENGTHS)],
)
def test_a_row_is_a_function_of_seed_split_and_index(kind, length):
    make = partial(kind, length=length, train=300, val=40, test=40)
    splits = make(seed=5).open("nowhere")
    whole = splits["train"].gather(torch.arange(300), length)[0]
    for part in torch.randperm(300, generator=torch.Generator().manual_seed(0)).split(7):
        assert torch.equal(splits["train"].gather(part, length)[0], whole[part])
    short, mask = splits["train"].gather(torch.arange(300), length, 9)  # a limit cuts, a question at the end first
    assert torch.equal(short[:, :, :9], whole[:, :, :9]) and not short[:, :, 9:].any() and (mask.sum(-1) == 9).all()
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
def test_the_rows_belong_to_the_version(source, sha):
    """Records name the version: other rows for the same arguments take a new one."""
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
def test_options_that_make_no_row(kind, options, reason):
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
