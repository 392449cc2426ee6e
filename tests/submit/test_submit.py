"""Submissions (lra submit): written from a folder of runs, rejected with a reason, verified by a rerun."""

import dataclasses
import hashlib
import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest
from support.records import flip, replace_text, unseal

from lra.checks.__main__ import failed_checks
from lra.config import CONF
from lra.io import typed_json
from lra.runs import checkpoint, config_file, record
from lra.runs import published as tables
from lra.submit import checks, verify
from lra.submit import record as submission_record
from lra.submit.__main__ import submit
from lra.submit.control import by_mechanism, check_control, find_published_control, labels_of, shared_choices
from lra.submit.folder import check_folder, check_source, import_alone
from lra.submit.verify import is_verified, rerun_command, tolerance

STUDY = tables.HOME / "paper"
SOURCE = """from lra.attention.base import Attention
class Efficient(Attention):
    def forward(self, q, k, v, mask=None):
        k = k if mask is None else k.masked_fill(~mask[:, None, :, None], -1e9)
        return q.softmax(-1) @ (k.softmax(2).mT @ v)
"""
ALL = [(label, seed) for label in ("cur_abs", "mean") for seed in range(3)]
MATCHED = {"optim.steps": 2, "pretrain.matched": True, "pretrain.steps": 3, "pretrain.batch": 1}
STATEMENT = ("name=cur", "author=A. Name", "hardware=one core", "rates=[0.0001,0.0003]")


def published(label):
    return tables.read(STUDY)[STUDY / "listops" / label / "seed-0"]


def add(runs, label, seed, choices=None, **changes):
    """Write a run directory with the record and curve of a published run, by default with its configuration."""
    source = published("mean" if label.startswith("mean") else "cur_abs")
    choices = source.choices if choices is None else choices
    fingerprint = config_file.fingerprint(choices | {"seed": seed})
    folder = runs / "mine" / "listops" / label / f"seed-{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / config_file.NAME).write_text(config_file.dump(choices))
    (folder / checkpoint.METRICS).write_text(checkpoint.format_metrics(source.evaluations))
    fields = {"git": "0123456789ab", "command": "python -m lra.train task=listops study=mine 'seeds=[0]'"}
    fields |= {"study": "mine", "label": label, "seed": seed, "fingerprint": fingerprint} | changes
    record.save(dataclasses.replace(source.record, **fields), folder)


def add_seeds(runs, score, control_score):
    """Write three seeds of cur_abs and of the control, whose scores increase by 1 from seed to seed."""
    for seed in range(3):
        add(runs, "cur_abs", seed, test=score + seed)
        add(runs, "mean", seed, test=control_score + seed)
    return runs


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """Runs of three seeds of cur_abs and of the control, in an otherwise empty working directory."""
    monkeypatch.chdir(tmp_path)
    # Tests of the manuals may have imported another file of this name.
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    # The tests of attention run the slow checks of cur_abs and the control; here a custom class alone is checked.
    monkeypatch.setattr("lra.submit.folder.failed_checks", lambda x: failed_checks(x) if x.label == "Efficient" else [])
    # The weights come first, because the record lists their checksum.
    shutil.copytree(STUDY / "listops/cur_abs/seed-0", tmp_path / "runs/mine/listops/cur_abs/seed-0")
    return add_seeds(tmp_path / "runs", 35.0, 17.0)


@pytest.fixture
def command(call):
    return lambda *words: call(submit, *words)[:2]


def test_submission_is_written_and_passes_repository_check(runs, command, tmp_path):
    stop, text = command("runs=runs/mine", *STATEMENT)
    assert stop is None and "6 runs of cur_abs and the control" in text
    # Padding may be removed for the mechanism only.
    assert shared_choices({"data.pad": "compact"}) == shared_choices({"data.pad": "batch"})
    folder = tmp_path / "submissions/cur"
    assert {path.name for path in folder.iterdir()} == {submission_record.NAME, *submission_record.TABLES}
    assert check_folder(folder) == []
    assert "is a submission by A. Name; choose another name=" in command("runs=runs/mine", *STATEMENT, "author=B")[0]
    submission = submission_record.load(folder)
    assert (submission.labels, submission.protocol, submission.rates) == (["cur_abs"], "paper", [0.0001, 0.0003])
    # A score is edited after the submission was written.
    replace_text(folder / tables.RUNS, ",35.0,", ",95.0,")
    assert "runs.csv differs from its sha256" in check_folder(folder)[0]
    remove("mean")(runs)
    remove("cur_abs", "seed-0")(runs)
    stop, _ = command("runs=runs/mine", "name=cur", "author=A. Name", "hardware=one")
    assert "for 4 reasons" in stop and len(stop.splitlines()) == 5


def remove(*parts):
    return lambda runs: shutil.rmtree(runs.joinpath("mine/listops", *parts))


def retrain(seeds, choices=(), **changes):
    """Return a function that replaces runs, (label, seed), by runs with other options or other record fields."""

    def change(runs):
        for label, seed in seeds:
            remove(label, f"seed-{seed}")(runs)
            add(runs, label, seed, published(label).choices | dict(choices), **changes)

    return change


def edit(name, change):
    return lambda runs: change(runs / "mine/listops/cur_abs/seed-0" / name)


def use_custom_class(runs, text=SOURCE):
    """Replace the runs of cur_abs by runs of a custom class whose file had a text."""
    choices = {key: value for key, value in published("cur_abs").choices.items() if not key.startswith("attn.")}
    choices |= {"attn._partial_": True, "attn._target_": "mine.Efficient"}
    shutil.rmtree(runs / "mine/listops/cur_abs", ignore_errors=True)
    for seed in range(3):
        add(runs, "Efficient", seed, choices, sources={"mine": hashlib.sha256(text.encode()).hexdigest()})


@pytest.mark.parametrize(
    "change, reason",
    [
        (remove("cur_abs", "seed-2"), "cur_abs has 2 finished seeds; train at least 3"),
        (remove("cur_abs", "seed-1"), "lacks seed 1 of 0 to 2; include every seed, even if it diverged"),
        (remove("mean"), "listops has no control; train attn=mean"), (edit(record.NAME, unseal), "json has no sha256"),
        (retrain(ALL[3:], {"optim.steps": 9}), "have different settings (optim.steps: 9 -> 5000)"),
        (retrain(ALL[1:2], {"optim.batch": 16}), "seeds 0 and 1 have different configurations (optim.batch: 32 -> 16)"),
        (retrain(ALL[1:2], git="0123-dirty"), "or resumed by other code (0123-dirty); commit and train again"),
        (retrain(ALL[1:2], budget="quick"), "several values of budget (paper, quick); submit each on its own"),
        (retrain(ALL, budget="unknown"), "the budget of a run is not known; train with budget=<name>"),
        (retrain(ALL, budget="quick"), "cur_abs was trained at budget=quick, the leaderboard has budget=paper"),
        (retrain(ALL, {"provenance.max_length": 25}), "that differ from the benchmark's (max_length: 2000 -> 25)"),
        (retrain(ALL, MATCHED, steps=2, command="x experiment=mine"), "on 67 examples, the suite's configuration has"),
        (retrain(ALL, command="lra.train experiment=curformer_listops"), "160,000 examples, the suite's configuration"),
        (retrain(ALL, {"source._target_": "mine.Efficient"}), "data_prep.listops.ListOps -> mine.Efficient"),
        (retrain(ALL[:3], command="lra.train attn=mine"), "was trained by attn=mine, which is not part of the suite"),
        (retrain(ALL[:3], command="x experiment=mine"), "trained by experiment=mine, which is not part of the suite"),
        (retrain(ALL, {"task.limit": 60}), "options that differ from the suite's (task.limit: 2000 -> 60)"),
        (retrain(ALL[3:], {"optim.lr": 10.0}), "optim.lr: the control's rate 10.0 is neither the mechanism's rate"),
        (retrain(ALL[3:], {"attn._target_": "lra.attention.controls.Identity"}), "mean has the name of attn=mean but"),
        (retrain(ALL[:1], steps=7), "seed 0 has a record of 7 steps and a configuration of 5,000; train it again"),
        (retrain(ALL[:1], params=7), "listops cur_abs has 209,802 parameters, its records have 7; train it again"),
        (retrain(ALL, task="chain"), "chain is not a task of the Long Range Arena; its tasks are listops, text"),
        (edit(record.NAME, Path.unlink), "seed-0 has no record.json: the run is not finished"),
        (edit(checkpoint.BEST, flip), "best.ckpt is damaged"), (edit(checkpoint.METRICS, Path.unlink), "metrics.csv"),
        (use_custom_class, "the source of mine.Efficient is not attached; add source=mine.py"),
        ("rates=null", "learning rates that were tried are not given; add 'rates=[0.0001,0.0003]'"),
        ("rates=[0.5]", "rates=[0.5] lacks its rate 0.0001; list every rate tried"),
        ("author=null", "author is not given; add author='...'"), ("name=Cur", "name=Cur is not allowed; use lower"),
        ("link=ftp", "link=ftp is not an address; use http://"), ("runs=nowhere", "runs=nowhere is not a folder"),
        ("source=other.py", "source=other.py is not a file"),
        (lambda runs: tables.save(runs / "mine/copy", [published("cur_abs")]) or f"runs={STUDY}{'/..' * 20}{runs}/mine",
         "is a row of a table without checksum"),
        (remove("cur_abs"), "there is no mechanism, only the control"),
        ("name=null", "runs and name are missing: runs=<folder of runs>"),
    ],
)  # fmt: skip
def test_invalid_submission_names_reason_and_writes_nothing(runs, command, tmp_path, change, reason):
    # The class can be imported, but its source is not attached.
    (tmp_path / "mine.py").write_text(SOURCE)
    word = change if isinstance(change, str) else change(runs) or "link=null"
    stop, _ = command("runs=runs/mine", *STATEMENT, "trust=mine", word)
    assert reason in stop and not (tmp_path / "submissions").exists()


def test_data_read_from_the_release_are_accepted(runs):
    """The provenance of files has checksums instead of the arguments of the generator. A longer training counts too."""
    run = published("cur_abs")
    choices = {key: value for key, value in run.choices.items() if not key.startswith("provenance.")}
    choices |= {"provenance.name": "listops", "provenance.release": "0e1", "optim.steps": 6000}
    result = dataclasses.replace(run.record, command="x task=listops ++source.release=files pretrain.from=files")
    from_release = run._replace(choices=choices, record=result)
    assert checks.check_benchmark({("listops", "cur_abs"): [from_release]}) == []
    rerun = rerun_command(Path("cur"), from_release)
    assert "'source.release=<your copy of the files>'" in rerun and "=files" not in rerun
    assert "release" not in rerun_command(Path("cur"), from_release._replace(choices={"provenance.release.url": "a"}))
    fewer = from_release._replace(record=dataclasses.replace(run.record, n_test=256))
    reasons = checks.check_benchmark({("listops", "cur_abs"): [fewer]})
    assert "data that differ from the benchmark's (test: 2000 -> 256)" in reasons[0] and len(reasons) == 1


def test_control_is_recognised_by_its_class_at_a_rate_that_was_tried():
    """After a search the label has the rate. Softmax attention alone takes the position bias of block=mega."""
    control = published("mean")
    named = dataclasses.replace(control.record, label="mean-optim.lr=0.0003")
    control = control._replace(record=named, choices=control.choices | {"optim.lr": 3e-4, "block.bias": False})
    groups = by_mechanism([published("cur_abs"), control])
    assert check_control(groups, [3e-4]) == [] and "nor in rates=" in check_control(groups, [])[0]
    assert labels_of([published("cur_abs"), control]) == ["cur_abs"]
    # One control with the same settings is enough, but it has to be of the same task; its rate need not be named.
    assert check_control(groups | {("listops", "mean"): [published("mean")]}, []) == []
    both = {("text", label): [published("cur_abs")] for label in ("cur", "psf")}
    assert [reason[:19] for reason in check_control(groups | both, [3e-4])] == ["text has no control"]
    assert checks.check_rates(groups, [1e-4]) == checks.check_names({("text", "custom"): [control]}) == []
    (reason,) = checks.check_consecutive_seeds(by_mechanism([control] * 2))
    assert "has two results of one seed" in reason


def test_published_control_with_the_same_settings_replaces_a_missing_one(runs, command):
    study = tables.read(tables.HOME / "bf16")
    choices, control = [study[tables.HOME / "bf16/listops" / label / "seed-0"].choices for label in ("cur_abs", "mean")]
    # The published control at the rate of the mechanism comes first.
    run = published("cur_abs")._replace(choices=choices | {"optim.lr": 1e-3})
    assert {seed.record.label for seed in find_published_control([run], [1e-4])} == {"mean-optim.lr=0.001"}
    retrain(ALL[:3], choices)(runs)
    remove("mean")(runs)
    stop, text = command("runs=runs/mine", *STATEMENT)
    assert stop is None and "listops: the control is 5 published runs of mean with the same settings" in text
    # A verification trains neither the published control again nor one that has its configuration.
    for seed in range(3):
        add(runs / "rerun", "cur_abs", seed, choices, test=35.5)
        add(runs, "mean", seed, control, test=17.5)
    assert command("verify=cur", "runs=runs/rerun", "author=B")[0] is None and is_verified(Path("submissions/cur"))
    assert command("runs=runs/mine", *STATEMENT)[0] is None and not is_verified(Path("submissions/cur"))
    stop, text = command("verify=cur", "runs=runs/rerun", "author=B")
    assert stop is None and "listops mean: submitted 17.50 (n = 3), rerun 17.13 (n = 5)" in text


def test_custom_class_is_submitted_with_source_and_checked(runs, command, tmp_path):
    source = tmp_path / "code/mine.py"
    source.parent.mkdir()
    source.write_text(SOURCE)
    use_custom_class(runs)
    words = ("runs=runs/mine", *STATEMENT, f"source={source}", "trust=mine")
    assert command(*words)[0] is None
    folder = tmp_path / "submissions/cur"
    assert (folder / "mine.py").read_text() == SOURCE and check_folder(folder) == [] and "mine" not in sys.modules
    shutil.rmtree(folder)
    # Training records the file of a class that is no part of the suite.
    targets = {"attn._target_": f"{__name__}.Efficient", "block._target_": "lra.model.blocks.PreNorm"}
    assert config_file.custom_code_digests(targets) == {
        __name__: hashlib.sha256(Path(__file__).read_bytes()).hexdigest()
    }
    # A class that ignores the padding mask.
    ignorant = SOURCE.replace("if mask is None", "if True")
    source.write_text(ignorant)
    assert "listops Efficient was not trained with this mine.py" in command(*words)[0]
    use_custom_class(runs, text=ignorant)
    stop, _ = command(*words)
    assert "Efficient fails" in stop and "padding changes no real token" in stop and not folder.exists()
    # A module may end the process without a message.
    source.write_text("raise SystemExit(1)")
    assert import_alone(source, "Efficient") == "exit status 1"
    source.write_text(SOURCE.replace("class Efficient", "class Another"))
    assert "there is no mine.Efficient" in command(*words)[0]
    # A module that needs a second file, and one in a package.
    source.write_text(f"import helper\n{SOURCE}")
    source.with_name("helper.py").touch()
    assert "without other files (ModuleNotFoundError: No module named 'helper')" in command(*words)[0]
    groups = by_mechanism([published("cur_abs")._replace(choices={"attn._target_": "pkg.mine.Efficient"})])
    assert "is in a package; move the class to one file" in check_source(groups, "", tmp_path)[0]


def test_only_matching_rerun_verifies_submission(runs, command, tmp_path):
    folder = tmp_path / "submissions/cur"
    assert "there is no submission" in command("verify=cur")[0]
    assert command("runs=runs/mine", *STATEMENT)[0] is None
    stop, _ = command("verify=cur")
    assert "0 finished seeds of listops cur_abs, 3 are needed: python -m lra.train" in stop
    assert "study=verify-cur 'seeds=[0,1,2]'" in stop and "0 finished seeds of listops mean, 3 are needed" in stop
    stop, text = command("verify=cur", f"runs={add_seeds(tmp_path / 'differing', 40.2, 17.1)}")
    assert "listops cur_abs differ by more than the tolerance" in stop and "DIFFERS" in text and not is_verified(folder)
    # Three seeds with a standard deviation of 8: a mean that is 4 points higher neither agrees nor differs.
    varying = add_seeds(tmp_path / "varying", 40.2, 17.1)
    for seed, test in enumerate((32.0, 40.0, 48.0)):
        add(varying, "cur_abs", seed, test=test)
    stop, text = command("verify=cur", f"runs={varying}")
    assert "listops cur_abs are undecided" in stop and "add seeds" in stop and "differ by" not in stop
    assert "undecided" in text and "DIFFERS" not in text and not is_verified(folder)
    assert "listops cur_abs seed 0, 1, 2 is the submitted run itself" in command("verify=cur", "runs=runs/mine")[0]
    add(varying, "mean", 4, git="0123-dirty")
    stop, _ = command("verify=cur", f"runs={varying}")
    assert "listops mean lacks seed 3 of 0 to 4" in stop and "resumed by other code (0123-dirty)" in stop
    other = add_seeds(tmp_path / "other", 35.2, 17.1)
    retrain(ALL[:3], {"optim.lr": 1e-3}, test=40.0)(other)
    reason = "cur_abs has another configuration (optim.lr: 0.0001 -> "
    assert reason in command("verify=cur", f"runs={other}", "author=B")[0]
    retrain(ALL[:3], sources={"mine": "0" * 64}, test=40.0)(other)
    assert "cur_abs has another file of its class" in command("verify=cur", f"runs={other}", "author=B")[0]
    matching = add_seeds(tmp_path / "matching", 35.2, 17.1)
    for author in ("null", "' a.  NAME'"):
        assert "author is not given" in command("verify=cur", f"runs={matching}", f"author={author}")[0]
    stop, text = command("verify=cur", f"runs={matching}", "author=B. Name")
    assert stop is None and "submitted 36.00 (n = 3), rerun 36.20 (n = 3)" in text
    assert is_verified(folder) and check_folder(folder) == []
    # The repository's check rejects edited statements.
    verification, statement = submission_record.load_verification(folder), submission_record.load(folder)
    verify.write(folder, dataclasses.replace(verification, author="a. NAME"))
    assert "verified.json is by the submission's author" in check_folder(folder)[0]
    verify.write(folder, verification)
    wrong = {"is of name=other": {"name": "other"}, "names ['psf']": {"labels": ["psf"]}, "by 1 checks": {"checks": 1}}
    for reason, changes in wrong.items():
        edited = dataclasses.replace(statement, **changes)
        typed_json.save(edited, folder / submission_record.NAME, submission_record.listed_files(edited))
        assert reason in check_folder(folder)[0]
    # Other runs under the same name have to be rerun again.
    assert command("runs=runs/mine", *STATEMENT)[0] is None and not is_verified(folder)
    # The tolerance is one point or two standard errors.
    assert tolerance([36.0, 36.1, 36.2], [36.0, 36.1, 36.2]) == 1.0
    assert tolerance([30.0, 36.0, 42.0], [36.0, 36.0, 36.0]) == pytest.approx(2 * (36 / 3) ** 0.5)


def test_subset_or_easier_images_of_files_are_other_data():
    run = next(iter(tables.read(tables.HOME / "text").values()))
    benchmark = checks.compose_benchmark("task=text", "attn=mean", "protocol=paper")
    assert checks.check_data(run, benchmark) == []
    (reason,) = checks.check_data(run._replace(choices=run.choices | {"source.test": 200}), benchmark)
    assert "on data that differ from the benchmark's (source.test: None -> 200)" in reason
    other = run._replace(choices=run.choices | {"protocol.mean_over": "real"})
    assert "(protocol.mean_over: length -> real)" in checks.check_training(other, benchmark)[0]
    benchmark = checks.compose_benchmark("task=pathfinder", "attn=mean", "protocol=paper")
    assert "(contour: 14 -> 9; " in checks.check_data(run._replace(choices={"provenance.contour": 9}), benchmark)[0]


def test_submissions_in_repository_are_valid(monkeypatch):
    # Another file of this name does not take the place of a submission's.
    monkeypatch.setitem(sys.modules, "mine", ModuleType("mine"))
    folders = submission_record.folders(CONF.parent / "submissions")
    assert folders
    for folder in folders:
        assert check_folder(folder) == [], folder
