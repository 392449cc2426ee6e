"""Attention maps: what multiplies the values, for every mechanism that has it; the pictures and the command."""

import shutil

import numpy as np
import pytest
import torch
from conftest import KERNELS, MECHANISMS, run
from matplotlib.backends.backend_agg import FigureCanvasAgg
from support.features import model_and_batch
from support.records import unseal

from data_prep.pathfinder.generator import trace
from lra.attention.base import Mixer, Sizes
from lra.maps import draw, maps, views
from lra.maps.__main__ import show
from lra.train.__main__ import train

LENGTH = 24
# No map: a whole block of its own, values that do not enter linearly, another map for each channel, or a recurrence.
RECURRENT = ("lion_s", "lion_d", "retnet", "gla", "hgrn2", "delta_net", "gated_delta_net", "mamba", "mamba2", "hydra")
RECURRENT += ("rg_lru", "min_gru", "min_lstm", "hyena", "based")
RECURRENT += ("s4d_inv", "s4d_legs", "s4d_lin", "s5", "lru", "long_conv")
WITHOUT = ("conv", "luna", "dba", "transformer_ls", "fnet", *RECURRENT)


@pytest.mark.parametrize("name", [*MECHANISMS, "mega_chunk block.chunk=8"])
def test_the_map_times_the_values_is_the_output(name, monkeypatch):
    monkeypatch.setattr(maps, "WIDTH", 10)
    name, *words = name.split()
    model, batch = model_and_batch(name, *words)
    if name in KERNELS:  # they take float32
        model = model.float()
    mixer = getattr(model.blocks[1], "mixer", model.blocks[1])
    found = maps.attention_map(model, batch, 1)
    assert (found is None) == (name in WITHOUT)
    if found is None:
        return
    if hasattr(mixer, "attention"):
        (q, k, v, mask), options = maps.calls(model, batch, mixer.attention)[0]
        out = mixer.attention(q, k, v, mask, **options)
        out, v = (t.unflatten(0, (2, -1)).transpose(1, 2).flatten(2, 3) for t in (out, v))  # chunks side by side
    else:
        seen = []
        mixer.output.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
        (x, mask), _ = maps.calls(model, batch, mixer)[0]
        out = seen[0].unflatten(-1, (found.shape[1], -1)).transpose(1, 2)
        v = mixer.values(x)[:, None] if hasattr(mixer, "values") else mixer.project(x)[1]
    real = batch.mask[:, 0, None, :, None].expand_as(out)
    error = (found @ v - out)[real].abs().max()
    assert error <= (1e-5 if name in KERNELS else 1e-9) * out[real].abs().max()
    assert found.shape == (2, found.shape[1], LENGTH, LENGTH)


def test_softmax_map_is_a_distribution_over_real_tokens():
    model, batch = model_and_batch("softmax")
    found = maps.attention_map(model, batch, 0)
    assert torch.allclose(found.sum(-1), torch.ones(()).double()) and (found[1, :, :, 17:] == 0).all()


class Linear(Mixer):
    """out_i = Σ_j A_ij B x_j, whose derivative by x_j is A_ij B."""

    def __init__(self, a, b):
        super().__init__(Sizes(heads=1, head_dim=1, value_dim=1, length=len(a)), dim=len(b))
        self.a, self.b = torch.nn.Parameter(a), torch.nn.Parameter(b)

    def forward(self, x, mask=None):
        return self.a @ x @ self.b.mT


def test_jacobian_of_a_linear_mixer():
    model, batch = model_and_batch("softmax")
    a, b = torch.randn(LENGTH, LENGTH).double(), torch.randn(64, 64).double()
    model.blocks[0].mixer = Linear(a, b)
    readings = torch.zeros(2, 2, LENGTH).double()
    readings[:, 0, 3] = 1
    readings[:, 1, :] = 1 / LENGTH
    found = maps.jacobian(model, batch, 0, readings)
    expected = (readings[0] @ a).abs() * b.norm()
    assert found.shape == (2, 2, LENGTH)
    assert torch.allclose(found[0], expected) and torch.allclose(found[1], expected)


def test_markers_of_pathfinder_are_found():
    size = 32
    images, labels, made = trace(size=size, count=100, seed=5)
    hits = 0
    for n, image in enumerate(images):
        start = made.start[n]
        ends = made.targets[n][0, start, 1:], made.targets[n][-1, start if labels[n] else 1 - start, 1:]
        found = [np.array(divmod(at, size)) for at in draw.markers(image)]
        far = [max(np.abs(f - e).max() for f, e in zip(found, order, strict=True)) for order in (ends, ends[::-1])]
        hits += min(far) <= 1
    assert hits >= 97


def test_tokens_are_laid_out_without_overlap():
    words = ["[MAX ", "1 ", "] "] * 500
    places = draw.layout(words)
    assert places[:3] == [(0, 0), (0, 5), (0, 7)] and places[-1][0] == draw.LINES - 1
    taken = [(line, at + i) for (line, at), w in zip(places, words, strict=False) for i in range(len(w.rstrip()))]
    assert len(taken) == len(set(taken)) and max(column for _, column in taken) < draw.COLUMNS


@pytest.mark.parametrize("dpi", [72, 100, 250])
@pytest.mark.parametrize("display", ["expression", "bytes"])
def test_each_word_stands_on_its_own_shade(display, dpi):
    """The middle of the drawn word is that of its shaded cells, to a third of a character, in every column."""
    alphabet = ["[MAX", "7", "]"] if display == "expression" else [chr(i) for i in range(256)]
    row = np.tile([0, 1, 2] if display == "expression" else [87, 105, 32, 109], 60)
    figure = draw.DISPLAYS[display](draw.View("a title", row, [None], np.ones((1, len(row))), None, alphabet))
    figure.set_dpi(dpi)
    axes = figure.axes[0]
    FigureCanvasAgg(figure).draw()
    words = [alphabet[i] for i in row]
    cells = draw.layout([word + " " * (display == "expression") for word in words])
    placed = [(cell, word) for cell, word in zip(cells, words, strict=True) if word.strip()]
    assert len(axes.texts) == len(placed) > 100
    for text, ((line, column), word) in zip(axes.texts, placed, strict=True):
        box = text.get_window_extent().transformed(axes.transData.inverted())
        assert text.get_text() == word and abs((box.x0 + box.x1) / 2 - (column + (len(word) - 1) / 2)) < 1 / 3
        assert round((box.y0 + box.y1) / 2) == line


def test_readings_and_positions():
    mask = torch.tensor([True, True, True, False])
    assert (views.reading([None, 1], mask, 0, 4) * 3).tolist() == [[1, 1, 1, 0], [0, 3, 0, 0]]
    assert views.reading([None, 1], mask, 1, 5).tolist() == [[1, 0, 0, 0, 0], [0, 0, 1, 0, 0]]
    assert views.positions([[0, 1], [1, 0]], 2, mask) == [1, 2]
    assert views.positions([1, 0], 2, mask) == [2] and views.positions([1, 0], None, mask) == [1, 0]
    for at, side, reason in ((3, None, "masked as padding"), (4, None, "from 0 to 3"), ([[2, 0]], 2, "a row of at")):
        with pytest.raises(ValueError, match=reason):
            views.positions(at, side, mask)


@pytest.mark.parametrize("display", draw.DISPLAYS)
def test_every_display_draws_with_and_without_a_map(display, tmp_path):
    rng = np.random.default_rng(0)
    row = rng.random((64, 2)) if display == "series" else rng.integers(0, 4, 64)
    for whole in (rng.standard_normal((64, 64)), None):
        view = draw.View("a title", row, [None, 9], rng.random((2, 64)), whole, "abcd")
        draw.DISPLAYS[display](view).savefig(tmp_path / "x.png")
        assert (tmp_path / "x.png").stat().st_size > 2000


@pytest.fixture
def trained(data_root, tmp_path, monkeypatch, capfd):
    words = ["task=listops", "attn=cur_abs", "budget=smoke", "seeds=[0]", f"runs={tmp_path}"]
    assert run(train, *words, patch=monkeypatch, capfd=capfd)[0] is None
    return tmp_path / "paper-smoke" / "listops" / "cur_abs" / "seed-0"


@pytest.fixture
def call(trained, monkeypatch, capfd):
    """The command with the run: None, or the one line that it ends with."""

    def called(*words):
        stop = run(show, f"run={trained}", *words, patch=monkeypatch, capfd=capfd)[0]
        assert stop is None or (stop.startswith("lra: ") and "\n" not in stop), stop
        return stop

    return called


def test_command(trained, call):
    assert call() is None and call("example=3", "layer=0", "head=1", "at=[0,5]") is None
    drawn = {path.name for path in (trained / "maps").iterdir()}
    assert drawn == {"test-0-layer-1.png", "test-3-layer-0-head-1.png"}
    for word, told in (
        ("example=64", "example must be a whole number from 0 to 63, not 64"),
        ("layer=2", "layer must be a whole number from 0 to 1, not 2"),
        ("head=two", "head must be a whole number of 0 or more, or null, not 'two'"),
        ("split=dev", "split must be one of train, val, test, not 'dev'"),
        ("at=5000", "at must be a whole number from 0 to"),
        ("out=/proc/nowhere", "/proc/nowhere/test-0-layer-1.png cannot be written"),
        ("run=null", "run is missing; name a run directory: run=runs/<study>"),
        ("run=/nowhere", "/nowhere is not a folder; name a run directory: run=runs/"),
        (f"run={trained.parent}", "has no config.yaml; name a run directory: run=runs/"),
    ):
        assert told in call(word)


def test_damaged_folders_are_told(trained, call):
    weights = trained / "best.ckpt"
    whole = weights.read_bytes()
    weights.write_bytes(whole[: len(whole) // 2])
    assert "best.ckpt cannot be used (its sha256 is not the one in the record.json" in call()
    unseal(trained / "record.json")
    assert "best.ckpt cannot be used (it is damaged or not a checkpoint" in call()
    torch.save({"head": torch.zeros(1)}, weights)
    assert "best.ckpt does not hold the weights of this model" in call()
    weights.unlink()
    assert "has no best.ckpt: the run has not reached its first evaluation" in call()
    shutil.copy(trained / "record.json", trained / "config.yaml")
    assert "config.yaml and record.json belong to different runs" in call()
    (trained / "record.json").unlink()
    assert "config.yaml is not the configuration of a run" in call()
