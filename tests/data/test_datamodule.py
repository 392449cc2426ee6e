"""Tests of the batches of the data module and of lra.load_dataset, and of the bag-of-tokens baseline."""

import pickle
import runpy
from functools import partial
from itertools import islice

import hydra
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import LEVEL, assert_error, config, p_value, set_up
from hydra.core.global_hydra import GlobalHydra
from server import imdb, write_folder
from torch.utils.data import DataLoader

import lra
from data_prep.recall import Recall
from data_prep.temporal_order import TemporalOrder
from lra.config import CONF
from lra.data import token_baselines as bag
from lra.data.datamodule import TaskData
from lra.data.split import EpochPermutation, Split
from lra.ops import metrics


def test_load_dataset_keeps_both_texts_of_a_pair(tmp_path):
    lines = b"1.0\t1\t2\tab\tcdef\n0.0\t3\t4\tghi\tj\n"
    folder = write_folder(tmp_path / "a", {f"new_aan_pairs.{part}.tsv": lines for part in ("train", "eval", "test")})
    words = [f"source.release={folder}", *(f"source.{name}=null" for name in ("train", "val", "test"))]
    dataset = lra.load_dataset("retrieval", budget="smoke", root=tmp_path / "data", download=True, overrides=words)
    batch = dataset.collate([dataset[0], dataset[1]])
    assert batch.mask.sum(-1).tolist() == [[2, 4], [3, 1]] and batch.label.tolist() == [1, 0]
    assert batch.tokens[0].tolist() == [[98, 99, 0, 0], [100, 101, 102, 103]] and dataset.metadata.num_texts == 2


def test_epoch_permutation_depends_only_on_seed_and_position():
    stream = EpochPermutation(10, seed=3)[0:35]
    for first in (0, 10, 20):
        assert sorted(stream[first : first + 10]) == list(range(10))
    for start, stop in [(0, 1), (7, 23), (19, 21), (30, 35)]:
        assert (EpochPermutation(10, seed=3)[start:stop] == stream[start:stop]).all()
    assert (EpochPermutation(10, seed=4)[0:10] != stream[:10]).any() and (stream[:10] != stream[10:20]).any()


def test_epoch_permutation_is_uniform():
    """Position of example 0 in the first epoch, over 2,000 seeds."""
    positions = [EpochPermutation(10, seed)[0:10].tolist().index(0) for seed in range(2000)]
    assert p_value(np.bincount(positions, minlength=10)) > LEVEL


@pytest.fixture
def data(data_root):
    return lambda *overrides: set_up(config("cur_abs", f"data.root={data_root}", *overrides).task_data(seed=1))


def labelled_sequences(batch):
    """The real tokens and the label of each example."""
    sequences = zip(batch.inputs[:, 0], batch.mask[:, 0], batch.label, strict=True)
    return [(tokens[mask].tolist(), label.item()) for tokens, mask, label in sequences]


def test_stream_follows_permutation_and_sorts_micro_batches_by_length(data):
    full_data, micro_data = data("optim.batch=8"), data("optim.batch=8", "optim.micro_batch=2")
    large = next(iter(full_data.train_dataloader()))
    small = list(islice(micro_data.train_dataloader(), 4))
    by_length = sorted(labelled_sequences(large), key=lambda pair: len(pair[0]))
    assert [pair for batch in small for pair in labelled_sequences(batch)] == by_length
    assert small[0].inputs.shape[-1] < large.inputs.shape[-1]
    split = full_data.splits["train"]
    for row, index in enumerate(EpochPermutation(256, 1)[0:8]):
        tokens = split.tokens[split.offsets[index] : split.offsets[index + 1]].long()
        assert torch.equal(large.inputs[row, 0][large.mask[row, 0]], tokens)


def test_training_stream_resumes_at_step(data, monkeypatch):
    # A resumed stream reads other blocks of indices than an uninterrupted one.
    monkeypatch.setattr("lra.data.datamodule.AHEAD", 16)
    original, other = data(), data()
    # 40 batches of 8 are more than one epoch of 256 examples.
    batches = list(islice(original.train_dataloader(), 40))
    other.load_state_dict({"step": 35})
    for batch, resumed_batch in zip(batches[35:], islice(other.train_dataloader(), 5), strict=True):
        assert torch.equal(batch.inputs, resumed_batch.inputs) and torch.equal(batch.label, resumed_batch.label)


def test_batch_width_is_longest_sequence_rounded_up_or_task_length(data):
    made, fixed = data(), data("data.pad=fixed")
    widths = set()
    for batch in islice(made.train_dataloader(), 32):
        assert batch.inputs.shape[-1] == -(-int(batch.mask.sum(-1).max()) // 64) * 64
        widths.add(batch.inputs.shape[-1])
    assert widths <= {64, 128} and made.count_widths() == len(widths)
    assert next(iter(fixed.train_dataloader())).inputs.shape == (8, 1, 128)
    # Sequences are truncated to the limit of the task.
    assert next(iter(data("task.limit=30").train_dataloader())).mask.sum(-1).max() == 30
    assert TaskData(source=None, root="", length=8, limit=9, batch=1).limit == 8
    # With a shift, 0 is padding and nothing else.
    shifted = next(iter(data("task.shift=1").train_dataloader()))
    assert torch.equal(shifted.inputs > 0, shifted.mask)


def test_unmasked_batches_count_padding_as_tokens(data):
    first = lambda word: next(iter(data("data.pad=fixed", word).train_dataloader()))
    masked, tokens = first("data.mask=true"), first("data.mask=false")
    assert tokens.mask is None and not masked.mask.all()
    assert torch.equal(tokens.inputs, masked.inputs) and torch.equal(tokens.label, masked.label)


@pytest.mark.parametrize("split", ["val", "test"])
def test_evaluation_batches_cover_each_example_once(data, split):
    made = data("data.eval_batch=7")
    evaluated = [pair for batch in made.evaluation_batches(split) for pair in labelled_sequences(batch)]
    stored = made.splits[split]
    tokens = stored.tokens.tensor_split(stored.offsets[1:-1])
    expected = [(x.tolist(), y.item()) for x, y in zip(tokens, stored.labels, strict=True)]
    assert sorted(evaluated) == sorted(expected) and len(evaluated) == 64


def test_accuracy_baseline_is_share_of_most_frequent_class(data):
    assert data().baseline("test", metrics.accuracy) == 100 * data().splits["test"].labels.bincount().max().item() / 64


@pytest.mark.parametrize("task", ["listops", "adding", "recall"])
def test_load_dataset_batches_equal_task_data_batches(task, data_root):
    dataset = lra.load_dataset(task, "val", budget="smoke", root=data_root)
    suite = config("sdpa" if task != "adding" else "none", f"task={task}", f"data.root={data_root}").task_data()
    expected = set_up(suite).gather("val", torch.arange(9).numpy())
    batch = next(iter(DataLoader(dataset, batch_size=9, collate_fn=dataset.collate)))
    width = batch.tokens.shape[1]
    mask = torch.ones_like(batch.mask) if expected.mask is None else expected.mask[:, 0, :width]
    assert torch.equal(batch.tokens, expected.inputs[:, 0, :width]) and torch.equal(batch.mask, mask)
    assert torch.equal(batch.label, expected.label) and int(mask.sum(1).max()) == width
    assert dataset.metadata.is_regression == (task == "adding") == (dataset.metadata.vocab_size is None)
    assert len(list(dataset)) == len(dataset) == 64
    # A worker of a DataLoader gets a copy that maps the files itself.
    copy = pickle.loads(pickle.dumps(dataset))
    assert copy._stored is None and torch.equal(copy.labels, dataset.labels)
    assert torch.equal(dataset[-1].label, dataset.labels[-1])


def test_dataset_indices_work_as_in_a_list(data_root):
    dataset = lra.load_dataset("listops", "val", budget="smoke", root=data_root)
    last, first = dataset.__getitems__([-1, -64])
    assert torch.equal(last.tokens, dataset[63].tokens) and torch.equal(first.tokens, dataset[0].tokens)
    for index in (64, -65):
        with pytest.raises(IndexError, match=f"^index {index} is out of range for 64 examples$"):
            dataset[index]


def test_load_dataset_text_is_shifted_truncated_and_needs_download(tmp_path):
    archive = imdb(tmp_path / "reviews.tar.gz", n=20)
    words = [f"source.archive={archive['archive']}", f"source.sha256={archive['sha256']}", "task.limit=30"]
    words += ["source.train=20", "source.val=20", "source.test=20"]
    options = {"budget": "smoke", "root": tmp_path / "data data", "overrides": words}
    with pytest.raises(ValueError, match=r"there is no data set at .*; prepare it with: lra data task=text"):
        lra.load_dataset("text", **options)
    dataset = lra.load_dataset("text", download=True, **options)
    text = dataset.stored.tokens[: len(dataset[0].tokens)].long()
    assert len(dataset[0].tokens) == 30 and torch.equal(dataset[0].tokens, text + 1)
    assert dataset.metadata.class_names == ("negative", "positive") and dataset.metadata.vocab_size == 512


INVALID_NAMES = {
    "task must be one of adding, .*, got 'lisotps'": {"task": "lisotps"},
    "split must be one of train, val, test, got 'dev'": {"task": "listops", "split": "dev"},
    "budget must be one of .*smoke.*, not 'large'": {"task": "listops", "budget": "large"},
}


@pytest.mark.parametrize("message", INVALID_NAMES)
def test_invalid_names_are_rejected_with_valid_choices(message):
    assert_error(message, lra.load_dataset, **INVALID_NAMES[message])


def test_load_dataset_preserves_hydra_state_of_application(tmp_path):
    (tmp_path / "mine.yaml").write_text("lr: 1\n")
    with hydra.initialize_config_dir(str(tmp_path), version_base="1.3"):
        before = GlobalHydra.instance().hydra
        assert len(lra.load_dataset("recall", budget="smoke")) == 256
        assert GlobalHydra.instance().hydra is before and hydra.compose("mine").lr == 1


def test_example_training_loop_runs(data_root):
    assert 0 <= runpy.run_path(str(CONF.parent / "examples" / "own_loop.py"))["main"]("listops", "smoke", "20") <= 100


def task(source, root=""):
    return set_up(TaskData(source=source, root=str(root), length=source.length, limit=source.length, batch=8))


def test_bag_features_are_counts_of_valid_tokens(monkeypatch):
    monkeypatch.setattr(bag, "MAX_FITTED", 300)
    data = task(TemporalOrder(train=301, val=5, test=5))
    made = bag.features(data, "train", 7).expm1()
    for example in (0, 255, 256, 299):
        inputs, mask, *_ = data.gather("train", torch.tensor([example]).numpy())
        valid_tokens = inputs[0, 0] if mask is None else inputs[0, 0][mask[0, 0]]
        assert torch.equal(made[example].round().long(), valid_tokens.bincount(minlength=7))
    assert len(made) == 300
    # Files may be sorted by label, so that their examples are drawn.
    monkeypatch.setattr(TemporalOrder, "generated", False)
    (left_out,) = set(range(301)) - set(bag.fitted_examples(data, "train").tolist())
    assert left_out == np.random.RandomState(0).permutation(301)[-1] and len(bag.features(data, "train", 7)) == 300
    pair = bag._compare(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 5.0]]))
    assert pair.tolist() == [[1, 2, 3, 5, 3, 10, -2, -3]]


def test_bag_of_tokens_learns_counts_but_not_order(monkeypatch):
    """Counts distinguish X X, Y Y and one of each, but not X Y from Y X; examples are drawn with their labels."""
    monkeypatch.setattr(bag, "MAX_FITTED", 2000)
    monkeypatch.setattr(TemporalOrder, "generated", False)
    data = task(TemporalOrder(train=2100, val=500, test=2000))
    fit = partial(bag.fit, metric=metrics.accuracy, vocab=7, outputs=4, loss=F.cross_entropy)
    state = torch.random.get_rng_state()
    scores = fit(data)
    assert torch.equal(torch.random.get_rng_state(), state) and fit(data) == scores
    labels = data.splits["test"].labels
    counts = bag.features(data, "test", 7).expm1().round()[:, 4:6]
    best = sum(labels[(counts == pair).all(1)].bincount().max().item() for pair in counts.unique(dim=0))
    # Best accuracy from counts: X X, Y Y and half of the mixed pairs.
    assert 0.65 < best / 2000 < 0.85
    assert abs(scores["test"] - 100 * best / 2000) <= 100 * 3 * (0.25 / 2000) ** 0.5


def test_first_tokens_answer_by_beginning_and_by_shorter_one_if_unseen():
    """The answer is the first token, but after token 1 the second one decides; 1 3 is no beginning of training."""

    def split(*examples):
        tokens = torch.tensor([token for *tokens, _ in examples for token in tokens])
        return Split(tokens, torch.arange(0, len(tokens) + 1, 3), torch.tensor([label for *_, label in examples]))

    data = task(TemporalOrder(train=9, val=5, test=5))
    train = split((1, 2, 5, 0), (1, 2, 6, 0), (1, 4, 5, 1), (2, 2, 5, 2), (2, 4, 6, 2), (1, 2, 7, 0))
    data.splits = {"train": train, "val": train, "test": split((1, 2, 9, 0), (1, 4, 9, 1), (2, 9, 9, 2), (1, 3, 9, 1))}
    scores = bag.first_tokens(data, metrics.accuracy)
    assert (scores.tests[0], scores.num_tokens, scores.test) == (50, 2, 75)
    # The validation set alone chooses the number of tokens.
    data.splits["val"] = split((1, 4, 9, 0))
    assert bag.first_tokens(data, metrics.accuracy).num_tokens == 1


def test_bag_scores_are_stored_by_data_and_reading_options(tmp_path):
    recall = lambda **options: task(Recall(train=9, val=9, test=9, **options), tmp_path)
    data = recall()
    file = bag.path(data, "accuracy")
    assert bag.read(file) is None and file.parent == tmp_path / "bags"
    bag.write(file, {"val": 3.0, "test": 12.5})
    assert bag.read(file) == 12.5
    # An empty or truncated file is fitted again.
    for damaged in ("", '{"val": 3.0}', '{"val'):
        file.write_text(damaged)
        assert bag.read(file) is None
    variants = [recall(pairs=3), recall(), recall()]
    variants[1].limit, variants[2].masked_id = 32, 5
    assert len({file, bag.path(data, "roc_auc"), *(bag.path(other, "accuracy") for other in variants)}) == 5
