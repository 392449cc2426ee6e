"""The bag of tokens against tasks with a known answer: counts decide one, order alone decides the other."""

import json
from functools import partial

import pytest
import torch
import torch.nn.functional as F

from data_prep.recall import Recall
from data_prep.temporal_order import TemporalOrder
from lra.data import bag
from lra.data.datamodule import TaskData
from lra.ops import metrics

fit = partial(bag.fit, metric=metrics.accuracy, vocab=7, outputs=4, loss=F.cross_entropy)


def task(source, root="", **options):
    data = TaskData(source=source, root=str(root), length=source.length, limit=source.length, batch=8, **options)
    data.setup()
    return data


def test_features_are_the_counts_of_real_tokens():
    data = task(TemporalOrder(train=300, val=5, test=5))
    made = bag.features(data, "train", 7).expm1()
    for example in (0, 255, 256, 299):
        inputs, mask, *_ = data.gather("train", torch.tensor([example]).numpy())
        real = inputs[0, 0] if mask is None else inputs[0, 0][mask[0, 0]]
        assert torch.equal(made[example].round().long(), real.bincount(minlength=7))


def test_what_order_alone_decides_is_beyond_a_bag_and_what_counts_decide_is_not():
    """Which of X and Y is first and second: two of each or one of each are counted, X Y and Y X are not told apart."""
    data = task(TemporalOrder(train=2000, val=500, test=2000))
    state = torch.random.get_rng_state()
    scores = fit(data)
    assert torch.equal(torch.random.get_rng_state(), state) and fit(data) == scores
    labels, counts = data.splits["test"].labels, bag.features(data, "test", 7).expm1().round()[:, 4:6]
    best = sum(labels[(counts == pair).all(1)].bincount().max().item() for pair in counts.unique(dim=0))
    assert 0.65 < best / 2000 < 0.85  # XX, YY and half of the others
    assert abs(scores["test"] - 100 * best / 2000) <= 100 * 3 * (0.25 / 2000) ** 0.5


def test_the_file_is_that_of_the_data_and_of_how_they_are_read(tmp_path):
    data = task(Recall(train=9, val=9, test=9), tmp_path)
    file = bag.path(data, "accuracy")
    assert bag.read(file) is None and file.parent == tmp_path / "bags"
    bag.write(file, {"val": 3.0, "test": 12.5})
    assert bag.read(file) == 12.5
    others = [task(Recall(train=9, val=9, test=9, pairs=3), tmp_path), task(Recall(train=9, val=9, test=9), tmp_path)]
    others[1].limit = 32
    assert len({file, bag.path(data, "roc_auc"), *(bag.path(other, "accuracy") for other in others)}) == 4


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", json.dumps({"test": 101.0}), json.dumps({"test": "9"})])
def test_a_damaged_file_is_no_score(text, tmp_path):
    (tmp_path / "bag.json").write_text(text)
    assert bag.read(tmp_path / "bag.json") is None
