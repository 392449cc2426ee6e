"""Attention maps: the matrix that multiplies the values for each mechanism that has one, the figures, the command."""

import shutil

import numpy as np
import pytest
import torch
from conftest import KERNELS, MECHANISMS, assert_error
from matplotlib.backends.backend_agg import FigureCanvasAgg
from support.features import model_and_batch, padded_ids
from support.training import trained

from data_prep.pathfinder.generator import trace
from lra.attention.base import Mixer, Sizes
from lra.data.datamodule import Batch
from lra.maps import draw, maps, views
from lra.maps.__main__ import show

LENGTH = 24
# Mechanisms without a map: custom blocks, outputs not linear in the values, one map per channel, recurrences.
RECURRENT = ("lion_s", "lion_d", "retnet", "gla", "hgrn2", "delta_net", "gated_delta_net", "mamba", "mamba2", "hydra")
RECURRENT += ("rg_lru", "min_gru", "min_lstm", "hyena", "based")
RECURRENT += ("s4d_inv", "s4d_legs", "s4d_lin", "s5", "lru", "long_conv")
WITHOUT_MAP = ("conv", "luna", "dba", "transformer_ls", "fnet", *RECURRENT)


@pytest.mark.parametrize("name", [*MECHANISMS, "mega_chunk block.chunk=8"])
def test_map_times_values_equals_mechanism_output(name, monkeypatch):
    monkeypatch.setattr(maps, "WIDTH", 10)
    name, *words = name.split()
    model, batch = model_and_batch(name, *words)
    # Kernels support float32 only.
    if name in KERNELS:
        model = model.float()
    mixer = getattr(model.blocks[1], "mixer", model.blocks[1])
    actual = maps.attention_map(model, batch, 1)
    assert (actual is None) == (name in WITHOUT_MAP)
    if actual is None:
        return
    if hasattr(mixer, "attention"):
        (q, k, v, mask), options = maps.calls(model, batch, mixer.attention)[0]
        out = mixer.attention(q, k, v, mask, **options)
        # Join the chunks of each sequence; only mega_chunk has more than one.
        out, v = (t.unflatten(0, (2, -1)).transpose(1, 2).flatten(2, 3) for t in (out, v))
    else:
        output_inputs = []
        mixer.output.register_forward_pre_hook(lambda _, inputs: output_inputs.append(inputs[0]))
        (x, mask), _ = maps.calls(model, batch, mixer)[0]
        out = output_inputs[0].unflatten(-1, (actual.shape[1], -1)).transpose(1, 2)
        v = mixer.values(x)[:, None] if hasattr(mixer, "values") else mixer.project(x)[-1]
    readings = torch.eye(LENGTH).expand(2, -1, -1)
    torch.testing.assert_close(views._weights(model, batch, 1, None, readings)[1], actual.mean(1))
    is_real = batch.mask[:, 0, None, :, None].expand_as(out)
    assert (actual @ v - out)[is_real].abs().max() <= (1e-5 if name in KERNELS else 1e-9) * out[is_real].abs().max()
    assert actual.shape == (2, actual.shape[1], LENGTH, LENGTH)


class Linear(Mixer):
    """out_i = Σ_j A_ij B x_j, so d out_i / d x_j = A_ij B, with the Frobenius norm |A_ij| |B|."""

    def __init__(self, a, b):
        super().__init__(Sizes(heads=1, head_dim=1, value_dim=1, length=len(a)), dim=len(b))
        self.a, self.b = torch.nn.Parameter(a), torch.nn.Parameter(b)

    def forward(self, x, mask=None):
        return self.a @ x @ self.b.mT


def test_jacobian_norm_of_linear_mixer_has_closed_form():
    model, batch = model_and_batch("softmax")
    a, b = torch.randn(LENGTH, LENGTH).double(), torch.randn(64, 64).double()
    model.blocks[0].mixer = Linear(a, b)
    readings = torch.zeros(2, 2, LENGTH).double()
    readings[:, 0, 3] = 1
    readings[:, 1, :] = 1 / LENGTH
    actual = maps.jacobian(model, batch, 0, readings)
    expected = (readings[0] @ a).abs() * b.norm()
    assert actual.shape == (2, 2, LENGTH)
    assert torch.allclose(actual[0], expected) and torch.allclose(actual[1], expected)


def test_jacobian_has_one_result_for_each_tower():
    model, _ = model_and_batch("softmax", "task.towers=2")
    batch = Batch(*padded_ids((24, 17), towers=2), torch.zeros(2))
    readings = torch.ones(4, 1, LENGTH).double() / LENGTH
    together = maps.jacobian(model, batch, 0, readings)
    model.encode_separately = True
    torch.testing.assert_close(maps.jacobian(model, batch, 0, readings), together)
    assert not torch.allclose(together[0], together[1])


def test_markers_finds_both_ends_in_pathfinder_images():
    size = 32
    images, labels, result = trace(size=size, count=100, seed=5)
    hits = 0
    for n, image in enumerate(images):
        start = result.start[n]
        targets = result.targets[n]
        # The second marker is on the same path if the label is 1, else on the other one.
        ends = targets[0, start, 1:], targets[-1, start if labels[n] else 1 - start, 1:]
        actual = [np.array(divmod(at, size)) for at in draw.markers(image)]
        errors = [max(np.abs(f - e).max() for f, e in zip(actual, order, strict=True)) for order in (ends, ends[::-1])]
        hits += min(errors) <= 1
    assert hits >= 97


def test_layout_places_words_without_overlap():
    words = ["[MAX ", "1 ", "] "] * 500
    slots = draw.layout(words)
    assert slots[:3] == [(0, 0), (0, 5), (0, 7)] and slots[-1][0] == draw.LINES - 1
    placed = zip(slots, words, strict=False)
    occupied = [(line, at + i) for (line, at), word in placed for i in range(len(word.rstrip()))]
    assert len(occupied) == len(set(occupied)) and max(column for _, column in occupied) < draw.COLUMNS


@pytest.mark.parametrize("dpi", [72, 100, 250])
@pytest.mark.parametrize("display", ["expression", "bytes"])
def test_words_are_centred_on_their_shaded_cells(display, dpi):
    """The centre of a drawn word is the centre of its shaded cells to within a third of a character."""
    alphabet = ["[MAX", "7", "]"] if display == "expression" else [chr(i) for i in range(256)]
    sequence = np.tile([0, 1, 2] if display == "expression" else [87, 105, 32, 109], 60)
    figure = draw.DISPLAYS[display](draw.View("a title", sequence, [None], np.ones((1, len(sequence))), None, alphabet))
    figure.set_dpi(dpi)
    axes = figure.axes[0]
    FigureCanvasAgg(figure).draw()
    words = [alphabet[i] for i in sequence]
    cells = draw.layout([word + " " * (display == "expression") for word in words])
    visible_words = [(cell, word) for cell, word in zip(cells, words, strict=True) if word.strip()]
    assert len(axes.texts) == len(visible_words) > 100
    for text, ((line, column), word) in zip(axes.texts, visible_words, strict=True):
        box = text.get_window_extent().transformed(axes.transData.inverted())
        centre = column + (len(word) - 1) / 2
        assert text.get_text() == word and abs((box.x0 + box.x1) / 2 - centre) < 1 / 3
        assert round((box.y0 + box.y1) / 2) == line


def test_reading_weights_and_positions_from_options():
    mask = torch.tensor([True, True, True, False])
    for pool in ("mean", "flatten"):
        assert (views.reading_weights([None, 1], mask, pool, 4) * 3).tolist() == [[1, 1, 1, 0], [0, 3, 0, 0]]
    assert views.reading_weights([None, 1], mask, "last", 5).tolist() == [[0, 0, 1, 0, 0], [0, 1, 0, 0, 0]]
    for pool in ("cls", "class"):
        assert views.reading_weights([None, 1], mask, pool, 5).tolist() == [[1, 0, 0, 0, 0], [0, 0, 1, 0, 0]]
    assert views.positions([[0, 1], [1, 0]], 2, mask) == [1, 2]
    assert views.positions([1, 0], 2, mask) == [2] and views.positions([1, 0], None, mask) == [1, 0]
    cases = [(3, None, "masked as padding"), (4, None, "from 0 to 3")]
    cases += [([[2, 0]], 2, "a row of at"), ([], 2, "no position")]
    for at, side, reason in cases:
        assert_error(reason, views.positions, at, side, mask)


@pytest.mark.parametrize("display", draw.DISPLAYS)
def test_each_display_draws_with_and_without_full_map(display, tmp_path):
    rng = np.random.default_rng(0)
    sequence = rng.random((64, 2)) if display == "series" else rng.integers(0, 4, 64)
    num_axes = []
    for full_map in (rng.standard_normal((64, 64)), None):
        view = draw.View("a title", sequence, [None, 9], rng.random((2, 64)), full_map, "abcd")
        figure = draw.DISPLAYS[display](view)
        figure.savefig(tmp_path / "x.png")
        num_axes.append(len(figure.axes))
    assert num_axes[0] > num_axes[1]


@pytest.fixture(scope="module")
def run_dir(data_root, tmp_path_factory):
    return trained(tmp_path_factory.mktemp("runs"), "model.layers=2", attn="cur_abs")


@pytest.fixture
def message(run_dir, call):
    """Run lra maps on the run; return its error message, None on success."""

    def run_command(*words):
        stop = call(show, f"run={run_dir}", *words)[0]
        assert stop is None or (stop.startswith("lra: ") and "\n" not in stop), stop
        return stop

    return run_command


def test_maps_command_writes_figures(run_dir, message, call, data_root, tmp_path):
    # Every example fills the length, in front of which is the class vector.
    class_run = trained(tmp_path, "task.length=64", "model.pool=class", attn="mean")
    assert call(show, f"run={class_run}")[0] is None
    assert message() is None and message("example=3", "layer=0", "head=1", "at=[0,5]") is None
    assert {path.name for path in (run_dir / "maps").iterdir()} == {"test-0-layer-1.png", "test-3-layer-0-head-1.png"}


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        ("example=64", "example must be a whole number from 0 to 63, not 64"),
        ("layer=2", "layer must be a whole number from 0 to 1, not 2"),
        ("head=two", "head must be a whole number of 0 or more, or null, not 'two'"),
        ("split=dev", "split must be one of train, val, test, not 'dev'"),
        ("at=5000", "at must be a whole number from 0 to"),
        ("out={run_dir}/config.yaml", "/config.yaml/test-0-layer-1.png cannot be written"),
        ("run=null", "run is missing; name a run directory: run=runs/<study>"),
        ("run=/nowhere", "/nowhere is not a folder; name a run directory: run=runs/"),
        ("run={run_dir.parent}", "has no config.yaml; name a run directory: run=runs/"),
    ],
)
def test_invalid_option_error_names_option(run_dir, message, argument, expected):
    assert expected in message(argument.format(run_dir=run_dir))


def test_map_of_pairs_has_one_map_per_text():
    model, _ = model_and_batch("psf_original", "task.towers=2")
    inputs, mask = padded_ids((24, 17), towers=2)
    assert maps.attention_map(model, Batch(inputs[:1], mask[:1], None), 1).shape[0] == 2


def test_pixel_pushed_out_by_class_token_has_no_shade():
    figure = draw.pixels(draw.View("", np.zeros(16), [None], np.arange(15.0)[None], None, ()))
    FigureCanvasAgg(figure).draw()
    (image,) = figure.axes[1].images
    assert image.get_clim() == pytest.approx((0, 13.986)) and image.get_array().mask.sum() == 1


def test_damaged_run_directory_error_names_file(run_dir, tmp_path, message):
    run_copy = shutil.copytree(run_dir, tmp_path / "seed-0", ignore=shutil.ignore_patterns(".*", "best.ckpt"))
    assert "has no best.ckpt: the run has not reached its first evaluation" in message(f"run={run_copy}")
