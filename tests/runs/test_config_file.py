"""config.yaml of a run is data: what it may name to call, and files that are none."""

import os  # noqa: F401
import re
import time  # noqa: F401 named by a configuration below
from dataclasses import replace

import pytest
import yaml
from conftest import config, run

from lra.attention.base import Attention
from lra.config import CONF
from lra.config.compose import compose
from lra.config.experiment import Experiment
from lra.maps.__main__ import show
from lra.runs import config_file, record
from lra.studies.dropin.__main__ import dropin
from lra.studies.transfer.__main__ import transfer
from lra.train.__main__ import train


class Mine(Attention):
    """A mechanism of a module that is not of the suite."""

    def forward(self, q, k, v, mask=None):
        return v


def call(word):
    return word


REFUSED = {
    "is not part of this suite; .* add trust=setuptools._distutils.spawn": ["setuptools._distutils.spawn.spawn"],
    "is not part of this suite": [
        *("os.system", "exec", "lrasomething.Foo", "lra", "lra..x", "lra.attention.cur._x"),
        "lra.data.source.Source.__init__",
    ],
    "there is no": [
        *("lra.runs.record.subprocess.run", "lra.nothing.Here", "lra.attention.cur.Nothing"),
        "lra.train.trainer.nn.Module",
    ],
    "is neither a part of a model nor a data source nor an inverse": [
        *("lra.train.callbacks.time", "lra.config.target.typed", "lra.runs.record.Path", "lra.io.atomic.write"),
        *("lra.sweep.job.fail", "lra.data.datamodule.TaskData", "lra.io.lock.Owner", "lra.config.blocks.replace"),
    ],
}


@pytest.mark.parametrize("target, reason", [(name, reason) for reason, names in REFUSED.items() for name in names])
def test_a_run_names_nothing_but_parts_of_a_model_sources_and_inverses(target, reason):
    for trust in (None, "lra", "lra.io.atomic", "data_prep", ["lra.io"]):  # none opens the whole suite
        with pytest.raises(ValueError, match=rf"config.yaml: attn._target_: .*{reason}"):
            config_file.check_trust({"attn._target_": target}, "config.yaml", trust)
    with pytest.raises(ValueError, match=rf"config.yaml: a.1.b.0._target_: .*{reason}"):
        config_file.check_trust({"a": [1, {"b": [{"_target_": target}]}]}, "config.yaml")


@pytest.mark.parametrize(
    "key", ["attn._args_", "attn._recursive_", "attn._convert_", "attn._partial_", "attn._target_.x", "_x", "a._mode_"]
)
def test_of_the_keys_that_hydra_looks_at_two_are_left(key):
    with pytest.raises(ValueError, match=rf"config.yaml: {key}: False is not allowed; of keys with an underscore"):
        config_file.check_trust({key: False}, "config.yaml")
    config_file.check_trust({"attn.pinv._partial_": True, "attn.pinv._target_": "lra.ops.pinv.cubic"}, "config.yaml")


def test_trust_is_of_the_module_that_a_class_was_written_in():
    own = {"attn._target_": f"{__name__}.Mine", "attn.pinv._target_": f"{__name__}.call"}
    for trust in (None, [], "other", "test_choice"):
        with pytest.raises(ValueError, match=f"add trust={__name__}"):
            config_file.check_trust(own, "config.yaml", trust)
    for trust in (__name__, ["other", __name__]):
        config_file.check_trust(own, "config.yaml", trust)
    for other in ("os.system", "time.sleep", "train", "run"):  # what it has imported
        with pytest.raises(ValueError, match=f"config.yaml: attn._target_: .*{__name__}.{other}"):
            config_file.check_trust({"attn._target_": f"{__name__}.{other}"}, "config.yaml", __name__)


def test_every_target_of_the_suite_passes(tmp_path):
    for words in (["task=listops", "attn=cur_abs"], ["experiment=psf_adding"], ["experiment=mega_image"]):
        made = compose(Experiment, [*words, "budget=smoke"])
        choices, path = made.choices(made.task_data().source.provenance), tmp_path / "config.yaml"
        path.write_text(yaml.safe_dump(choices))
        assert config_file.read(path) == choices
        assert config_file.fingerprint(config_file.read(path)) == config_file.fingerprint(choices)
        config_file.check_trust(choices, path)
    files = [path for path in CONF.rglob("*.yaml") if path.parent.name != "logger"]
    named = {word for path in files for word in re.findall(r"_target_: ([\w.]+)", path.read_text())}
    assert len(named) > 40
    config_file.check_trust({f"{i}._target_": word for i, word in enumerate(named)}, tmp_path)


LAUGHS = "a0: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 30))
BAD = {
    "it has an alias": LAUGHS,
    "it has more than 131,072 bytes": "a: 1\n" * 10**6,
    "it is not a mapping": "- a\n- b\n",
    "it is not a mapping(?#empty)": "",
    "while parsing a flow sequence": "a: [1, 2",
    "recursion": "a: " + "[" * 5_000,
    "could not determine a constructor for the tag .*python": "a: !!python/object/apply:os.system [echo]",
    r"not a plain value(?#interpolation)": "a: ${oc.env:HOME}",
    r"not a plain value(?#brackets)": "attn[_target_]: os.system",
    r"not a plain value(?#date)": "a: 2020-01-01",
    "day is out of range": "a: 2020-02-31",
    "unacceptable character": b"\xff\xfe\x00",
    "invalid start byte": b"a: \x80",
    "special characters are not allowed": b"a: \x00\x01",
    "it is a folder": None,
    "a key is not text": "1: 2\nattn.count: 3\n",
    "a key is not text(?#inside)": "a: [{1: 2}]\n",
    "model.dim is in a section that has a value itself": "model: 3\nmodel.dim: 4\n",
    "a.b.c.d is in a section": "a.b: 3\na.b.c.d: 4\n",
    "a is in a section": "a: {b: 3}\n",
    "a: 9999.* is not a plain value": f"a: {'9' * 4000}\n",
    "Exceeds the limit": f"a: {'9' * 5000}\n",
}


@pytest.mark.parametrize("reason", BAD)
def test_a_file_that_is_no_configuration_is_told_soon(tmp_path, reason):
    path = tmp_path / "config.yaml"
    if BAD[reason] is None:
        path.mkdir()
    else:
        path.write_bytes(BAD[reason].encode() if isinstance(BAD[reason], str) else BAD[reason])
    with pytest.raises(ValueError, match=rf"config.yaml is not the configuration of a run \(.*{reason}") as caught:
        config_file.read(path)
    told = str(caught.value)
    assert "delete its folder to run that seed again" in told and "\n" not in told and len(told) < 400


@pytest.fixture(scope="module")
def runs(tmp_path_factory, data_root):
    folder = tmp_path_factory.mktemp("choices")
    for name in ("sdpa", f"{__name__}.Mine"):
        train.__wrapped__(config(name, f"runs={folder}", "seeds=[0]"))
    return folder


def entries(home, out):
    """Each entry point that reads a run, and its words."""
    yield show, [f"run={home}", f"out={out}"]
    yield transfer, [f"run={home}", "attn=mean", f"runs={out}", "examples=4", "spectrum=0"]
    yield dropin, [f"run={home}", "sources=[]", f"runs={out}", "cost=0", "n=2", "counts=[4]", "candidates=mean"]


def test_no_entry_point_runs_what_a_folder_names(runs, tmp_path, monkeypatch, capfd):
    home = tmp_path / "seed-0"
    home.mkdir()
    made = config_file.read(runs / "paper-smoke" / "listops" / "sdpa" / "seed-0" / "config.yaml")
    trace = tmp_path / "it ran"
    made |= {"attn._target_": "setuptools._distutils.spawn.spawn", "attn._args_": [["touch", str(trace)]]}
    (home / "config.yaml").write_text(yaml.safe_dump(made))
    done = record.load(runs / "paper-smoke" / "listops" / "sdpa" / "seed-0" / "record.json")
    record.save(replace(done, fingerprint=config_file.fingerprint(made | {"seed": 0})), home)
    for entry, words in entries(home, tmp_path / "out"):
        stop, _ = run(entry, *words, patch=monkeypatch, capfd=capfd)
        assert stop.startswith(f"lra: {home}/config.yaml: attn._") and "\n" not in stop
    assert not trace.exists()


def test_a_mechanism_of_ones_own_is_shown_and_transferred_once_it_is_trusted(runs, tmp_path, monkeypatch, capfd):
    (home,) = (runs / "paper-smoke" / "listops").glob("Mine*/seed-0")
    for entry, words in [*entries(home, tmp_path)][:2]:
        stop, _ = run(entry, *words, patch=monkeypatch, capfd=capfd)
        assert f"attn._target_: {__name__}.Mine is not part of this suite" in stop and f"add trust={__name__}" in stop
        assert run(entry, *words, f"trust={__name__}", patch=monkeypatch, capfd=capfd)[0] is None
