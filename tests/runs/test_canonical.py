"""Fingerprints: a move or an option that is added later changes none of them, another value or class does."""

import ast
from collections import Counter
from pathlib import Path

import pytest
import yaml
from conftest import config

from lra.config import CONF
from lra.config.compose import compose
from lra.config.experiment import Experiment
from lra.runs import canonical, config_file, identity, record
from lra.runs.folder import settle
from lra.runs.open import finished, open_run
from lra.train.plan import resolve

EARLIER = Path(__file__).with_name("earlier_config.yaml")  # of a run whose record has the fingerprint below
EARLIER_FINGERPRINT = "7ad317364123cc0b"


def choices(*overrides, attn="cur_abs"):
    return config(attn, *overrides).choices({"name": "listops"})


def test_a_move_changes_nothing():
    made = choices()
    moved = {
        "attn._target_": "lra.mechanisms.cur.CUR",
        "attn.pinv._target_": "lra.cubic",
        "source._target_": "lra.ListOps",
    }
    assert made.keys() >= moved.keys() and all(made[key] != path for key, path in moved.items())
    assert identity.fingerprint(made | moved) == identity.fingerprint(made)
    assert not identity.difference(made | moved, made)


@pytest.mark.parametrize(
    "option, key, value",
    [("CUR.novel", "attn.novel", 3), ("cubic.novel", "attn.pinv.novel", "exact"), ("optim.novel", "optim.novel", None)],
)
def test_an_option_that_was_added_later_changes_nothing_while_it_has_its_default(option, key, value, monkeypatch):
    """Of a constructor, of a nested call and of a section of train.yaml: one line of WITHOUT each."""
    made = choices()
    before = identity.fingerprint(made)
    assert identity.fingerprint(made | {key: value}) != before
    monkeypatch.setitem(canonical.WITHOUT, option, value)
    assert identity.fingerprint(made) == before == identity.fingerprint(made | {key: value})
    assert identity.fingerprint(made | {key: "other"}) != before
    assert identity.difference(made, made | {key: "other"}) == f"{key}: None -> other"
    other = choices(attn="softmax")
    if not key.startswith("optim"):  # the option of one class is none of another's
        assert identity.fingerprint(other | {key: value}) != identity.fingerprint(other)


def test_a_default_is_of_its_type(monkeypatch):
    monkeypatch.setitem(canonical.WITHOUT, "optim.novel", 0)
    for value, left_out in ((0, True), (False, False), (0.0, False), (None, False)):
        assert ("optim.novel" not in canonical.canonical({"optim.novel": value})) is left_out


@pytest.mark.parametrize("attn", ["cur_abs", "mega", "psf"])
def test_every_other_value_is_another_run(attn):
    made = choices(attn=attn)
    prints = {identity.fingerprint(made | {key: "another"}) for key in made}
    assert len(prints) == len(made) > 40 and identity.fingerprint(made) not in prints
    left_out = made.keys() - canonical.canonical(made).keys()  # without any of these it is the same run
    lacking = {key: identity.fingerprint({k: v for k, v in made.items() if k != key}) for key in made}
    assert {lacking[key] for key in left_out} == {identity.fingerprint(made)}
    assert len(set(lacking.values()) - prints) == len(made) - len(left_out) + 1


def test_classes_of_one_name_in_two_packages_are_two_runs():
    paths = ["mine.Foo", "yours.Foo", "mine.inner.Foo", "lra.attention.Foo", "lrasomething.Foo"]
    made = [choices() | {"attn._target_": path} for path in paths]
    assert len({identity.fingerprint(one) for one in made}) == len(made)
    assert identity.difference(*made[:2]) == "attn._target_: mine.Foo -> yours.Foo"


def test_what_a_run_may_name_has_a_bare_name_of_its_own():
    """Else two configurations would be one."""
    named = Counter()
    for folder in ("lra/attention", "lra/model", "lra/ops", "lra/studies", "data_prep"):
        for path in (CONF.parent / folder).rglob("*.py"):
            module = ".".join(path.relative_to(CONF.parent).with_suffix("").parts)
            for node in ast.parse(path.read_text()).body:
                if isinstance(node, ast.ClassDef | ast.FunctionDef):
                    try:
                        config_file.check_trust({"_target_": f"{module}.{node.name}"}, path)
                    except ValueError:
                        continue
                    named[node.name] += 1
    assert len(named) > 60 and {name for name, times in named.items() if times > 1} == set()


# A failure here means that everybody's runs are refused from now on. An option that was added, or taken away, needs
# a line in WITHOUT of lra/runs/canonical.py; only another default, class or protocol is another run.
FINGERPRINTS = {
    "task=listops attn=cur_abs": "4536431d7d7c0835",
    "task=text attn=nystrom protocol=clean": "82bcdb2884f5f8ff",
    "experiment=mega_listops": "6918ce9eb2ba3987",
    "experiment=psf_pathfinder": "8bc47ea26da89492",
    "task=image attn=s4d_legs": "10f6208b83904111",
    "task=text attn=s5 block=glu": "02be7f675a00dd93",
}


@pytest.mark.parametrize("overrides", FINGERPRINTS)
def test_fingerprints_stay(overrides):
    made = resolve(compose(Experiment, overrides.split())).experiment.choices({})
    assert identity.fingerprint(made | {"seed": 0}) == FINGERPRINTS[overrides]


@pytest.fixture
def earlier(tmp_path):
    """The folder of a run from before there was a canonical form; a function of its path has moved since."""
    home = tmp_path / "cur_abs" / "seed-0"
    home.mkdir(parents=True)
    (home / "config.yaml").write_bytes(EARLIER.read_bytes())
    made = dict.fromkeys(("git", "best_step", "step_ms", "peak_bytes"), None) | {"metric": "accuracy", "status": "done"}
    made |= dict.fromkeys(("params", "n_val", "n_test", "steps", "seed"), 0) | {"constant_baseline": 0.0}
    made |= {"study": "s", "task": "listops", "protocol": "paper", "budget": "paper", "label": "cur_abs", "device": "x"}
    record.save(record.RunRecord(**made, val=1.0, test=2.0, fingerprint=EARLIER_FINGERPRINT), home)
    return home


def test_a_run_from_before_is_opened_built_and_not_run_again(earlier):
    old = yaml.safe_load(EARLIER.read_text())
    assert old["attn.pinv._target_"] == "lra.linalg.cubic"
    (run,) = finished(earlier.parent)
    restored = run.configuration("data")
    assert restored.attn.get("pinv").path == "lra.ops.pinv.cubic" and restored.task.display == "expression"
    assert sum(p.numel() for p in restored.sketch.parameters()) == 209802
    made = compose(Experiment, ["task=listops", "attn=cur_abs", "data.pad=none"])
    data = made.task_data()
    today = made.choices(data.source.provenance)
    run.check_data(data.source.provenance)
    assert settle(earlier, today) == old != today
    assert record.load(earlier / record.NAME, identity.fingerprints(old | {"seed": 0})) == run.record
    with pytest.raises(ValueError, match=r"another configuration \(attn.count: 64 -> 8\); start a new study"):
        settle(earlier, today | {"attn.count": 8})


def test_a_configuration_that_was_changed_is_not_that_of_its_record(earlier):
    (earlier / "config.yaml").write_text(EARLIER.read_text().replace("attn.count: 64", "attn.count: 65"))
    with pytest.raises(ValueError, match=r"config.yaml and record.json are not of one run"):
        open_run(earlier)


def test_only_names_that_conf_has_are_found_again():
    given = {"a._target_": "lra.old.CUR", "b._target_": "mine.CUR", "c._target_": "lra.old.Nothing", "d": "lra.old.CUR"}
    assert config_file.present(given) == given | {"a._target_": "lra.attention.cur.CUR"}


def test_what_an_earlier_version_lacks_is_completed(monkeypatch):
    monkeypatch.setattr(canonical, "WITHOUT", {"model.new": 3, "CUR.extra": "no", "SOFT.extra": "yes", "optim.x": 1})
    old = {"model.dim": 64, "attn._target_": "lra.attention.cur.CUR", "attn.count": 8}
    assert canonical.completed(old) == old | {"model.new": 3, "attn.extra": "no"}
    assert canonical.completed(old | {"attn.extra": "more"})["attn.extra"] == "more"
