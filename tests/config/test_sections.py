"""Option types and ranges, custom mechanism classes, labels and fingerprints of experiments."""

import csv
import math
import re
from pathlib import Path
from typing import Annotated, Literal

import pytest
from conftest import assert_error, config, experiment, slow
from hydra.errors import HydraException
from pydantic import ValidationError

from lra.attention.base import Attention, Sizes
from lra.board.costs import LENGTH_PER_BUDGET
from lra.config.base import typed
from lra.config.compose import compose
from lra.config.errors import USER_ERRORS, explain
from lra.config.experiment import Experiment
from lra.config.recipes import choices
from lra.config.schema import Name
from lra.options import Positive, Range, require_range
from lra.runs import config_file
from lra.runs.run_dir import RunDir
from lra.sweep.options import SweepOptions


def test_default_configuration_fingerprint_is_stable():
    """The fingerprint covers the options and the provenance of the data; published runs are identified by it."""
    actual = experiment("task=listops", "attn=cur_abs", "data.pad=none")
    choices = actual.choices(actual.task_data().source.provenance)
    assert config_file.fingerprint(choices | {"seed": 0}) == "9b1a53037b6d1a47"


CONVERTED = [
    (float, 1, 1.0), (bool, "off", False), (str, 2026, "2026"), (int | None, None, None), (int | float, 2, 2),
    (int | str, "2", "2"), (bool | Literal["reduce-overhead"], "reduce-overhead", "reduce-overhead"),
    (Path, 2026, Path("2026")), (dict[str, int], {"a": 1}, {"a": 1}),
]  # fmt: skip


@pytest.mark.parametrize("kind, value, result", CONVERTED, ids=str)
def test_value_is_converted_to_option_type(kind, value, result):
    actual = typed(kind, value, "x")
    assert actual == result and type(actual) is type(result)


@pytest.mark.parametrize(
    "kind, values",
    [
        (int, ["3", True, 1.0]), (float, ["abc", math.nan]), (bool, [2]), (str, [[1], None]),
        (bool | Literal["reduce-overhead"], ["fast"]), (Literal[1, 2], ["2", 3]), (Path, [" "]),
        (Annotated[float, Range(above=0)], [0]), (list[int], [3]), (list[Positive], [[1, 0]]),
        (dict[str, int], [{"a": "1"}]), (Name, ["../../x", "/abs", "", None, "a "]),
    ],
    ids=str,
)  # fmt: skip
def test_value_of_wrong_type_raises(kind, values):
    for value in values:
        assert_error(r"^x(\.\w+)? must be .+, not .+$", typed, kind, value, "x")


# The range is closed, half open, or open at one end.
OUTSIDE = {
    "from 1 to 8, not 9": (9, Range(1, 8)),
    "at least 0 and below 1, not 1": (1, Range(0, below=1)),
    "at most 3, not 4": (4, Range(most=3)),
    "from 0 to 1, not nan": (math.nan, Range(0, 1)),
}


@pytest.mark.parametrize("message", OUTSIDE)
def test_value_outside_range_raises(message):
    value, bounds = OUTSIDE[message]
    assert_error(f"^x must be {message}$", require_range, "x", value, bounds, "")


@pytest.mark.parametrize(
    "name, option, value", [("bigbird", "block", 1.5), ("cur_abs", "score", "best"), ("lru", "r_max", 0.0)]
)
def test_command_line_and_python_raise_the_same_error(name, option, value):
    sizes = Sizes(heads=2, head_dim=4, value_dim=4, length=64)
    from_command_line = assert_error(".", config, name, f"attn.{option}={value}")
    from_python = assert_error(".", config(name).attn.function, sizes, **{option: value})
    assert from_command_line == f"attn.{from_python}"


class Own(Attention):
    """A user's mechanism with plain, quoted and missing annotations."""

    def __init__(self, sizes, *, rate: float = 1, mode: "Literal['a', 'b']" = "a", **more):
        super().__init__(sizes)
        self.rate, self.mode = rate, mode

    def forward(self, q, k, v, mask=None):
        return v


class Inner(Own):
    def __init__(self, sizes, *, free=None, rate: float | None = 1, unknown: "NoSuchName" = 1, **others):
        super().__init__(sizes, rate=rate or 1, **others)
        self.free, self.unknown = free, unknown


def test_custom_class_options_follow_annotations():
    actual = config(f"{__name__}.Own", "+attn.rate=2", "+attn.mode=b").attn.options
    assert actual["rate"] == 2.0 and type(actual["rate"]) is float and actual["mode"] == "b"
    errors = {"rate=fast": "attn.rate must be a number, not 'fast'", "mode=c": "attn.mode must be one of a, b, not 'c'"}
    errors |= {"speed=1": "attn.speed: no such key; attn has dropout, mode, "}
    for override, message in errors.items():
        assert_error(message, config, f"{__name__}.Own", f"+attn.{override}")
    actual = config(f"{__name__}.Inner", "+attn.free=[1,{a: no}]", "+attn.unknown=x", "+attn.rate=3")
    assert actual.attn.get("free") == [1, {"a": "no"}]
    # An annotation that cannot be resolved leaves the value unchecked.
    assert actual.attn.get("unknown") == "x"
    assert type(actual.classifier().blocks[0].mixer.attention).__name__ == "Inner"
    assert Inner(Sizes(heads=1, head_dim=4, value_dim=4, length=8), rate=None).rate == 1


def test_empty_run_directory_accepts_another_configuration(tmp_path):
    def start(choices):
        with RunDir(path=tmp_path, choices=choices, seed=0).open() as is_open:
            assert is_open
            return (tmp_path / "config.yaml").read_text()

    assert start({"x": 1}) == "x: 1\n" and start({"x": 2}) == "x: 2\n" and not list(tmp_path.iterdir())


def test_options_are_frozen_and_replace_validates_and_rebuilds_the_meta_model():
    actual = config("sdpa", "model.dim=32")
    wider = actual.replace(model=actual.model.replace(dim=64))
    assert actual.meta_model is actual.replace(data=actual.data.replace(pad="batch")).meta_model
    assert actual.meta_model.encoded_width == 32 and wider.meta_model.encoded_width == 64
    with pytest.raises(ValidationError, match="frozen"):
        actual.optim.lr = 1.0
    assert_error(r"^optim\.eval_every must divide optim\.steps 7, got 3: add optim.eval", actual.optim.replace, steps=7)


TABLE = csv.DictReader(Path(__file__).with_name("choices.csv").read_text().splitlines())
ROWS = [slow(row) if number % 10 else row for number, row in enumerate(TABLE)]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["words"])
def test_label_and_fingerprint_match_table(row):
    actual = experiment(*row["words"].split())
    assert (actual.label, config_file.fingerprint(actual.choices({}))) == (row["label"], row["fingerprint"])


LABELS = {"": "s4d_legs", "attn.states=4": "s4d_legs", "attn.states=64": "s4d_legs-states=64"}
LABELS |= {"attn=s4d_lin attn.states=8 attn.init=inv": "s4d_lin-init=inv-states=8"}


@pytest.mark.parametrize("words", LABELS)
def test_label_has_options_that_differ_from_the_experiment(words):
    assert experiment("experiment=s4d_listops", *words.split()).label == LABELS[words]


def test_board_experiments_set_board_protocol_and_are_in_the_sweep():
    names = [name for name in choices("experiment") if name.startswith("board_")]
    for name in names:
        actual = experiment(f"experiment={name}", "attn=cur_abs")
        assert (actual.study, actual.budget, actual.protocol.name) == ("board", "board", "clean"), name
        assert f"board_{actual.task.name}" == name and actual.model.dropout == 0 and actual.optim.own_lr_max == 1e-3
        # The benchmark of the board has the same token budget.
        assert LENGTH_PER_BUDGET * actual.attn.get("count") == actual.task.length
    assert sorted(compose(SweepOptions, ["sweep=board"]).tasks) == [task for task in names if task != "board_listops"]


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


# Text in RECIPES -> replacement -> experiment -> part of the message.
MISTAKES = {
    "another family": ("mine_long_text", "s5_text", "listops", "must be mine_<task> or base/mine, not s5_text"),
    "two sections": ("mine_long_text", "mine_listops", "listops", "two sections are mine_listops; rename one of them"),
    "file and section": ("mine_long_text", "mine_single", "listops", "mine_single is the name of .*single.yaml too"),
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
