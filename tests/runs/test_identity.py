"""Fingerprints: every choice decides, and a folder belongs to the choices of its record."""

from dataclasses import replace

import pytest
import yaml
from conftest import config
from support.records import RECORD

from lra.config.compose import compose
from lra.config.experiment import Experiment
from lra.runs import config_file, record
from lra.runs.restore import check_data, configuration
from lra.runs.run_dir import RunDir, check_choices


@pytest.mark.parametrize("attn", ["cur_abs", "mega", "psf"])
def test_every_other_value_is_another_run(attn):
    made = config(attn).choices({"name": "listops"})
    changed = [made | {key: "another"} for key in made] + [{k: v for k, v in made.items() if k != key} for key in made]
    prints = {config_file.fingerprint(choices) for choices in [made, *changed]}
    assert len(prints) == 2 * len(made) + 1 > 80
    assert all(config_file.difference(made, choices) for choices in changed) and not config_file.difference(
        made, dict(made)
    )


def test_values_of_two_types_are_two_runs():
    assert len({config_file.fingerprint({"optim.x": value}) for value in (0, 0.0, False, None, "0")}) == 5


@pytest.fixture
def finished(tmp_path):
    """The folder of a finished run and its choices."""
    home = tmp_path / "cur_abs" / "seed-0"
    home.mkdir(parents=True)
    made = compose(Experiment, ["task=listops", "attn=cur_abs", "data.pad=none"])
    choices = made.choices(made.task_data().source.provenance)
    (home / "config.yaml").write_text(yaml.safe_dump(choices))
    record.save(replace(RECORD, fingerprint=config_file.fingerprint(choices | {"seed": 0})), home)
    return home, choices


def test_a_run_is_opened_built_and_not_run_again(finished):
    home, choices = finished
    run = RunDir.read(home)
    restored = configuration(run, "data")
    assert restored.attn.get("pinv").path == "lra.ops.pinv.cubic" and restored.task.display == "expression"
    assert sum(p.numel() for p in restored.meta_model.parameters()) == 209802
    check_data(run, {key.partition(".")[2]: value for key, value in choices.items() if key.startswith("provenance.")})
    assert run.choices == choices and run.record.status == "done"
    check_choices(home, choices)
    with pytest.raises(ValueError, match=r"another configuration \(attn.count: 64 -> 8\); start a new study"):
        check_choices(home, choices | {"attn.count": 8})


def test_a_configuration_that_was_changed_is_not_that_of_its_record(finished):
    home, choices = finished
    (home / "config.yaml").write_text(yaml.safe_dump(choices | {"attn.count": 65}))
    record.save(record.load(home / record.NAME), home)
    with pytest.raises(ValueError, match=r"config.yaml and record.json are not of one run"):
        RunDir.read(home)
