"""Pictures: what is drawn is what the split holds."""

import numpy as np
import pytest
import torch
from conftest import run
from PIL import Image

from data_prep import show
from data_prep.listops import ListOps
from lra.data.store import Split


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
