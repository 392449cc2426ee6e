"""Pathfinder against the original generator: numbers recorded by running it, and the OpenCV that it dilates with."""

import itertools
import json
import os
from pathlib import Path

import numpy as np
import pytest
from pathfinder_author import Author, counted, drawn
from pathfinder_reference import Pieces, dilate, disk, every_kind
from scipy.stats import chi2_contingency

from data_prep.pathfinder import paddles
from data_prep.pathfinder.curves import free_pixels
from data_prep.pathfinder.generator import Pathfinder, trace
from data_prep.pathfinder.paddles import BEYOND, SEEDS, SETTINGS, is_void, paddle_table
from data_prep.pathfinder.patches import stretch

ORIGINAL = json.loads((Path(__file__).parent / "pathfinder_original.json").read_text())
COUNTS = {32: 3000, 64: 300, 128: 300, 256: 300}


@pytest.mark.parametrize(
    "kind",  # the sizes of the benchmark's two tasks, 32 and 128, are not slow
    [pytest.param(kind, marks=[pytest.mark.slow] * kind.startswith(("64", "256"))) for kind in ORIGINAL["statistics"]],
)
def test_images_are_distributed_as_the_originals(kind):
    """Chi-squared tests of two samples, none significant at 1 percent over all statistics of a kind (Bonferroni)."""
    size, contour = map(int, kind.split())
    images, labels, made = trace(size=size, contour=contour, count=COUNTS[size], seed=11)
    assert abs(labels.mean() - 0.5) < 4 * 0.5 / len(labels) ** 0.5
    assert_alike(kind, list(drawn(images, labels, made)))


def assert_alike(kind, images):
    """images: statistics of each."""
    p = {}
    for name, recorded in ORIGINAL["statistics"][kind].items():
        if isinstance(recorded, dict):
            table = np.array([recorded["counts"], counted(recorded["edges"], [image[name] for image in images])])
            table = table[:, table.any(0)]
            p[name] = chi2_contingency(table).pvalue if table.shape[1] > 1 else 1.0
    assert len(p) == 17 and min(p.values()) > 0.01 / len(p), sorted(p.items(), key=lambda item: item[1])[:5]


@pytest.mark.parametrize("size", SETTINGS)
@pytest.mark.parametrize("role", range(3))
def test_greys_are_those_of_bytescale(size, role):
    """All 256 values of a layer beside a marker, by the original's operations in their order, on float64.

    line / 255 times the contrast unless that is 1, then (x - min) * (255 / (max - min)), clipped, plus a half.
    """
    contrast, edge = paddle_table(size, SETTINGS[size].margins[0]).contrast, slice(BEYOND, BEYOND + 17)
    layers = np.zeros((3, 17 + 2 * BEYOND, 17 + 2 * BEYOND), np.uint8)
    values = np.arange(17 * 17) % 256
    layers[role, edge, edge] = values.reshape(17, 17)
    layers[2, BEYOND, BEYOND] = 255  # there is always a marker
    for brightest in (0, 255):  # of distractors
        layers[1, BEYOND, BEYOND + 1] = brightest
        image, canvas = np.empty((17, 17), np.uint8), np.empty((17, 17))
        stretch(layers, contrast, canvas, image)
        whole = layers[:, edge, edge] / 255
        x = np.max([part * c if c != 1 else part for part, c in zip(whole, contrast, strict=True)], axis=0)
        scale = 255.0 / (x.max() - x.min())
        np.testing.assert_array_equal(image, (((x - x.min()) * scale).clip(0, 255) + 0.5).astype(np.uint8))


@every_kind
def test_void_orientations_are_the_originals(size, margin):
    runs = ORIGINAL["void orientations"][f"{size} {margin}"]
    expected = [degree for first, last in runs for degree in range(first, last + 1)]
    void = paddle_table(size, margin).seeds.void
    assert (np.flatnonzero(void) - SEEDS // 2).tolist() == expected
    assert not paddle_table(size, margin, void=False).seeds.void.any()


def test_an_image_without_void_orientations_holds_nearly_all_distractors_and_is_another_data_set(tmp_path):
    sizes = {"train": 60, "val": 1, "test": 1}
    plain, crowded = Pathfinder(**sizes), Pathfinder(**sizes, void=False)
    assert plain.folder(tmp_path) != crowded.folder(tmp_path)
    crowded.prepare(tmp_path, workers=1)
    images, _, made = trace(size=32, count=60, seed=0, void=False)
    np.testing.assert_array_equal(crowded.load(tmp_path)["train"].tokens.view(60, 32, 32).numpy(), images)
    assert made.placed.mean() > 4.2  # of 5; 1.1 otherwise


@pytest.fixture
def cv2():
    return pytest.importorskip("cv2", reason="opencv-python-headless is not installed: make test-peers")


@pytest.mark.peers
def test_the_authors_code_draws_as_recorded(cv2):
    if "PATHFINDER_AUTHOR" not in os.environ:
        pytest.skip("PATHFINDER_AUTHOR is not the checkout that pathfinder_author.py names")
    author = Author(Path(os.environ["PATHFINDER_AUTHOR"]))
    assert_alike("32 14", list(itertools.islice(author.draw(size=32, contour=14, seed=5), 60)))


@pytest.mark.peers
@every_kind
def test_seeds_start_where_opencv_leaves_the_original_room(cv2, size, margin):
    """find_available_coordinates of ceil(dilated - 0.3): none for a negative minimum, else the zeros."""
    table = paddle_table(size, margin)
    half = SETTINGS[size].length + margin
    random = np.random.default_rng(size + margin)
    mask = table.blank[0].copy()
    inner = mask[BEYOND:-BEYOND, BEYOND:-BEYOND]
    inner[:] = np.maximum(inner, 255 * (random.random(inner.shape) < 3 / size))
    for paddle in range(0, SEEDS, 1 if size < 128 else 7):
        cells = table.seeds.element[slice(*table.seeds.element_from[paddle : paddle + 2])]
        element = np.zeros((2 * half + 1,) * 2, np.uint8)
        element[tuple((cells + half).T)] = 1
        dilated = np.ceil(cv2.dilate(inner / 255, element) - 0.3)
        assert (dilated.min() < 0) == table.seeds.void[paddle] == is_void(cells)
        if dilated.min() >= 0:
            expected = [tuple(pixel) for pixel in np.argwhere(dilated == 0).tolist()]
            assert free_pixels(table.seeds, mask, paddle, table.padding) == expected and expected


@pytest.mark.peers
@every_kind
def test_dilations_are_opencvs(cv2, size, margin):
    slow, random = Pieces(size, margin), np.random.default_rng(0)
    image = slow.framed(random.random((size, size)), 1)
    elements = [random.random((2 * half + 1,) * 2) < 0.1 for half in (1, 3, 8)] + [disk(margin), disk(2 * margin)]
    for element in (e for e in elements if e.any()):
        np.testing.assert_array_equal(dilate(image, element), cv2.dilate(image, element.astype(np.uint8)))
    patch = (255 * image[:21, :21]).astype(np.uint8)
    widened = paddles.dilate(patch, paddles.disk(margin))
    np.testing.assert_array_equal(widened, cv2.dilate(patch, disk(margin).astype(np.uint8)))
