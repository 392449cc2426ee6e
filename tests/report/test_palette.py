"""Colours that differ in grey and for colour-blind readers, and looks of which no two are the same."""

import itertools

import numpy as np
import pytest
from matplotlib.figure import Figure

from lra.config import CONF
from lra.report import figures, plots
from lra.report.palette import COLOURS, GROUND, INK, Palette

# Machado et al. 2009, "A physiologically-based model for simulation of color vision deficiency", severity 1.0.
SIGHT = {
    "normal": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
}
XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])  # of linear sRGB, D65


def lab(colours, sight="normal"):
    """CIELAB of colours as a person with this sight sees them: lightness, then two hues."""
    rgb = np.array([[int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)] for colour in colours])
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    seen = (linear @ np.array(SIGHT[sight]).T).clip(0, 1) @ XYZ.T / XYZ.sum(1)
    f = np.where(seen > (6 / 29) ** 3, np.cbrt(seen), seen / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.stack([116 * f[:, 1] - 16, 500 * (f[:, 0] - f[:, 1]), 200 * (f[:, 1] - f[:, 2])], 1)


def closest(points):
    return min(np.linalg.norm(a - b) for a, b in itertools.combinations(points, 2))


def test_the_formula_knows_white_black_and_a_pair_that_a_deuteranope_confuses():
    assert lab(["#ffffff", "#000000"]) == pytest.approx(np.array([[100, 0, 0], [0, 0, 0]]), abs=0.05)
    pair = ["#c44e52", "#8a7a2c"]  # red and olive
    assert closest(lab(pair)) > 50 and closest(lab(pair, "deuteranopia")) < 20


@pytest.mark.parametrize("ground", [0, 1])
def test_colours_differ_for_everyone_and_in_grey(ground):
    """A difference of 2.3 is just noticed; the colours differ by ten times that, their greys by twice."""
    colours = [pair[ground] for pair in COLOURS]
    assert all(closest(lab(colours, sight)) > 23 for sight in SIGHT)
    assert closest(lab(colours)[:, :1]) > 4.6
    assert closest(lab([*(light for light, _ in COLOURS), INK, GROUND])[:, :1]) > 4.6


@pytest.mark.parametrize("look", [Palette.line, Palette.marker])
def test_no_two_labels_of_a_picture_have_one_look(look):
    labels = [path.stem for path in (CONF / "attn").glob("*.yaml")]
    palette = Palette(labels)
    assert len({str(look(palette, label)) for label in labels}) == len(labels) > 3 * len(COLOURS)
    assert len({(palette.colour(label), palette.dash(label)) for label in labels}) == len(labels)


def test_fonts_of_a_file_are_truetype(tmp_path):
    curves = [plots.Curve("a", [1, 2], [1.0, 2.0], [1.0, 2.0], [1.0, 2.0], 1)]
    figure = figures.charts({"listops": curves}, plots.learning, Palette("a"), figures.COLUMN)
    figures.write(figure, tmp_path / "x", ["pdf"])
    written = (tmp_path / "x.pdf").read_bytes()
    assert b"/FontFile2" in written and b"/Type3" not in written
    box = written[written.index(b"/MediaBox") :].split(b"]")[0].split()
    assert float(box[-2]) == pytest.approx(72 * figures.COLUMN)
    figures.write(Figure(), tmp_path / "y", ("pdf",))
    assert b"/Type3" not in (tmp_path / "y.pdf").read_bytes()
