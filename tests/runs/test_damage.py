"""Every file of runs and data is damaged in every way: the command gives the same result, or one line with its name."""

import json
import os
import re
import shutil
import sys
from pathlib import Path

import pytest
import torch
from conftest import run
from support.records import flip, instead
from support.training import power_cut, train_config

from data_prep.__main__ import prepare
from lra.bench.__main__ import bench
from lra.config.compose import compose
from lra.config.experiment import Experiment
from lra.maps.__main__ import show
from lra.report.__main__ import report
from lra.studies.transfer.__main__ import transfer
from lra.studies.transfer.show import show as tables
from lra.train.__main__ import train

SMOKE = ["task=listops", "budget=smoke", "attn=sdpa", "trainer.device=cpu"]
RUN = "runs/paper-smoke/listops/sdpa/seed-0"
MOVED = f"runs/transfer/{RUN.removeprefix('runs/').replace('sdpa', 'sdpa/mean')}"
GRAFT = [f"run={RUN}", "attn=mean", "examples=4", "spectrum=0", "trainer.device=cpu"]
MEASURED = {"step_ms", "peak_bytes", "git", "date", "command", "sha256"}  # differ from run to run


def not_a_number(path):
    """Replace a number by NaN; in a binary file, eight bytes by ones, which are a NaN."""
    if path.suffix == ".ckpt":
        state = torch.load(path, weights_only=True)
        next(iter(state.get("state_dict", state).values())).fill_(float("nan"))
        torch.save(state, path)
    elif path.suffix == ".bin":
        path.write_bytes(b"\xff" * 8 + path.read_bytes()[8:])
    else:
        word = {".yaml": ".nan", ".csv": "nan"}.get(path.suffix, "NaN")
        path.write_text(re.sub(r"(?<![\w.\-])-?\d+(\.\d+)?", word, path.read_text(), count=1))


DAMAGE = {
    "a flipped bit": lambda path: flip(path, 0.5, bit=4),  # of a digit, it makes another digit
    "half of it": lambda path: os.truncate(path, path.stat().st_size // 2),
    "empty": lambda path: path.write_bytes(b""),
    "missing": lambda path: path.unlink(),
    "a folder": lambda path: instead(path, Path.mkdir),
    "a pipe": lambda path: instead(path, os.mkfifo),
    "another kind of file": lambda path: path.write_bytes(b"\x93\x00\xff" * 99),
    "not a number": not_a_number,
    "of another seed": lambda path: shutil.copy(Path(str(path).replace("seed-0", "seed-1")), path),
}
# name: (command, its words, the folder of the files, the files that the command is compared by)
COMMANDS = {
    "resume": (train, [*SMOKE, "seeds=[0]", "runs=cut"], f"cut{RUN[4:]}", "cut/**/record.json"),
    "again": (train, [*SMOKE, "seeds=[0]"], RUN, "runs/**/record.json"),
    "report": (report, ["out=report"], RUN, "report/tables/*.csv"),
    "bench": (report, ["out=report"], "runs/bench/bench/*", "report/tables/*.csv"),
    "maps": (show, [f"run={RUN}", "out=maps"], RUN, "maps/*.png"),
    "transfer": (transfer, ["runs=new", *GRAFT], RUN, "new/**/transfer.json"),
    "transfer again": (transfer, GRAFT, MOVED, "runs/**/transfer.json"),
    "tables": (tables, ["out=tables"], MOVED, "tables/transfer.md"),
    "data": (train, [*SMOKE, "seeds=[9]", "optim.steps=4", "optim.eval_every=4"], "data/*", "**/seed-9/record.json"),
    "verify": (prepare, [*SMOKE[:2], "verify=true"], "data/*", ""),
}
UNKNOWABLE = {("bench", "missing"), ("tables", "missing")}  # nothing else says that the file was there
QUICK = {("again", "a pipe"), ("verify", "a flipped bit"), ("transfer again", "half of it"), ("tables", "not a number")}


def results(pattern):
    """Read the files of a pattern below the working directory, without the numbers that differ from run to run."""
    found = {path: path.read_bytes() for path in sorted(Path().glob(pattern)) if path.is_file()} if pattern else {}

    def plain(text):
        tree = {key: value for key, value in json.loads(text).items() if key not in MEASURED}
        tree.get("files", {}).pop("last.ckpt", None)  # Lightning counts batches from the start of a process
        return tree

    return {path: plain(data) if path.suffix == ".json" else data for path, data in found.items()}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A folder with data, finished runs, an interrupted one, transfers and a benchmark."""
    place = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        patch.setenv("LRA_DATA", "data")
        small = ["n=64", "batch=1", "heads=1", "head_dim=16", "repeats=1", "warmup=0", "device=cpu", "modes=inference"]
        todo = [(train, [*SMOKE, "seeds=[0,1]"]), (bench, ["what=attention", "mechanisms=[naive]", *small])]
        todo += [(transfer, [word.replace("seed-0", f"seed-{seed}") for word in GRAFT]) for seed in (0, 1)]
        for entry, words in todo:
            patch.setattr(sys, "argv", ["lra", *words])
            entry()
        for seed in (0, 1):
            with power_cut(3):
                train_config(compose(Experiment, [*SMOKE, f"seeds=[{seed}]", "runs=cut"]))
    return place


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        pytest.param(name, damage, marks=[] if (name, damage) in QUICK else pytest.mark.slow)
        for name, (_, _, place, _) in COMMANDS.items()
        for damage in DAMAGE
        if (damage != "of another seed" or "seed-0" in place) and (name, damage) not in UNKNOWABLE
    ],
)
def test_damage_changes_no_result_without_a_word(name, damage, whole, tmp_path, monkeypatch, capfd):
    entry, words, place, pattern = COMMANDS[name]
    monkeypatch.setenv("LRA_DATA", "data")
    (folder,) = whole.glob(place)
    for number, path in enumerate([None, *sorted(path for path in folder.iterdir() if path.is_file())]):
        monkeypatch.chdir(shutil.copytree(whole, tmp_path / str(number)))
        if path is None:
            stop, _ = run(entry, *words, patch=monkeypatch, capfd=capfd)
            assert stop is None
            expected = results(pattern)
            assert expected or not pattern
            continue
        DAMAGE[damage](Path(path.relative_to(whole)))
        stop, told = run(entry, *words, patch=monkeypatch, capfd=capfd)
        if stop is None:
            named = any(path.name in line for line in told.splitlines())
            assert named or (pattern and results(pattern) == expected), f"{path.name}: another result without a word"
        else:
            assert re.match(r"lra: .*$", stop) and "\n" not in stop and path.name in stop, (path.name, stop)
        shutil.rmtree(tmp_path / str(number))
