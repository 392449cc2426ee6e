"""Wrong words over every entry point: each ends with one line and leaves nothing behind."""

import contextlib
import random
import shutil
from pathlib import Path
from typing import get_type_hints

import hydra
import pytest
from conftest import run
from omegaconf import DictConfig, OmegaConf

from data_prep.__main__ import prepare
from data_prep.show import show as examples
from lra.bench.__main__ import bench
from lra.config import CONF
from lra.config.compose import compose
from lra.config.experiment import Experiment
from lra.maps.__main__ import show as maps
from lra.report.__main__ import report
from lra.studies.dropin.__main__ import dropin
from lra.studies.inverses.__main__ import inverses
from lra.studies.lengths.__main__ import lengths
from lra.studies.probes.__main__ import probe
from lra.studies.transfer.__main__ import transfer
from lra.studies.transfer.show import show as transfer_show
from lra.sweep.__main__ import sweep
from lra.train.__main__ import train

TEXTS = "abc no on true null '' é ??? 2026 ${nope} ../../x /proc/nowhere x/y"
NUMBERS = "-1 0 1 -0.5 1.5 nan inf 1e400 [] [1,2] [[1]] [abc] {a:1} {}"
VALUES = ["'a b'", *TEXTS.split(), *NUMBERS.split()]
DATA = "budget=smoke source.train=16 source.val=8 source.test=8 data.root=data"
STEPS = "optim.steps=2 optim.eval_every=1 optim.warmup=0 optim.batch=4 seeds=[0] model.layers=1 trainer.threads=1"
TRAIN = f"task=listops {DATA} {STEPS} runs=runs"
RUN = "run=runs/paper-smoke/listops/sdpa/seed-0"
HERE = "runs=runs data.root=data"
SMALL = "heads=1 head_dim=8 length=16"
BENCH = "mechanisms=[sdpa] reference=sdpa what=attention modes=inference n=[32] batch=1 heads=1 head_dim=8 device=cpu"
LENGTHS = "tasks=temporal_order lengths=128 mechanisms=mean seeds=[0] budget=smoke plan=true measure=0"
ENTRIES = [  # with words that make them quick
    (train, f"{TRAIN} attn=cur_abs attn.count=4"),
    (train, f"{TRAIN} attn=soft attn.count=4"),
    (train, f"{TRAIN} attn=mega model.heads=1"),
    (train, f"{TRAIN} experiment=psf_listops model.dim=16 attn=psf"),
    (train, f"{TRAIN} attn=reformer"),
    (train, f"{TRAIN} task=adding attn=performer"),
    (sweep, "sweep=copy_rv tasks=[listops] seeds=[0] budget=smoke plan=true measure=0 runs=runs"),
    (bench, f"{BENCH} repeats=1 warmup=0 threads=1 runs=runs"),
    (report, "runs=runs out=out"),
    (maps, f"{RUN} data.root=data out=out"),
    (prepare, f"task=listops {DATA} workers=1"),
    (examples, f"task=listops {DATA} count=2 out=out.png"),
    (transfer, f"{RUN} attn=cur_abs attn.count=4 examples=4 spectrum=1 trainer.threads=1 steps=0 {HERE}"),
    (transfer_show, "runs=runs out=out"),
    (probe, f"{RUN} examples=2 derived=1 rows=1 threads=1 {HERE}"),
    (lengths, f"{LENGTHS} runs=runs"),
    (inverses, f"n=1 steps=[0,2] counts=[4] kinds=gaussian threads=1 {SMALL} {HERE}"),
    (dropin, f"candidates=[cur_abs] counts=[4] n=2 sources=[gaussian] cost=0 {SMALL} {HERE}"),
]


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder with the data of the entries and a run of sdpa."""
    made = tmp_path_factory.mktemp("wrong") / "home"
    made.mkdir()
    with contextlib.chdir(made), pytest.MonkeyPatch.context() as patch:
        patch.setenv("LRA_DATA", "data")
        train.__wrapped__(compose(Experiment, [*TRAIN.split(), "attn=sdpa"]))
    return made


def options(entry, words):
    """Every key of the composed configuration of an entry point, sections too, and its groups."""

    def keys(node, prefix=""):
        for key in node:
            yield f"{prefix}{key}"
            if isinstance(child := node._get_node(key), DictConfig) and OmegaConf.is_dict(child):
                yield from keys(child, f"{prefix}{key}.")

    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        (kind, *_) = get_type_hints(entry.__wrapped__).values()
        made = hydra.compose(kind.conf, words)
    return sorted(key for key in keys(made) if not key.startswith(("hydra", "budgets.paper", "budgets.quick", "plan")))


def files(folder):
    return {path: path.lstat().st_mtime_ns for path in folder.rglob("*") if not path.is_dir()}


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 6))])
@pytest.mark.parametrize("entry, words", ENTRIES)
def test_a_wrong_word_ends_in_one_line_and_leaves_nothing(entry, words, seed, home, tmp_path, monkeypatch, capfd):
    draw, words = random.Random(f"{seed} {entry.__module__} {words}"), words.split()
    key, value = draw.choice(options(entry, words)), draw.choice(VALUES)
    place = Path(shutil.copytree(home, tmp_path / "a/b/c/d"))  # ../../x stays inside
    monkeypatch.chdir(place)
    before, words = files(tmp_path), [word for word in words if word.partition("=")[0] != key]
    stop, told = run(entry, *words, f"{key}={value}", patch=monkeypatch, capfd=capfd)
    assert "Traceback" not in told and "Error:" not in told, (key, value, told)
    if stop is not None:
        assert stop.startswith("lra: ") and "\n" not in stop and files(tmp_path) == before, (key, value, stop)


LISTOPS = "task=listops attn=sdpa "
REMEDIES = {
    LISTOPS + "optim.steps=120": "optim.eval_every must divide optim.steps 120, not 50; optim.warmup must be 0 or from "
    "2 to optim.steps - 1 (119), not 1000: add optim.eval_every=60 optim.warmup=12",
    "task=recall attn=sdpa optim.steps=120": "not 500: add optim.eval_every=120 optim.warmup=12",
    LISTOPS + "optim.steps=7 optim.warmup=0": "optim.steps 7, not 50: add optim.eval_every=7",
    LISTOPS + "pretrain=masked pretrain.steps=120 pretrain.warmup=0": "add pretrain.eval_every=60",
    "task=listops attn=custom attn._target_=lra.attention.sdpa.SDPA attn.dropout=0.5": "attn.dropout is not in the "
    "yaml of attn, but an option of lra.attention.sdpa.SDPA: add it by +attn.dropout=<value>",
    LISTOPS + "attn.droput=0.5": "attn.droput: no such key; attn has causal, dropout",
    "task=listops atn=sdpa": "atn: no such key; did you mean attn=?",
    "tsk=listops attn=sdpa": "tsk: no such key; did you mean task=?",
    "task=listops": "attn is missing; it must be one of bigbird, conv, ",
}


@pytest.mark.parametrize("words", REMEDIES)
def test_the_line_says_what_to_write_instead(words, tmp_path, monkeypatch, capfd):
    stop, _ = run(train, *words.split(), f"runs={tmp_path / 'runs'}", patch=monkeypatch, capfd=capfd)
    assert REMEDIES[words] in stop and "\n" not in stop and not (tmp_path / "runs").exists()
