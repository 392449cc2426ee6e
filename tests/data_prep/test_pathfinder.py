"""Pathfinder's generator compared with a slow reference implementation and with the original generator.

The original is represented by statistics recorded from its images, and by OpenCV, which it uses for dilation.
"""

import json
from pathlib import Path

import numpy as np
import pathfinder_reference
import pytest
from conftest import slow
from numba import njit
from pathfinder_reference import KINDS, PARAMETERS, Pieces, dilate, disk, every_kind, marker, move, opposite
from scipy.ndimage import grey_dilation, label
from scipy.stats import chi2_contingency, chisquare

from data_prep.pathfinder import paddles
from data_prep.pathfinder.curves import draw_tail, draw_targets, free_pixels
from data_prep.pathfinder.generator import Pathfinder, generate, trace
from data_prep.pathfinder.paddles import BEYOND, SEEDS, SETTINGS, is_void, paddle_table
from data_prep.pathfinder.patches import fits, paste_marker, stretch

INNER = slice(BEYOND, -BEYOND)
ORIGINAL = json.loads((Path(__file__).parent / "pathfinder_original.json").read_text())
COUNTS = {32: 3000, 64: 300, 128: 300, 256: 300}


def direction(table, paddle):
    """The direction in which a paddle is drawn from its start; follower paddles point backwards."""
    return opposite(table.theta[paddle]) if paddle >= SEEDS else table.theta[paddle]


def curves(size, margin, seed=1):
    """Draw two targets: masks (2, size + 2 BEYOND, same) and record (contour, 2, 3) of paddle, y and x."""
    table, stream, record = paddle_table(size, margin), np.array([seed], np.uint64), np.zeros((14, 2, 3), np.int16)
    masks = table.blank.copy()
    draw_targets(table.paddles, table.seeds, table.blank, masks, record, stream)
    return masks, record


@njit
def count_tails(seeds, mask, paddle, frame, stream, counts, draws):
    for _ in range(draws):
        y, x = draw_tail(seeds, mask, paddle, frame, stream)
        if y >= 0:
            counts[y, x] += 1


def test_generated_images_do_not_depend_on_partition_into_calls():
    for size, count in ((32, 12), (64, 3)):
        images, labels = generate(size=size, count=count, seed=3)
        assert images.shape == (count, size, size) and images.dtype == labels.dtype == np.uint8
        cut = count // 3
        parts = [generate(size=size, count=cut, seed=3), generate(size=size, count=count - cut, seed=3, first=cut)]
        np.testing.assert_array_equal(images, np.concatenate([p[0] for p in parts]))
        np.testing.assert_array_equal(labels, np.concatenate([p[1] for p in parts]))
    assert len({image.tobytes() for image in generate(size=32, count=60, seed=3)[0]}) == 60
    assert not np.array_equal(generate(size=32, count=1, seed=4)[0], generate(size=32, count=1, seed=3)[0])


@pytest.mark.parametrize("size", SETTINGS)
def test_markers_near_edges_match_reference(size):
    table = paddle_table(size, SETTINGS[size].margins[0])
    coordinates = sorted({*range(0, 13, 2), size // 2, size - 12, size - 5, size - 2, size - 1})
    for y, x in zip(coordinates, np.roll(coordinates, 5), strict=True):
        layer = np.zeros(table.blank.shape[1:], np.uint8)
        paste_marker(layer, table.marker, y, x)
        np.testing.assert_array_equal(layer[INNER, INNER] / 255, marker(size, SETTINGS[size].marker_radius, (y, x)))


@every_kind
def test_cells_beyond_image_edge_never_decide_rejection(size, margin):
    """The original clips paddles at the edge, `fits` does not; this must make no difference.

    The cells that can cause a rejection are connected and include the paddle's start, which is inside the image. If
    one is beyond the edge, another is on the frame, and that one causes the rejection anyway.
    """
    for limit in paddle_table(size, margin).paddles.limit[SEEDS:]:
        half = limit.shape[0] // 2
        assert limit[half, half] < 255 and label(limit < 255, np.ones((3, 3)))[1] == 1


@every_kind
def test_targets_follow_rules_of_reference(size, margin):
    table, oracle = paddle_table(size, margin), Pieces(size, margin)
    masks, record = curves(size, margin)
    mask, unwritten, pivots, thetas = oracle.blank(), [None, None], [None, None], [None, None]
    frame = oracle.framed(mask, 2 * SETTINGS[size].seed_distance)
    for i, pair in enumerate(record.tolist()):
        for snake, (paddle, *start) in enumerate(pair):
            theta = table.theta[paddle]
            patch = oracle.paddle(oracle.shape, start, direction(table, paddle), 1.0)[1]
            if i == 0:
                pivots[snake] = move(move(start, oracle.length, theta), oracle.length + margin, opposite(theta))
                if snake == 0:
                    assert start in oracle.free(frame, theta).tolist()
                else:
                    gap = np.subtract(start, record[0, 0, 1:])
                    assert abs(np.hypot(*gap) - SETTINGS[size].seed_distance) <= 0.5**0.5
            else:
                anchor = oracle.anchor(pivots[snake], thetas[snake])
                points, alphas, weights = oracle.candidates(mask, anchor, thetas[snake])
                pick = points.index(tuple(start))
                assert alphas[pick] == theta and weights[pick] > 0 and weights.sum() >= 1e-4
                assert (mask + patch).max() < 1.8 + 1e-9
                mask = np.maximum(mask, unwritten[snake])
                pivots[snake] = anchor
            thetas[snake], unwritten[snake] = theta, patch
    mask = np.maximum(mask, unwritten[1])
    np.testing.assert_array_equal(masks[0, INNER, INNER] / 255, mask)
    np.testing.assert_array_equal(masks[1, INNER, INNER] / 255, grey_dilation(mask, footprint=disk(margin)))


@every_kind
def test_extension_candidates_and_rejections_match_reference(size, margin):
    table, oracle = paddle_table(size, margin), Pieces(size, margin)
    masks, _ = curves(size, margin)
    mask = masks[0, INNER, INNER] / 255
    rng = np.random.default_rng(0)
    num_rejected = 0
    for _ in range(60):
        anchor, previous = rng.integers(-2, size + 2, 2), rng.integers(len(table.theta))
        points, alphas, weights = oracle.candidates(mask, anchor, table.theta[previous])
        expected = dict(zip(points, weights, strict=True))
        k_after, weight_after = table.paddles.follower[previous], table.paddles.turn_weight[previous]
        turn = np.bincount(k_after, weight_after, len(table.paddles.displacement))
        for k, displacement in enumerate(table.paddles.displacement):
            point = tuple(anchor + displacement)
            weight = (1 - masks[1, point[0] + BEYOND, point[1] + BEYOND] / 255) * turn[k]
            assert weight == pytest.approx(expected.pop(point, 0), abs=1e-12)
            if weight > 0:
                patch = oracle.paddle(oracle.shape, point, opposite(alphas[points.index(point)]), 1.0)[1]
                accepted = np.rint(255 * (mask + patch)).max() < 1.8 * 255
                assert fits(masks[0], table.paddles.limit, SEEDS + k, *point) == accepted
                num_rejected += not accepted
        assert not expected
    assert num_rejected


@pytest.mark.parametrize("size, margin", [slow(*kind) if kind[0] > 128 else kind for kind in KINDS])
def test_distractor_starts_are_uniform_over_free_pixels_of_reference(size, margin):
    table, oracle = paddle_table(size, margin, void=False), Pieces(size, margin)
    with_targets = curves(size, margin)[0][0]
    crowded = with_targets.copy()
    # Few free pixels: after MISSES rejections, draw_tail lists them.
    crowded[BEYOND + size // 4 : -BEYOND] = 255
    for mask in (table.blank[0], with_targets, crowded, np.full_like(with_targets, 255)):
        for paddle in range(0, SEEDS, max(30, size)):
            free = oracle.free(oracle.framed(mask[INNER, INNER] / 255, 1), table.theta[paddle])
            expected, counts = np.zeros(oracle.shape), np.zeros(oracle.shape, int)
            expected[tuple(free.T)] = 1
            stream = np.array([paddle], np.uint64)
            count_tails(table.seeds, mask, paddle, table.padding, stream, counts, 20 * max(1, len(free)))
            np.testing.assert_array_equal(counts > 0, expected > 0)
            if len(free) > 1:
                assert chisquare(counts[tuple(free.T)]).pvalue > 1e-4


@pytest.mark.parametrize(("size", "contour"), [(32, 6), (32, 9), (32, 14), (128, 14), (256, 14)])
def test_painted_images_match_reference(size, contour):
    images, labels, result = trace(size=size, count=3, seed=5, contour=contour)
    length, parameters = contour // 3, PARAMETERS[size]
    assert result.distractors.shape[1] == parameters["num_distractor_paddles"] // length * length
    (bright,), (level,) = parameters["snake_contrast_list"], parameters["paddle_contrast_list"]
    for n, image in enumerate(images):
        margin = int(result.margin[n])
        table, oracle = paddle_table(size, margin), Pieces(size, margin)
        canvas = np.zeros(oracle.shape)
        distractors = result.distractors[n, : result.placed[n] * length]
        for record, contrast in ((result.targets[n].reshape(-1, 3), bright * level), (distractors, bright)):
            for paddle, *start in record.tolist():
                canvas = np.maximum(canvas, oracle.paddle(oracle.shape, start, direction(table, paddle), contrast)[0])
        start = result.start[n]
        for tip in (result.targets[n, 0, start, 1:], result.targets[n, -1, start if labels[n] else 1 - start, 1:]):
            canvas = np.maximum(canvas, marker(size, parameters["marker_radius"], tip))
        # The image is exact and the canvas is not: a value halfway between two grey levels may round either way.
        exact = (canvas - canvas.min()) * 255 / np.ptp(canvas)
        assert abs(image - exact).max() <= 0.5 + 1e-9


# Fast tests cover sizes 32 and 128, the two tasks of the benchmark.
@pytest.mark.parametrize("kind", [slow(k) if k.startswith(("64", "256")) else k for k in ORIGINAL["statistics"]])
def test_image_statistics_match_original_generator(kind):
    """Two-sample chi-square tests: none significant at 1 percent after Bonferroni correction for the statistics."""
    size, contour = map(int, kind.split())
    images, labels, result = trace(size=size, contour=contour, count=COUNTS[size], seed=11)
    assert abs(labels.mean() - 0.5) < 4 * 0.5 / len(labels) ** 0.5
    drawn, p = list(pathfinder_reference.drawn(images, labels, result)), {}
    for name, recorded in ORIGINAL["statistics"][kind].items():
        if isinstance(recorded, dict):
            counts = pathfinder_reference.counted(recorded["edges"], [image[name] for image in drawn])
            table = np.array([recorded["counts"], counts])
            table = table[:, table.any(0)]
            p[name] = chi2_contingency(table).pvalue if table.shape[1] > 1 else 1.0
    assert len(p) == 17 and min(p.values()) > 0.01 / len(p), sorted(p.items(), key=lambda item: item[1])[:5]


@pytest.mark.parametrize("size", SETTINGS)
@pytest.mark.parametrize("role", range(3))
def test_stretch_rounds_like_scipy_bytescale(size, role):
    """Check all 256 values of a layer in an image with a marker, with the original's float64 operations in order.

    These are line / 255, times the contrast unless that is 1, then (x - min) * (255 / (max - min)), clipped, plus 0.5.
    """
    contrast, edge = paddle_table(size, SETTINGS[size].margins[0]).contrast, slice(BEYOND, BEYOND + 17)
    layers = np.zeros((3, 17 + 2 * BEYOND, 17 + 2 * BEYOND), np.uint8)
    layers[role, edge, edge] = (np.arange(17 * 17) % 256).reshape(17, 17)
    # Every image has a marker.
    layers[2, BEYOND, BEYOND] = 255
    # The brightest distractor pixel decides the maximum before stretching.
    for brightest in (0, 255):
        layers[1, BEYOND, BEYOND + 1] = brightest
        image, canvas = np.empty((17, 17), np.uint8), np.empty((17, 17))
        stretch(layers, contrast, canvas, image)
        scaled = layers[:, edge, edge] / 255
        x = np.max([part * c if c != 1 else part for part, c in zip(scaled, contrast, strict=True)], axis=0)
        scale = 255.0 / (x.max() - x.min())
        np.testing.assert_array_equal(image, (((x - x.min()) * scale).clip(0, 255) + 0.5).astype(np.uint8))


@every_kind
def test_void_orientations_match_original_generator(size, margin):
    degree_ranges = ORIGINAL["void orientations"][f"{size} {margin}"]
    expected = [degree for first, last in degree_ranges for degree in range(first, last + 1)]
    assert (np.flatnonzero(paddle_table(size, margin).seeds.void) - SEEDS // 2).tolist() == expected
    assert not paddle_table(size, margin, void=False).seeds.void.any()


def test_void_false_fits_most_distractors_and_changes_data_set(tmp_path):
    sizes = {"train": 60, "val": 1, "test": 1}
    plain, crowded = Pathfinder(**sizes), Pathfinder(**sizes, void=False)
    assert plain.folder(tmp_path) != crowded.folder(tmp_path)
    crowded.prepare(tmp_path, workers=1)
    images, _, result = trace(size=32, count=60, seed=0, void=False)
    np.testing.assert_array_equal(crowded.load(tmp_path)["train"].tokens.view(60, 32, 32).numpy(), images)
    # 5 distractors are requested; with void orientations about 1.1 fit.
    assert result.placed.mean() > 4.2


@pytest.mark.peers
@every_kind
def test_free_pixels_and_void_orientations_match_opencv(size, margin):
    """In the original, free pixels are zeros of ceil(dilated - 0.3); a negative minimum means a void orientation."""
    cv2 = pytest.importorskip("cv2", reason="cv2 is not installed: make test-peers")
    table = paddle_table(size, margin)
    half = SETTINGS[size].length + margin
    rng = np.random.default_rng(size + margin)
    mask = table.blank[0].copy()
    inner = mask[INNER, INNER]
    inner[:] = np.maximum(inner, 255 * (rng.random(inner.shape) < 3 / size))
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
def test_dilations_match_opencv(size, margin):
    cv2 = pytest.importorskip("cv2", reason="cv2 is not installed: make test-peers")
    oracle, rng = Pieces(size, margin), np.random.default_rng(0)
    image = oracle.framed(rng.random((size, size)), 1)
    elements = [rng.random((2 * half + 1,) * 2) < 0.1 for half in (1, 3, 8)] + [disk(margin), disk(2 * margin)]
    for element in (e for e in elements if e.any()):
        np.testing.assert_array_equal(dilate(image, element), cv2.dilate(image, element.astype(np.uint8)))
    patch = (255 * image[:21, :21]).astype(np.uint8)
    dilated_patch = paddles.dilate(patch, paddles.disk(margin))
    np.testing.assert_array_equal(dilated_patch, cv2.dilate(patch, disk(margin).astype(np.uint8)))
