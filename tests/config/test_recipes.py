"""Files with several experiments: names, equality with files of one experiment, and messages about mistakes."""

import re

import pytest
from hydra.errors import HydraException

from lra.config.compose import compose
from lra.config.errors import USER_ERRORS, explain
from lra.config.experiment import Experiment
from lra.config.recipes import choices

RECIPES = """
# The shared part.
base/mine:
  defaults: [override /attn: mean]
  model: { dim: 32 }
  study: mine

mine_listops: # a first line with a comment
  defaults: [base/mine, override /task: listops, _self_]
  budget: smoke

mine_long_text:
  defaults: [mine_listops, override /task: text, _self_]
  optim: { lr: 1e-2 }
"""


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "experiment/recipes"
    folder.mkdir(parents=True)
    return folder


def read(folder, name):
    """Compose an experiment of the files in ``folder``."""
    return compose(Experiment, [f"hydra.searchpath=[recipes://{folder}]", f"experiment={name}"])


def test_sections_inherit_and_compose_like_files(folder):
    (folder / "mine.yaml").write_text(RECIPES)
    options = read(folder, "mine_long_text")
    actual = (options.task.name, options.label, options.model.dim, options.budget, options.optim.lr, options.study)
    assert actual == ("text", "mean", 32, "smoke", 0.01, "mine")
    with pytest.raises(HydraException) as info:
        read(folder, "mine_other")
    assert "mega_text, mine_listops, mine_long_text, psf_adding" in explain(info.value)


def test_hydra_lists_the_same_experiments():
    """Hydra uses its own list for glob(*), tab completion and the message about an unknown name."""
    with pytest.raises(HydraException) as info:
        compose(Experiment, ["experiment=s5_listop"])
    message = "experiment=s5_listop: no such choice; did you mean experiment=s5_listops? experiment is one of "
    assert explain(info.value) == message + ", ".join(choices("experiment"))


# Text in RECIPES -> replacement -> experiment -> part of the message.
MISTAKES = {
    "another family": ("mine_long_text", "s5_text", "listops", "must be mine_<task> or base/mine, not s5_text"),
    "two sections": ("mine_long_text", "mine_listops", "listops", "two sections are mine_listops; rename one of them"),
    "file and section": ("mine_long_text", "mine_single", "listops", "mine_single is the name of .*single.yaml too"),
    "unknown task": ("/task: text", "/task: txt", "long_text", "task=txt: no such choice; did you mean task=text?"),
    "unknown key": ("optim: { lr", "optim: { rate", "long_text", "optim.rate: no such key; optim has batch"),
    "invalid yaml": ("lr: 1e-2 }", "lr: 1e-2 ", "long_text", "experiment/mine_long_text in .*line 15"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistake_in_a_recipe_is_named(mistake, folder, tmp_path):
    old, new, name, message = MISTAKES[mistake]
    (folder / "mine.yaml").write_text(RECIPES.replace(old, new))
    (tmp_path / "experiment/mine_single.yaml").write_text("# @package _global_\n")
    with pytest.raises(USER_ERRORS) as info:
        read(folder, f"mine_{name}")
    text = explain(info.value)
    assert re.search(message, text, re.DOTALL), text
