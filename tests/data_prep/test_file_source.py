"""Where the files of a data set are decides nothing: content does, and prepared data need no files."""

import os
import re
import shutil

import hydra
import pytest
from conftest import config, printed
from server import write_folder, write_tar

from data_prep import __main__ as command
from data_prep.listops import ListOps
from data_prep.pathfinder.generator import Pathfinder
from data_prep.retrieval import Retrieval
from lra.config import CONF
from lra.config.compose import compose
from lra.config.experiment import Experiment
from lra.data.store import StoreError
from lra.evaluate import restore
from lra.runs.run_dir import RunDir, check_choices
from lra.train.__main__ import train

LISTOPS = {f"basic_{name}.tsv": b"Source\tTarget\n" + b"[MAX 2 9 ]\t9\n" * 8 for name in ("train", "val", "test")}
PAIRS = {f"new_aan_pairs.{name}.tsv": b"1.0\ta\tb\tc\td\n" * 9 for name in ("train", "eval", "test")}
FASTA = {"dog.fa": b"".join(b">a\n" + b"ACGT" * 9 + b"\n" for _ in range(9)), "donkey.fa": b">b\n" + b"GATC" * 9}


def release(folder):
    return write_folder(folder, LISTOPS | PAIRS | FASTA)


WORDS = {  # the options of a task whose files are below a folder
    "listops": lambda folder: ["task=listops", f"source.release={folder}"],
    "retrieval": lambda folder: [
        *("task=retrieval", f"source.release={folder}"),
        *(f"source.{split}=null" for split in ("train", "val", "test")),
    ],
    "genome": lambda folder: [
        *("task=genome", "source.longer_than=1"),
        *(f"source.{name}={folder}/{name}.fa" for name in ("dog", "donkey")),
    ],
}
PLACES = {  # the folder as it was, and as it is written at the second run
    "relative": lambda here: ("a", "./a"),
    "absolute": lambda here: ("a", f"{here}/a"),
    "above": lambda here: ("a", "."),
    "with a slash": lambda here: ("a", "a/"),
    "home": lambda here: ("a", "~/a"),
    "moved": lambda here: ("a", "b"),
    "gone": lambda here: ("a", "a"),
    "gone, absolute": lambda here: ("a", f"{here}/a"),
}


def experiment(words, root):
    options = ["attn=mean", "budget=smoke", "seeds=[0]", "runs=runs", f"data.root={root}", "optim.steps=2"]
    return compose(
        Experiment, [*words, *options, "optim.eval_every=1", "optim.warmup=0", "optim.batch=2", "data.pad=batch"]
    )


def identity(made):
    return made.choices(made.data_source().provenance)


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    release(tmp_path / "a")
    return tmp_path


# FASTA files are named one by one, not by a folder above them.
CASES = [(task, place) for place in PLACES for task in WORDS if (task, place) != ("genome", "above")]


@pytest.mark.parametrize(("task", "place"), CASES)
def test_the_place_of_the_files_is_no_part_of_a_run(home, task, place):
    before, after = PLACES[place](home)
    first = experiment(WORDS[task](before), "data")
    first.data_source().prepare("data")
    choices = identity(first)
    if place == "moved":
        (home / "a").rename("b")
    if "gone" in place:
        shutil.rmtree(home / "a")
    words = [re.sub("=(~.*)", r"='\1'", word) for word in WORDS[task](after)]
    second = experiment(words, "data")
    assert identity(second) == choices
    assert len(second.data_source().open("data")["test"]) > 0
    paths = [value for key, value in choices.items() if key.startswith("source.") and "_" not in key]
    assert not [value for value in paths if str(value).startswith(("/", "~", "a", "."))]


def test_a_finished_run_needs_no_files(home, monkeypatch, capfd):
    words = WORDS["listops"]("a")
    made = experiment(words, "data")
    train.__wrapped__(made)
    (folder,) = (home / "runs").glob("**/seed-0")
    assert str(home) not in (folder / "config.yaml").read_text()
    shutil.rmtree(home / "a")
    train.__wrapped__(experiment(words, "data"))  # done before
    run = RunDir.read(folder)
    restored = restore.configuration(run, "data")
    _, data = restore.trained(run, restored)
    assert len(data.splits["test"]) == 8
    check_choices(folder, identity(experiment(words, "data")))
    for more in ("verify=true", "workers=1"):
        stop, _, said = printed(command.prepare, *words, "data.root=data", more, patch=monkeypatch, capfd=capfd)
        assert stop is None and "does not exist; using the data prepared at" in said
    with pytest.raises(ValueError, match=r"data of this run are not in .*other; to make .*source.release=<path>"):
        restore.trained(run, restore.configuration(run, str(home / "other")))


def test_of_several_prepared_sets_the_one_of_the_same_path_is_used(home):
    write_folder(home / "b", LISTOPS | {"basic_val.tsv": b"Source\tTarget\n[MAX 2 9 ]\t8\n"})
    folders = {name: ListOps(release=name).prepare("data") for name in ("a", "b")}
    for name in folders:
        shutil.rmtree(home / name)
    assert {name: ListOps(release=name).folder("data") for name in folders} == folders
    with pytest.raises(StoreError, match="does not exist, and several data sets may have been prepared from it"):
        ListOps(release="c").folder("data")
    with pytest.raises(ValueError, match=r"c/basic_train.tsv is missing"):
        ListOps(release="c").folder("elsewhere")


def test_the_same_data_from_another_place_have_the_same_checksums(home):
    release(home / "b")
    sums = [(ListOps(release=name).prepare(name + "-data") / "SHA256SUMS").read_text() for name in ("a", "b")]
    assert sums[0] == sums[1] and str(home) not in sums[0]


def test_unchanged_files_are_not_read_again(home, monkeypatch):
    folder = ListOps(release="a").prepare("data")
    monkeypatch.setattr("data_prep.release.fingerprint", lambda path: pytest.fail("the stamp is enough"))
    assert ListOps(release="a").folder("data") == folder
    os.utime(home / "a" / "basic_val.tsv")
    with pytest.raises(pytest.fail.Exception, match="the stamp is enough"):
        ListOps(release="a").folder("data")


def test_generated_runs_keep_their_choices():
    choices = config("cur_abs").choices({"name": "listops"})
    assert choices["source.release"] is None and "data.release" not in choices


def served(*words):
    return compose(Experiment, ["attn=mean", *words, "data.root=data"]).data_source()


@pytest.mark.parametrize("by", ["option", "environment", "home"])
def test_one_release_serves_all_tasks(home, monkeypatch, by):
    words = []
    if by == "option":
        words = [f"data.release={home}/a"]
    else:
        monkeypatch.setenv("LRA_RELEASE", "~/a" if by == "home" else str(home / "a"))
    write_tar(home / "a" / "aclImdb_v1.tar.gz", {})
    write_folder(home / "a" / "pathfinder128/curv_contour_length_14", {"metadata/0.npy": b""})
    assert served("task=listops", *words).release.path == home / "a"
    assert served("task=retrieval", *words).release.path == home / "a"
    assert served("task=pathfinder_x", *words).path == home / "a"
    assert served("task=text", *words).download.archive == home / "a" / "aclImdb_v1.tar.gz"
    assert served("task=image", *words).download.archive is None
    # Smaller budgets and other sizes are generated; a source's own files come first.
    assert served("task=listops", "budget=quick", *words).release is None
    assert served("task=pathfinder", *words).release is None
    assert served("task=listops", "source.release=b", *words).release.path.name == "b"
    assert served("task=adding", *words).arguments["length"] == 128
    # A task with some of its files is an error that names the missing one.
    (home / "a" / "new_aan_pairs.eval.tsv").unlink()
    with pytest.raises(ValueError, match=r"a/new_aan_pairs.eval.tsv is missing"):
        assert served("task=retrieval", *words).provenance


PATHS = {"LRA_DATA": "~/x", "LRA_RELEASE": "~/a"}


def test_the_home_folder_is_expanded_in_every_path(home, monkeypatch):
    for name, value in PATHS.items():
        monkeypatch.setenv(name, value)
    made = compose(Experiment, ["task=listops", "attn=mean", "runs='~/r'", "pretrain=masked", "pretrain.from='~/p'"])
    assert made.data.root == home / "x" and made.data.release == home / "a" and made.runs == home / "r"
    assert made.pretrain.from_ == home / "p"
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        composed = hydra.compose("train", ["task=listops", "attn=mean", "runs='~/r'"], return_hydra_config=True)
    assert composed.hydra.sweep.dir == str(home / "r")
    sources = {
        ListOps(release="~/a").release.path: home / "a",
        Retrieval(archive="~/a.gz").download.archive: home / "a.gz",
        Pathfinder(release="~/a").path: home / "a",
        Retrieval(release="~/a").release.path: home / "a",
    }
    assert all(path == expected for path, expected in sources.items())
    assert ListOps().folder("~/x").parent == home / "x"
    ListOps(min_length=5, max_length=20, train=5, val=5, test=5).prepare("~/x")
    assert not (home / "~").exists() and list((home / "x").glob("listops-*/"))
