"""lra data, its baselines and its pictures: every task, every record, every drawing."""

import hashlib
import re
from functools import partial

import numpy as np
import pytest
import torch
from conftest import config, printed, run
from PIL import Image

from data_prep import __main__ as command
from data_prep import baselines, show
from data_prep.__main__ import PrepareOptions
from data_prep.adding import Adding
from data_prep.listops import ListOps
from data_prep.recall import Recall
from lra.config.compose import compose
from lra.config.experiment import Experiment
from lra.data.store import Split
from lra.runs import record
from lra.train.__main__ import train

tell = baselines.baselines.__wrapped__


@pytest.fixture
def run_command(tmp_path, monkeypatch, capfd):
    """The command over an empty data folder: exit message, None where it ends well, stdout and stderr."""
    monkeypatch.setenv("LRA_DATA", str(tmp_path / "data"))
    return partial(printed, command.prepare, patch=monkeypatch, capfd=capfd)


def blocks(out):
    """Lines of each task."""
    parts = re.split(r"^(?=\S)", out, flags=re.M)[1:]
    return {part.split("\n")[0]: part for part in parts}


def test_list_names_every_task_and_how_to_get_it(run_command, tmp_path):
    stop, out, _ = run_command()
    assert stop is None and list(blocks(out)) == command.TASKS and not (tmp_path / "data").exists()
    for text in blocks(out).values():
        assert "not prepared" in text or "nothing to prepare" in text
        assert "  source  " in text and "  licence  " in text
    assert "train 200,000, val 5,000, test 5,000" in blocks(out)["adding"]
    assert "lra data task=listops" in blocks(out)["listops"]
    assert "source.dog=<path> source.donkey=<path>" in blocks(out)["genome"]


def test_list_knows_what_is_prepared_and_what_is_damaged(run_command, tmp_path, monkeypatch):
    monkeypatch.setattr(command, "TASKS", ["adding", "listops"])
    run_command("task=listops", "budget=smoke")
    (meta,) = (tmp_path / "data").glob("*/meta.json")
    sha = hashlib.sha256(meta.read_bytes()).hexdigest()[:12]
    line = f"train 256, val 64, test 64; 0.0 MB; sha256 {sha}; {meta.parent}"
    assert f"  prepared      {line}" in blocks(run_command("budget=smoke")[1])["listops"]
    paper = blocks(run_command()[1])["listops"]
    assert "not prepared" in paper and f"  other choices {line}" in paper
    (meta.parent / "val.tokens.bin").write_bytes(b"")
    assert "is damaged: 0 bytes instead of" in blocks(run_command("budget=smoke")[1])["listops"]


def test_all_prepares_what_can_be_made_and_leaves_out_what_its_user_must_bring(run_command, tmp_path, monkeypatch):
    monkeypatch.setattr(command, "TASKS", ["adding", "genome", "listops", "temporal_order"])
    stop, _, err = run_command("task=all", "budget=smoke")
    assert stop is None and len(list((tmp_path / "data").glob("*/"))) == 1
    assert "genome: left out" in err and "adding_N128: train 256" in err and "listops: train 256" in err
    assert "every checksum is correct" in run_command("task=all", "budget=smoke", "verify=true")[2]


def test_all_goes_on_after_a_failure_and_ends_with_it(run_command, tmp_path, monkeypatch):
    monkeypatch.setattr(command, "TASKS", ["adding", "listops", "temporal_order"])
    monkeypatch.setattr(ListOps, "splits", lambda *_, **__: (_ for _ in ()).throw(OSError(28, "No space left")))
    stop, _, err = run_command("task=all", "budget=smoke")
    assert "1 of 3 tasks failed: listops" in stop and "No space left" in stop and "\n" not in stop
    assert "listops: failed" in err and "temporal_order_N128: train 256" in err


def test_synthetic_data_has_nothing_to_store(run_command, tmp_path):
    stop, _, err = run_command("task=adding", "task.length=16384")
    assert stop is None and "adding_N16384: train 200,000, val 5,000, test 5,000 examples, generated on the fly" in err
    with pytest.raises(ValueError, match="adding is generated on the fly; there is nothing to store"):
        Adding().splits(workers=1, progress=None)
    assert not (tmp_path / "data").exists()


def test_the_floor_of_recall_is_any_value_of_the_row():
    assert [Recall(pairs=pairs).floor for pairs in (1, 2, 8)] == [100.0, 50.0, 12.5] and Adding().floor is None


def test_a_task_has_its_floors_and_a_record_those_that_are_there(data_root, tmp_path, monkeypatch, capsys):
    words = ["task=recall", "budget=smoke", f"data.root={tmp_path}"]
    train_study = lambda study: train.__wrapped__(
        config("none", *words, f"runs={tmp_path}", f"study={study}", "seeds=[0]")
    )
    train_study("before")
    monkeypatch.setattr("lra.data.bag_of_tokens.EPOCHS", 2)
    tell(compose(PrepareOptions, words))
    head, line = capsys.readouterr().out.splitlines()
    constant, analytic, floor, bag = map(float, line.split()[1:])
    assert head.split() == list(baselines.HEAD) and analytic == 25 and floor == max(constant, 25)
    monkeypatch.setattr("lra.data.bag_of_tokens.fit", lambda *_, **__: pytest.fail("it is fitted once"))
    tell(compose(PrepareOptions, words))
    assert capsys.readouterr().out.splitlines() == [head, line]
    train_study("after")
    before, after = (record.load(next(tmp_path.glob(f"{study}/**/record.json"))) for study in ("before", "after"))
    assert before.floor == after.floor == floor and before.bag is None and after.bag == pytest.approx(bag, abs=0.005)
    assert before.fingerprint == after.fingerprint and before.test == after.test
    assert after.constant_baseline == pytest.approx(constant, abs=0.005)


def test_real_features_have_no_bag_and_no_task_is_refused(data_root, tmp_path, capsys):
    tell(compose(PrepareOptions, ["task=adding", "budget=smoke", f"data.root={tmp_path}"]))
    assert capsys.readouterr().out.splitlines()[1].split()[2::2] == ["-", "-"]
    with pytest.raises(ValueError, match=r"task must be one of all, adding"):
        tell(compose(PrepareOptions, []))


@pytest.mark.parametrize("name", ["board_recall", "psf_listops", "spt_listops"])
def test_the_data_of_an_experiment_are_those_of_its_training(name):
    attn = ["attn=none"] * name.startswith("board")
    data, training = compose(PrepareOptions, [f"experiment={name}"]), compose(Experiment, [f"experiment={name}", *attn])
    assert data.task == training.task and data.source == training.source
    assert data.data_overrides == training.data_overrides
    assert compose(PrepareOptions, training.data_overrides).source == data.source


class Named(ListOps):
    """A source of which only the names of its classes and letters are used."""

    alphabet = tuple("_abc")
    classes = ("cat", "dog")


def drawn(rows, labels, display, *, count=16, towers=1, limit=10**6):
    """The picture of examples with these rows and labels."""
    offsets = torch.tensor([0, *np.cumsum([len(row) for row in rows])])
    split = Split(torch.from_numpy(np.concatenate(rows)), offsets, torch.tensor(labels), towers)
    return np.asarray(show.picture(Named(), split, display=display, count=count, limit=limit))


def part_of(picture, panel):
    """Whether a panel or a written text stands somewhere in the picture, pixel for pixel."""
    image = np.asarray(show.draw_text(panel) if isinstance(panel, str) else panel)
    views = np.lib.stride_tricks.sliding_window_view(picture[..., 0], image.shape[:2])
    return bool((views == image[..., 0]).all((-1, -2)).any())


def test_pixels_are_the_grey_levels_row_after_row():
    rng = np.random.default_rng(0)
    rows = [rng.integers(0, 256, 64, dtype=np.uint8) for _ in range(2)]
    panels = [np.asarray(show.pixels(row, None)) for row in rows]
    for row, panel in zip(rows, panels, strict=True):
        scale = len(panel) // 8
        assert panel.shape == (8 * scale, 8 * scale, 3) and scale > 1
        assert (panel[scale // 2 :: scale, scale // 2 :: scale, 0] == row.reshape(8, 8)).all()
    picture = drawn(rows, [0, 1], "pixels")
    assert all(part_of(picture, panel) for panel in (*panels, "0: cat", "1: dog"))
    assert not part_of(drawn(rows, [0, 1], "pixels", count=1), panels[1])


def test_expressions_are_written_in_the_alphabet():
    for source, ids, text in ((Named(), [1, 2, 3], "abc"), (ListOps(), [11, 3, 10, 15], "[MIN 2 9 ]")):
        got = np.asarray(show.expression(np.array(ids, np.uint8), source))
        assert (got == np.asarray(show.draw_text(text))).all() and not (got == 255).all()


def test_pairs_are_two_texts_of_bytes_and_long_ones_say_how_long():
    one, other = (np.frombuffer(text, np.uint8) for text in (b"The first\n<br>", b"and the second"))
    picture = drawn([one, other], [1], "bytes", towers=2)
    assert all(part_of(picture, text) for text in ("The first·<br>", "and the second", "0: dog"))
    long = show.draw_text("word " * 1000, "5,000 bytes")
    assert long.height == show.draw_text("\n".join(["x"])).height * show.LINES
    assert part_of(drawn([one], [0], "bytes", limit=3), "The")


def test_series_has_a_ring_at_each_mark():
    row = np.zeros((100, 2), np.float32)
    row[:, 0] = np.linspace(-1, 1, 100)
    row[[20, 70], 1] = 1
    panel = np.asarray(show.series(row, None)).astype(int)
    red = (panel[..., 0] > 180) & (panel[..., 1] < 80)
    lines = np.flatnonzero(red.sum(0) > 100)
    expected = 4 + (show.CURVE[0] - 9) * np.array([20, 70]) / 99
    assert len(lines) == 2 and np.abs(lines - expected).max() <= 1
    show.series(np.zeros((5, 2), np.float32), None)  # a constant is no division by zero


@pytest.mark.parametrize("task", ["listops", "adding", "temporal_order", "pathfinder"])
def test_command_writes_a_png(task, data_root, tmp_path, monkeypatch, capfd):
    words = [f"task={task}", "budget=smoke", "count=3", f"out={tmp_path / 'made.png'}"]
    stop, said = run(show.show, *words, patch=monkeypatch, capfd=capfd)
    assert stop is None and "3 examples of train" in said
    with Image.open(tmp_path / "made.png") as made:
        assert made.format == "PNG" and min(made.size) > 50
