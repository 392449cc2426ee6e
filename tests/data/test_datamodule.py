"""Batches: order, widths, every example once."""

import numpy as np
import pytest
import torch
from conftest import LEVEL, config, p_value

from lra.data.epochs import EpochPermutation
from lra.ops import metrics


def test_order_is_a_function_of_seed_and_position():
    order = EpochPermutation(10, seed=3)
    stream = order[0:35]
    for first in (0, 10, 20):
        assert sorted(stream[first : first + 10]) == list(range(10))
    for start, stop in [(0, 1), (7, 23), (19, 21), (30, 35)]:
        assert (EpochPermutation(10, seed=3)[start:stop] == stream[start:stop]).all()
    assert (EpochPermutation(10, seed=4)[0:10] != stream[:10]).any() and (stream[:10] != stream[10:20]).any()


def test_every_position_is_equally_likely():
    """The place of example 0 in the first pass, over 2,000 seeds."""
    at = [int(np.flatnonzero(EpochPermutation(10, seed)[0:10] == 0)[0]) for seed in range(2000)]
    assert p_value(np.bincount(at, minlength=10)) > LEVEL


@pytest.fixture
def data(data_root):
    def make(*overrides):
        made = config("cur_abs", f"data.root={data_root}", *overrides).task_data(seed=1)
        made.setup()
        return made

    return make


def test_stream_is_the_order_and_micro_batches_go_from_short_to_long(data):
    whole, parts = data("optim.batch=8"), data("optim.batch=8", "optim.micro_batch=2")
    large = next(iter(whole.train_dataloader()))
    stream = iter(parts.train_dataloader())
    small = [next(stream) for _ in range(4)]
    rows = lambda batch: [batch.inputs[i, 0][batch.mask[i, 0]].tolist() for i in range(len(batch.label))]
    by_length = sorted(zip(rows(large), large.label.tolist(), strict=True), key=lambda pair: len(pair[0]))
    assert by_length == [pair for b in small for pair in zip(rows(b), b.label.tolist(), strict=True)]
    assert small[0].inputs.shape[-1] < large.inputs.shape[-1]
    split = whole.splits["train"]
    for row, index in enumerate(EpochPermutation(256, 1)[0:8]):
        tokens = split.tokens[split.offsets[index] : split.offsets[index + 1]].long()
        assert torch.equal(large.inputs[row, 0][large.mask[row, 0]], tokens)


def test_stream_resumes_at_a_step(data):
    one, other = data(), data()
    stream = iter(one.train_dataloader())
    batches = [next(stream) for _ in range(40)]  # more than one pass over 256 examples of 8
    other.load_state_dict({"step": 35})
    resumed = iter(other.train_dataloader())
    for batch in batches[35:]:
        again = next(resumed)
        assert torch.equal(batch.inputs, again.inputs) and torch.equal(batch.label, again.label)


def test_width_is_the_longest_row_rounded_up_or_the_length(data):
    made, fixed = data(), data("data.pad=fixed")
    widths = set()
    for batch in (b for _, b in zip(range(30), made.train_dataloader(), strict=False)):
        longest = int(batch.mask.sum(-1).max())
        assert batch.inputs.shape[-1] == -(-longest // 64) * 64
        widths.add(batch.inputs.shape[-1])
    assert widths <= {64, 128}
    assert next(iter(fixed.train_dataloader())).inputs.shape == (8, 1, 128)


def test_padding_may_count_as_tokens(data):
    first = lambda word: next(iter(data("data.pad=fixed", word).train_dataloader()))
    masked, tokens = first("data.mask=true"), first("data.mask=false")
    assert tokens.mask is None and not masked.mask.all()
    assert torch.equal(tokens.inputs, masked.inputs) and torch.equal(tokens.label, masked.label)


@pytest.mark.parametrize("split", ["val", "test"])
def test_evaluation_sees_every_example_once(data, split):
    made = data("data.eval_batch=7")
    seen = [
        tuple(row[m].tolist())
        for b in made.evaluation_batches(split)
        for row, m in zip(b.inputs[:, 0], b.mask[:, 0], strict=True)
    ]
    stored = made.splits[split]
    rows = [tuple(stored.tokens[a:b].tolist()) for a, b in zip(stored.offsets[:-1], stored.offsets[1:], strict=True)]
    assert sorted(seen) == sorted(rows) and len(seen) == 64


def test_rows_are_cut_to_the_limit(data):
    made = data("task.limit=30")
    assert next(iter(made.train_dataloader())).mask.sum(-1).max() == 30


def test_majority_is_the_share_of_the_most_frequent_class(data):
    labels = data().splits["test"].labels
    assert data().baseline("test", metrics.accuracy) == 100 * max(int((labels == c).sum()) for c in range(10)) / 64
