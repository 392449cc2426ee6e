"""Checkpoints: a flipped bit is seen before and after the end, a foreign one is refused; training goes on from none."""

import functools
import os
import pickle
import random
import shutil
import zipfile
from pathlib import Path

import pytest
import torch
from support.records import flip, instead
from support.training import assert_same_files, power_cut, result, seed_folder, smoke, train_config

from lra.runs import checkpoint
from lra.runs.run_dir import RunDir
from lra.train.callbacks import Checkpoints

WORDS = ("optim.steps=6", "optim.eval_every=3")


@pytest.fixture
def weights(tmp_path):
    model = torch.nn.Linear(8, 8)
    torch.save(model.state_dict(), tmp_path / "best.ckpt")
    return model, tmp_path / "best.ckpt"


def test_every_flipped_bit_of_a_file_without_a_sum_is_seen_or_changes_nothing(weights):
    model, path = weights
    whole, expected = path.read_bytes(), {k: v.clone() for k, v in model.state_dict().items()}
    seen, draw = 0, random.Random(0)
    with zipfile.ZipFile(path) as parts:  # the attribute that makes a folder of a part, at which no CRC-32 is compared
        attributes = whole.index(b"data/0", parts.start_dir) - len("best/") - 8
    for bit in [8 * attributes + 4, *draw.sample(range(8 * len(whole)), 400)]:
        data = bytearray(whole)
        data[bit // 8] ^= 1 << bit % 8
        path.write_bytes(data)
        torch.nn.init.zeros_(model.weight)
        try:
            checkpoint.load_weights(model, path)
        except ValueError as error:
            assert str(path) in str(error) and "\n" not in str(error)
            seen += 1
        else:
            assert all(torch.equal(value, expected[name]) for name, value in model.state_dict().items())
    assert seen > 40


def save_zip(path, compression=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", compression) as parts:
        parts.writestr("a/data.pkl", bytes(10**6))


WEIGHTS = {"weight": torch.zeros(8, 8), "bias": torch.zeros(8)}
NO_WEIGHTS = {
    "integer keys": WEIGHTS | {1: torch.zeros(1)},
    "meta tensors": {name: value.to("meta") for name, value in WEIGHTS.items()},
    "sparse tensors": {name: value.to_sparse() for name, value in WEIGHTS.items()},
    "numbers": dict.fromkeys(WEIGHTS, 1.0),
    "a value that is not finite": WEIGHTS | {"bias": torch.full((8,), float("nan"))},
    "a list": list(WEIGHTS),
}
FOREIGN = {
    "it is missing": lambda path: path.unlink(),
    "it is a folder": lambda path: instead(path, Path.mkdir),
    "it is not a regular file": lambda path: instead(path, os.mkfifo),
    "it is damaged or not a checkpoint": lambda path: path.write_bytes(random.Random(1).randbytes(5000)),
    "it is damaged or not a checkpoint(?#empty)": lambda path: path.write_bytes(b""),
    "it is damaged or not a checkpoint(?#half)": lambda path: path.write_bytes(path.read_bytes()[:900]),
    "it is damaged or not a checkpoint(?#pickle)": lambda path: path.write_bytes(pickle.dumps({"a": 1})),
    "it is damaged or not a checkpoint(?#zip)": save_zip,
    "torch did not write its part": lambda path: save_zip(path, zipfile.ZIP_DEFLATED),
    "its part best/data/0 is damaged": lambda path: path.write_bytes(path.read_bytes().replace(b"\x3e", b"\x3f")),
    "does not hold the weights of this model": lambda path: torch.save({"weight": torch.zeros(2)}, path),
    **{
        f"does not hold finite weights by their names(?#{name})": functools.partial(torch.save, held)
        for name, held in NO_WEIGHTS.items()
    },
}


@pytest.mark.parametrize("reason", FOREIGN)
def test_a_file_that_is_none_is_told_in_a_line(weights, reason):
    model, path = weights
    torch.save({"weight": torch.full((8, 8), 0.17), "bias": torch.zeros(8)}, path)
    FOREIGN[reason](path)
    with pytest.raises(ValueError, match=reason) as caught:
        checkpoint.load_weights(model, path)
    assert str(path) in str(caught.value) and "delete its folder" in str(caught.value) and "\n" not in str(caught.value)


@pytest.fixture(scope="module")
def halves(tmp_path_factory, data_root):
    """Folders of two seeds that were cut off at step 3, and of the first one at its end."""
    home = tmp_path_factory.mktemp("halves")
    train_config(smoke(home / "whole", *WORDS))
    for seed in (0, 1):
        with power_cut(3):
            train_config(smoke(home / "cut", *WORDS, f"seeds=[{seed}]"))
    return seed_folder(home / "cut"), seed_folder(home / "cut", seed=1), seed_folder(home / "whole")


def change(home, old, new):
    config = home / "config.yaml"
    assert old in config.read_text()
    config.write_text(config.read_text().replace(old, new))


def reform(path):
    state = torch.load(path, weights_only=True)
    state["callbacks"]["Checkpoints"]["form"] = 3
    torch.save(state, path)


HARM = {
    "last.ckpt cannot be used (its part": lambda home, other: flip(home / "last.ckpt"),
    "best.ckpt cannot be used (its part": lambda home, other: flip(home / "best.ckpt"),
    "best.ckpt cannot be used (it is missing); delete its folder": lambda home, other: (home / "best.ckpt").unlink(),
    "config.yaml is not the configuration of a run": lambda home, other: flip(home / "config.yaml", 0.0),
    "was made by another configuration (model.dim: 63 -> 64)": lambda home, other: change(home, "dim: 64", "dim: 63"),
    "last.ckpt has form 3 instead of 2: another version wrote it": lambda home, other: reform(home / "last.ckpt"),
    "last.ckpt was written by another run": lambda home, other: shutil.copytree(other, home, dirs_exist_ok=True),
}


@pytest.mark.parametrize("told", HARM)
def test_training_does_not_go_on_from_what_was_changed(halves, tmp_path, data_root, told):
    folder, other, _ = halves
    home = shutil.copytree(folder, seed_folder(tmp_path))
    HARM[told](home, other)
    with pytest.raises(ValueError) as caught:
        train_config(smoke(tmp_path, *WORDS))
    assert told in str(caught.value) and "goes on" not in str(caught.value)
    assert not (home / "record.json").exists()


NO_STATE = [{"callbacks": 1}, {"callbacks": {"Checkpoints": dict.fromkeys(checkpoint._CALLBACK_KEYS, ())}}]


@pytest.mark.parametrize("held", [[], {}, *NO_STATE, *({"state_dict": held} for held in NO_WEIGHTS.values())])
def test_other_contents_are_no_state(halves, tmp_path, held):
    whole = torch.load(halves[0] / "last.ckpt", weights_only=True)
    torch.save(whole | held if held else held, tmp_path / "last.ckpt")
    with pytest.raises(ValueError, match=r"last.ckpt is not the state of a run of this version; delete its folder"):
        checkpoint.state(tmp_path / "last.ckpt")


@pytest.mark.parametrize("harm", [lambda path: path.unlink(), flip, lambda path: path.write_text("step\n")])
def test_a_lost_metrics_csv_costs_nothing(halves, tmp_path, data_root, harm):
    """last.ckpt has its rows."""
    home = shutil.copytree(halves[0], seed_folder(tmp_path))
    harm(home / "metrics.csv")
    train_config(smoke(tmp_path, *WORDS))
    assert result(home) == result(halves[2])
    assert (home / "metrics.csv").read_bytes() == (halves[2] / "metrics.csv").read_bytes()


@pytest.mark.parametrize("name", ["last.ckpt", "best.ckpt", "metrics.csv", "config.yaml"])
def test_a_finished_run_has_the_sums_of_its_files(halves, tmp_path, name):
    home = shutil.copytree(halves[2], tmp_path / "seed-0")
    readers = {"metrics.csv": checkpoint.read_metrics, "config.yaml": RunDir.read}
    read = readers.get(name, lambda home: checkpoint.read(home / name))
    read(home)
    flip(home / name)
    with pytest.raises(ValueError, match=rf"{name} .* \(its sha256 is not the one in the record.json or pretrain.json"):
        read(home)


def test_the_record_of_another_seed_is_not_taken_for_done(halves, tmp_path, data_root):
    shutil.copytree(halves[2], seed_folder(tmp_path, seed=1))
    with pytest.raises(ValueError, match=r"record.json is of seed 0; move it to its own folder, or delete it"):
        train_config(smoke(tmp_path, *WORDS, "seeds=[1]"))


def train_until(files: int, runs: Path, words: tuple[str, ...]) -> int:
    """Exit status of training in a process that is gone when it has replaced that many files of step 6's evaluation."""
    if child := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    replace, saved, left = Path.replace, Checkpoints.on_validation_end, iter(range(files))

    def die(*call):
        if next(left, None) is None:
            os._exit(9)
        return replace(*call)

    def evaluate(self, trainer, module):
        Path.replace = die if trainer.global_step == 6 else replace
        saved(self, trainer, module)
        Path.replace = replace

    Checkpoints.on_validation_end = evaluate
    train_config(smoke(runs, *words))
    os._exit(0)


@pytest.mark.slow
def test_a_kill_at_any_file_of_an_evaluation_costs_nothing(tmp_path, data_root):
    words, files, status = ("optim.steps=9", "optim.eval_every=3"), 0, 9
    train_config(smoke(tmp_path / "whole", *words))
    whole = seed_folder(tmp_path / "whole")
    while status == 9:
        runs = tmp_path / str(files)
        status = train_until(files, runs, words)
        train_config(smoke(runs, *words))
        home = seed_folder(runs)
        assert result(home) == result(whole)
        assert_same_files(home, whole, ["metrics.csv", "config.yaml"], ["best.ckpt"])
        files += 1
    assert status == 0 and files > 2
