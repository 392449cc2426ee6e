"""Tests of run directories: the targets that config.yaml may name, fingerprints, and symbolic links."""

import itertools
import os  # noqa: F401 a target of a configuration below
import re
import shutil
import time  # noqa: F401 a target of a configuration below
from dataclasses import replace

import pytest
import yaml
from conftest import config, deny_access, error_message
from server import write_folder
from support.records import RECORD, add_seeds, of_study
from support.training import trained

from lra.attention.base import Attention
from lra.config import CONF
from lra.config.compose import compose
from lra.config.experiment import Experiment
from lra.evaluate.restore import check_data, restore_experiment
from lra.maps.__main__ import show
from lra.runs import config_file, record
from lra.runs.reader import scan
from lra.runs.run_dir import RunDir, check_choices
from lra.studies.dropin.__main__ import dropin
from lra.studies.transfer.__main__ import transfer


class Mine(Attention):
    """A mechanism of a module outside the suite."""

    def forward(self, q, k, v, mask=None):
        return v


def call(word):
    return word


UNTRUSTED = "is not part of this suite"
MISSING = "there is no"
NO_PART = "is neither a part of a model nor a data source nor an inverse"
REJECTED = {
    "setuptools._distutils.spawn.spawn": f"{UNTRUSTED}; .* add trust=setuptools._distutils.spawn",
    "exec": UNTRUSTED,
    "lrasomething.Foo": UNTRUSTED,
    "lra.data.source.Source.__init__": UNTRUSTED,
    "lra.runs.record.subprocess.run": MISSING,
    "lra.attention.cur.Nothing": MISSING,
    "lra.train.callbacks.time": NO_PART,
    "lra.runs.record.Path": NO_PART,
    "lra.sweep.job.fail": NO_PART,
    "lra.data.datamodule.TaskData": NO_PART,
}


@pytest.mark.parametrize(("target", "reason"), REJECTED.items())
def test_targets_other_than_model_parts_and_sources_are_rejected(target, reason):
    # Trusting the suite or a module of it allows no further targets.
    for trust in (None, "lra", "lra.io.atomic", "data_prep", ["lra.io"]):
        with pytest.raises(ValueError, match=rf"config.yaml: attn._target_: .*{reason}"):
            config_file.check_trust({"attn._target_": target}, "config.yaml", trust)
    with pytest.raises(ValueError, match=rf"config.yaml: a.1.b.0._target_: .*{reason}"):
        config_file.check_trust({"a": [1, {"b": [{"_target_": target}]}]}, "config.yaml")


def test_only_target_and_partial_of_hydra_keys_are_allowed():
    keys = "attn._args_ attn._recursive_ attn._partial_ attn._target_.x"
    for key in keys.split():
        message = error_message(config_file.check_trust, {key: False}, "config.yaml")
        assert f"config.yaml: {key}: False is not allowed; of keys with an underscore" in message
    config_file.check_trust({"attn.pinv._partial_": True, "attn.pinv._target_": "lra.ops.pinv.cubic"}, "config.yaml")


def test_trust_covers_only_the_defining_module():
    targets = {"attn._target_": f"{__name__}.Mine", "attn.pinv._target_": f"{__name__}.call"}
    for trust in (None, [], "other"):
        assert f"add trust={__name__}" in error_message(config_file.check_trust, targets, "config.yaml", trust)
    for trust in (__name__, ["other", __name__]):
        config_file.check_trust(targets, "config.yaml", trust)
    # Names that the module imports, which trust does not cover.
    for other in ("os.system", "time.sleep", "show", "config"):
        with pytest.raises(ValueError, match=f"config.yaml: attn._target_: .*{__name__}.{other}"):
            config_file.check_trust({"attn._target_": f"{__name__}.{other}"}, "config.yaml", __name__)


def test_every_target_of_the_suite_is_allowed(tmp_path):
    for words in (["task=listops", "attn=cur_abs"], ["experiment=psf_adding"], ["experiment=mega_image"]):
        settings = compose(Experiment, [*words, "budget=smoke"])
        choices, path = settings.choices(settings.task_data().source.provenance), tmp_path / "config.yaml"
        # The provenance names files of the user.
        choices["provenance.release._train/part 0[1].parquet.bytes"] = 3
        path.write_text(yaml.safe_dump(choices))
        assert config_file.read(path) == choices
        assert config_file.fingerprint(config_file.read(path)) == config_file.fingerprint(choices)
        config_file.check_trust(choices, path)
    files = [path for path in CONF.rglob("*.yaml") if path.parent.name != "logger"]
    suite_targets = {word for path in files for word in re.findall(r"_target_: ([\w.]+)", path.read_text())}
    assert len(suite_targets) > 40
    config_file.check_trust({f"{i}._target_": word for i, word in enumerate(suite_targets)}, tmp_path)


BAD = {
    "it is not a mapping": "- a\n- b\n",
    "while parsing a flow sequence": "a: [1, 2",
    "could not determine a constructor for the tag .*python": "a: !!python/object/apply:os.system [echo]",
    r"not a plain value(?#interpolation)": "a: ${oc.env:HOME}",
    r"not a plain value(?#brackets)": "attn[_target_]: os.system",
    "invalid start byte": "a: \x80",
    "maximum recursion depth": "a: &x [*x]",
}


@pytest.mark.parametrize("reason", BAD)
def test_invalid_config_yaml_is_rejected_with_short_reason(tmp_path, reason):
    path = tmp_path / "config.yaml"
    # In latin-1 each character is one byte.
    path.write_text(BAD[reason], "latin-1")
    message = error_message(config_file.read, path)
    assert re.search(rf"config.yaml is not the configuration of a run \(.*{reason}", message)
    assert "delete its folder to run that seed again" in message and len(message) < 400


@pytest.mark.parametrize(("name", "seed"), [("seed-17", 17), ("foo-7", 0)])
def test_unfinished_run_has_seed_of_its_directory(tmp_path, name, seed):
    run_dir = RunDir.read(write_folder(tmp_path / name, {"config.yaml": b"a: 1\n"}))
    assert run_dir.seed == seed and run_dir.fingerprint == config_file.fingerprint({"a": 1, "seed": seed})


def test_custom_mechanism_is_shown_and_transferred_if_trusted(data_root, tmp_path, monkeypatch, call):
    home = trained(tmp_path, attn=f"{__name__}.Mine")
    commands = {
        show: [f"run={home}", f"out={tmp_path}"],
        transfer: [f"run={home}", f"runs={tmp_path}", "attn=mean", "examples=4", "spectrum=0"],
        dropin: [f"run={home}", f"runs={tmp_path}", "sources=[]", "cost=0", "n=2", "counts=[4]", "candidates=mean"],
    }
    for entry, words in commands.items():
        stop, *_ = call(entry, *words)
        assert f"attn._target_: {__name__}.Mine is not part of this suite" in stop and f"add trust={__name__}" in stop
        # The drop-in study needs a run of softmax attention.
        if entry is not dropin:
            assert call(entry, *words, f"trust={__name__}")[0] is None
    # After an edit of the class, its seeds are neither averaged with others, resumed nor scored.
    run_dir = RunDir.read(home, __name__)
    monkeypatch.setattr("lra.evaluate.restore._task_of", lambda _: None)
    assert restore_experiment(run_dir, data_root).task.display is None
    monkeypatch.setattr(config_file, "_file_digest", lambda _: "another")
    message = f"another version of {__name__}"
    assert message in error_message(lambda: trained(tmp_path, attn=f"{__name__}.Mine"))
    assert message in error_message(run_dir._resume, {})
    assert message in error_message(restore_experiment, run_dir, data_root)


@pytest.fixture
def runs(tmp_path):
    add_seeds(tmp_path / "runs", RECORD.label, (30.0, 31.0))
    return tmp_path / "runs"


LABEL = f"{RECORD.study}/{RECORD.task}/{RECORD.label}"
FOLLOWED = [f"{LABEL}/seed-1", LABEL, f"{RECORD.study}/{RECORD.task}", RECORD.study, "."]


@pytest.mark.parametrize("place", FOLLOWED)
def test_link_to_another_disk_is_followed(runs, place):
    shutil.move(runs / place, runs.parent / "moved")
    (runs / place).symlink_to(runs.parent / "moved", target_is_directory=True)
    records, skipped = scan(runs)
    assert sorted(r.test for r in records.values()) == [30.0, 31.0] and not skipped
    # Paths are reported through the link, also in the report.
    assert list(records) == [runs / LABEL / f"seed-{seed}" for seed in (0, 1)]
    assert of_study(runs)[0].runs == records


# Path of a link to a folder that has another path too, and its target.
AGAIN = {f"{RECORD.study}/{RECORD.task}/other": RECORD.label, f"{LABEL}/seed-0/loop": ".", "a": "../runs", "up": ".."}


@pytest.mark.parametrize("place", AGAIN)
def test_folder_with_two_paths_is_read_once(runs, place):
    shutil.copytree(runs / LABEL, runs.parent / "elsewhere")
    (runs / place).symlink_to(AGAIN[place])
    records, messages = scan(runs)
    assert list(records) == [runs / LABEL / f"seed-{seed}" for seed in (0, 1)] and not messages


def test_broken_link_and_unreadable_folder_are_reported(runs, monkeypatch):
    deny_access(monkeypatch, "seed-1")
    (runs / "gone").symlink_to("nothing")
    records, messages = scan(runs)
    assert list(records) == [runs / LABEL / "seed-0"]
    denied = f"{runs / LABEL / 'seed-1'} cannot be read: Permission denied"
    assert messages == [f"{runs / 'gone'} is a link to nothing, which does not exist", denied]


@pytest.mark.parametrize("attn", ["cur_abs", "mega", "psf", "sdpa pretrain=masked"])
def test_every_choice_changes_the_fingerprint(attn):
    choices = config(attn).choices({"name": "listops"})
    variants = [choices | {key: "another"} for key in choices]
    variants += [{key: value for key, value in choices.items() if key != left_out} for left_out in choices]
    # Equal numbers of other types are other values.
    values = [choices | {"optim.x": value} for value in (0, 0.0, False, None, "0")]
    variants += values
    assert len({*map(config_file.fingerprint, [choices, *variants])}) == 2 * len(choices) + 6 > 80
    assert all(config_file.difference(choices, other) for other in variants)
    assert all(config_file.difference(first, second) for first, second in itertools.combinations(values, 2))
    assert not config_file.difference(choices, dict(choices))


def test_finished_run_is_read_and_its_model_rebuilt(tmp_path):
    settings = compose(Experiment, ["task=listops", "attn=cur_abs", "data.pad=none"])
    choices = settings.choices(settings.task_data().source.provenance)
    home = write_folder(tmp_path / "cur_abs" / "seed-0", {"config.yaml": yaml.safe_dump(choices).encode()})
    record.save(replace(RECORD, fingerprint=config_file.fingerprint(choices | {"seed": 0})), home)
    run = RunDir.read(home)
    experiment = restore_experiment(run, "data")
    assert experiment.attn.get("pinv").path == "lra.ops.pinv.cubic" and experiment.task.display == "expression"
    assert sum(p.numel() for p in experiment.meta_model.parameters()) == 209802
    check_data(run, {key.partition(".")[2]: value for key, value in choices.items() if key.startswith("provenance.")})
    assert run.choices == choices and run.record.status == "done"
    check_choices(home, choices)
    message = "another configuration (attn.count: 64 -> 8), see its config.yaml; start a new study"
    assert message in error_message(check_choices, home, choices | {"attn.count": 8})
    check_choices(home.with_name("seed-1"), choices)
    message = "seed-0 was made by another configuration (attn.count: 64 -> 8), see its config.yaml; seeds are averaged"
    assert message in error_message(check_choices, home.with_name("seed-1"), choices | {"attn.count": 8})
    # Seeds that are open at once have one configuration, also before their first evaluation.
    first, second = (RunDir(path=tmp_path / f"open/seed-{seed}", choices=choices, seed=seed) for seed in range(2))
    with first.open():
        other = replace(second, choices={"attn.count": 8})
        assert "seed-0 was made by another" in error_message(other.open().__enter__)
        with second.open() as is_open:
            assert is_open
    # A changed configuration does not match its record, even if the sha256 of the file does.
    (home / "config.yaml").write_text(yaml.safe_dump(choices | {"attn.count": 65}))
    record.save(run.record, home)
    assert "config.yaml and record.json belong to different runs" in error_message(RunDir.read, home)
