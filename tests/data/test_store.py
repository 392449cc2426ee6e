"""Tests of the packed store and of data preparation: round trip, gather, damage, concurrent and killed processes."""

import os
import re
import subprocess
import time
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from conftest import assert_error, small_disk, until
from server import start
from support.records import flip, replace_text

from lra.data import store
from lra.data.source import Source
from lra.data.store import ExampleChunk, Split, StoreError, load, verify
from lra.data.store_writer import write

PROVENANCE = {"name": "toy", "version": "1.0.0", "sizes": [3, 2]}
META = "meta.json"
GPU = pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")])


def chunk(seed, n, towers=1, features=(), labels="int64", tokens="uint8"):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, 9, n * towers)
    ids = rng.integers(1, 200, (lengths.sum(), *features))
    tokens = ids.astype(np.float32) / 7 if features else ids.astype(tokens)
    return ExampleChunk(tokens, lengths, rng.integers(0, 5, n).astype(labels))


@pytest.fixture
def folder(tmp_path):
    write(tmp_path / "toy", {"train": [chunk(0, 30), chunk(1, 5)], "val": [chunk(2, 4)]}, provenance=PROVENANCE)
    return tmp_path / "toy"


@pytest.mark.parametrize("towers, features, labels", [(1, (), "int64"), (2, (), "float32"), (1, (3,), "int64")])
def test_store_round_trip_is_exact(tmp_path, towers, features, labels):
    chunks_of = lambda seed: [chunk(seed + i, 7, towers, features, labels) for i in range(3)]
    chunks = {"a": chunks_of(0), "b": chunks_of(9)}
    write(tmp_path / "set", chunks, provenance=PROVENANCE, towers=towers)
    splits = load(tmp_path / "set", PROVENANCE)
    verify(tmp_path / "set")
    sums = subprocess.run(["sha256sum", "-c", "SHA256SUMS"], cwd=tmp_path / "set", capture_output=True, text=True)
    assert sums.returncode == 0 and sums.stdout.count(": OK") == 7 and list(splits) == ["a", "b"]
    for name, split in splits.items():
        tokens, lengths, answers = (np.concatenate(parts) for parts in zip(*chunks[name], strict=True))
        assert len(split) == 21 and split.towers == towers
        assert split.tokens.numpy().dtype == tokens.dtype and split.labels.numpy().dtype == labels
        np.testing.assert_array_equal(split.tokens, tokens)
        np.testing.assert_array_equal(split.lengths, lengths.reshape(-1, towers))
        np.testing.assert_array_equal(split.labels, answers)
    assert [path.name for path in tmp_path.iterdir()] == ["set"]


@pytest.mark.parametrize("towers, features", [(1, ()), (2, ()), (1, (3,)), (2, (3,))])
@pytest.mark.parametrize("width, limit", [(5, None), (12, None), (8, 3), (3, 8)])
@pytest.mark.parametrize("device", ["cpu", GPU])
def test_gather_matches_loop_over_sequences(tmp_path, towers, features, width, limit, device):
    write(tmp_path / "set", {"train": [chunk(3, 40, towers, features)]}, provenance={}, towers=towers)
    split = load(tmp_path / "set")["train"].to(device)
    index = torch.tensor([39, 0, 7, 7, 21])
    tokens, mask = split.gather(index, width, limit)
    expected = torch.zeros(5, towers, width, *features, dtype=split.tokens.dtype)
    expected_mask = torch.zeros(5, towers, width, dtype=torch.bool)
    for position, example in enumerate(index.tolist()):
        for tower in range(towers):
            first, end = split.offsets[example * towers + tower :][:2].tolist()
            sequence = split.tokens[first:end][: min(width, limit or width)]
            expected[position, tower, : len(sequence)] = sequence
            expected_mask[position, tower, : len(sequence)] = True
    assert tokens.dtype == split.tokens.dtype and tokens.device == split.tokens.device
    torch.testing.assert_close(tokens.cpu(), expected, rtol=0, atol=0)
    torch.testing.assert_close(mask.cpu(), expected_mask)


def test_changing_loaded_tokens_does_not_change_the_file(folder):
    split = load(folder)["train"]
    before = (folder / "train.tokens.bin").read_bytes()
    split.tokens.zero_()
    assert (folder / "train.tokens.bin").read_bytes() == before and load(folder)["train"].tokens.any()


DAMAGE = {
    "no data set at": lambda folder: folder.rename(folder.with_name("elsewhere")),
    "not a data set: it has no meta.json": lambda folder: (folder / META).unlink(),
    "meta.json is damaged": lambda folder: (folder / META).write_text('{"format": 1, "prov'),
    "meta.json is damaged: its sha256 does not match SHA256SUMS": lambda f: replace_text(f / META, "|u1", "|i1"),
    "has format 99, this version reads format 1": lambda f: replace_text(f / META, '"format": 1', '"format": 99'),
    r"train.tokens.bin is damaged: 10 bytes instead of \d+": lambda f: os.truncate(f / "train.tokens.bin", 10),
    "val.labels.bin cannot be read: No such file": lambda folder: (folder / "val.labels.bin").unlink(),
    r"another data set: sizes \[3, 2\] instead of \[4, 2\], version '1.0.0' instead of '1.1.0'": lambda folder: None,
}


@pytest.mark.parametrize("message", DAMAGE)
def test_damaged_data_set_error_names_path_and_reason(folder, message):
    DAMAGE[message](folder)
    variant = {"version": "1.1.0", "sizes": [4, 2]} if "sizes" in message else {}
    with pytest.raises(StoreError, match=message) as excinfo:
        load(folder, PROVENANCE | variant)
    assert "\n" not in str(excinfo.value) and str(folder) in str(excinfo.value)


@pytest.mark.parametrize("part", store.PARTS)
@pytest.mark.parametrize("listed", [True, False])
@pytest.mark.parametrize("large", [True, False])
def test_flipped_bit_is_detected_by_load_or_verify(folder, part, listed, large, monkeypatch):
    """load hashes the tokens only up to ``HASHED`` bytes."""
    monkeypatch.setattr(store, "HASHED", 0 if large else store.HASHED)
    if not listed:
        (folder / "SHA256SUMS").unlink()
    path = folder / f"train.{part}.bin"
    flip(path)
    message = re.escape(f"{path} is damaged: its sha256")
    if large and part == "tokens":
        load(folder, PROVENANCE)
    else:
        with pytest.raises(StoreError, match=message):
            load(folder, PROVENANCE)
    with pytest.raises(StoreError, match=message if listed else "SHA256SUMS is not"):
        verify(folder)


def test_missing_data_set_error_names_existing_one_and_difference(tmp_path):
    other = tmp_path / "rows-00000000"
    write(other, {"train": [chunk(0, 3)]}, provenance={"name": "rows", "version": "1", "sha256": "abc"})
    (tmp_path / "rows-11111111").mkdir()
    message = f"no data set at {tmp_path}/rows-22222222; {other} has sha256 'abc' instead of None"
    with pytest.raises(StoreError, match=f"{re.escape(message)}$"):
        load(tmp_path / "rows-22222222", {"name": "rows", "version": "1", "sha256": None})
    with pytest.raises(StoreError, match=r"no data set at .*/other-22222222$"):
        load(tmp_path / "other-22222222", {"name": "other"})


@pytest.mark.parametrize(
    "chunks, error, message",
    [
        # The second chunk fails.
        ((chunk(0, 3 // i) for i in (1, 0)), ZeroDivisionError, "by zero"),
        ([], ValueError, "nothing to write"),
        ([chunk(0, 3), chunk(1, 3, labels="float32")], ValueError, "train.labels.bin: a chunk of .* follows"),
        ([chunk(0, 3, labels="int32")], ValueError, "labels must be int64 or float32, not int32"),
        ([chunk(0, 3)._replace(labels=np.zeros(2, np.int64))], ValueError, "clash"),
        ([chunk(0, 3, tokens="float64")], ValueError, "tokens must be uint8, .*, float32, not float64"),
        ([chunk(0, 3, tokens="uint16")], ValueError, "tokens must be uint8, int16, .*, not uint16"),
        ((chunk(i, 100) for i in range(1000)), OSError, "File too large"),
    ],
)
def test_failed_write_leaves_no_files(tmp_path, chunks, error, message):
    with small_disk(), pytest.raises(error, match=message):
        write(tmp_path / "set", {"train": chunks}, provenance={})
    assert not list(tmp_path.iterdir())


class Slow(Source):
    """Two chunks of 50 examples, the second once the file ``gate`` exists; each preparation adds a line to ``made``."""

    name, version, generated = "slow", "1.0.0", True

    def __init__(self, *, gate: str = os.devnull, made: str = os.devnull):
        self.gate, self.made = gate, made

    @property
    def arguments(self):
        return {"n": 100}

    def splits(self, *, workers, progress):
        with open(self.made, "a") as file:
            file.write("made\n")
        return {"train": self.chunks(progress)}

    def chunks(self, progress):
        for done in (50, 100):
            yield chunk(done, 50)
            progress("train", done, 100)
            while not os.path.exists(self.gate):
                time.sleep(0.02)


def test_concurrent_processes_prepare_source_once(tmp_path, capfd):
    root, gate, made = tmp_path / "data", tmp_path / "gate", str(tmp_path / "made")
    log = []

    def read_log():
        log.append(capfd.readouterr().err)
        return "".join(log)

    first = start(Slow(gate=str(gate), made=made).prepare, root)
    until(lambda: [*root.glob("slow-*.tmp-*")])
    second = start(Slow(made=made).prepare, root)
    until(lambda: "another process is preparing" in read_log())
    gate.touch()
    for process in (first, second):
        process.join(60)
    assert first.exitcode == second.exitcode == 0
    assert read_log().count("another process") == 1 and (tmp_path / "made").read_text() == "made\n"
    assert len(Slow().load(root)["train"]) == 100


def test_preparation_succeeds_after_a_killed_one(tmp_path):
    process = start(Slow(gate=str(tmp_path / "never")).prepare, tmp_path)
    until(lambda: [*tmp_path.glob("slow-*.tmp-*/train.tokens.bin")])
    process.kill()
    process.join(60)
    assert not Slow().folder(tmp_path).exists() and list(tmp_path.glob("*.tmp-*"))
    folder = Slow().prepare(tmp_path)
    verify(folder)
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]


def test_prepare_replaces_damaged_data_only_with_force_true(tmp_path, capsys):
    folder = Slow().prepare(tmp_path)
    (folder / "train.tokens.bin").write_bytes(b"")
    for method in (Slow().prepare, Slow().open):
        with pytest.raises(StoreError, match=r"damaged.*lra data task=slow force=true"):
            method(tmp_path)
    Slow().prepare(tmp_path, force=True)
    verify(folder)
    assert list(tmp_path.iterdir()) == [folder] and "slow train: 100 of 100" in capsys.readouterr().err


def test_open_prepares_generated_source_or_names_command(tmp_path, capsys):
    assert isinstance(Slow().open(tmp_path / "data")["train"], Split)
    assert "slow: no data at" in capsys.readouterr().err
    downloaded = type("Downloaded", (Slow,), {"generated": False})
    with pytest.raises(StoreError, match=r"no data set at .*: lra data task=slow$"):
        downloaded().open(tmp_path / "empty")
    # A source that stores nothing is loaded without preparation.
    unstored = type("Unstored", (Slow,), {"stored": False, "load": lambda self, root: "examples"})
    assert unstored().open(tmp_path / "empty") == "examples" and not (tmp_path / "empty").exists()


def test_folder_name_depends_only_on_arguments_and_version_and_must_be_writable(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    assert_error(r"cannot be written .*: choose another data folder", Slow().prepare, tmp_path / "file" / "data")
    assert Slow().folder(tmp_path) == Slow(gate="/").folder(tmp_path)
    assert re.fullmatch(r"slow-[0-9a-f]{8}", Slow().folder(tmp_path).name)
    assert type("Slow", (Slow,), {"version": "1.0.1"})().folder(tmp_path) != Slow().folder(tmp_path)
    # A lock of another user, and a file system without locks.
    for error, remedy in ((PermissionError(13, "no", "a.owner"), "another user may be"), (OSError(37, "no"), "choose")):
        monkeypatch.setattr("lra.io.lock.fcntl.flock", Mock(side_effect=error))
        assert_error(f"cannot be written .no.: {remedy}", Slow().prepare, tmp_path)
