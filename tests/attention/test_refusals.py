"""Sizes and options of mechanisms: what a mechanism is built with, and the error message of each invalid value."""

import pytest
import torch
from conftest import CHECK_SHAPES, assert_error, config
from jaxtyping import TypeCheckError

from lra.attention.base import RENAMED, Attention, Sizes
from lra.attention.dba import DBA
from lra.attention.luna import Luna
from lra.ops.pinv import cubic, newton

SIZES = {"heads": 2, "head_dim": 4, "value_dim": 4, "length": 64, "dropout": 0.0}


def make(name, **options):
    kind = config(name).attn.function
    sizes = Sizes(**{key: options.pop(key, size) for key, size in SIZES.items()})
    widths = {} if issubclass(kind, Attention) else {"dim": 8} | ({"hidden": 12} if kind in (DBA, Luna) else {})
    return kind(sizes, **widths, **options)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        # One case of each kind of annotation, since one function checks them all.
        ("linformer", {"rank": 0}, "rank must be 1 or more, not 0"),
        ("sparse", {"stride": 0}, "stride must be 1 or more, or null, not 0"),
        ("linear", {"dropout": -0.1}, "dropout must be from 0 to 1, not -0.1"),
        ("cosformer", {"eps": 0.0}, "eps must be above 0, not 0.0"),
        ("lru", {"r_max": 0.0}, "r_max must be above 0 and at most 1"),
        ("performer", {"scalings": True}, "scalings must be one of 1, 2, not true"),
        ("cur_abs", {"score": "best"}, "score must be one of sum, abs, embed, step, random, farthest, not 'best'"),
        # Rules that the constructors check.
        ("bigbird", {"window": 2}, "window must be odd, in blocks, not 2"),
        ("conv", {"width": 4}, "width must be odd unless causal=true, not 4"),
        ("cur_abs", {"count": 65}, r"count must be from 1 to 64 \(length\), not 65"),
        ("dba", {"width": 5}, "width must be a multiple of heads 2, not 5"),
        ("dba", {"head_dim": 3}, "head_dim must be 4, dim / heads, with DBA, not 3"),
        ("h_transformer_1d", {"neighbours": "both", "block": 3}, "block must be even with neighbours=both, not 3"),
        ("longformer", {"global_tokens": 65}, r"global_tokens must be from 0 to 64 \(length\), not 65"),
        ("lru", {"r_min": 0.9, "r_max": 0.5}, r"r_max must be 0.9 or more \(r_min\), not 0.5"),
        ("mamba", {"step_max": 1e-4}, r"step_max must be 0.001 or more \(step_min\), not 0.0001"),
        ("s4d_lin", {"step_max": 1e-4}, r"step_max must be 0.001 or more \(step_min\), not 0.0001"),
        ("s5", {"step_max": 1e-4}, r"step_max must be 0.001 or more \(step_min\), not 0.0001"),
        ("mamba", {"decay_max": 0.5}, r"decay_max must be 1.0 or more \(decay_min\), not 0.5"),
        ("psf", {"links": "all"}, "links must be .*not 'all'"),
        ("reformer", {"chunk": None}, "chunk and buckets must not both be null"),
        ("reformer", {"buckets": 7}, "buckets must be 1, even, or null for 2 length / chunk, not 7"),
        ("s4d_lin", {"states": 7}, "states must be even, not 7"),
        ("s5", {"states": 12, "blocks": 4}, "states must be a multiple of 2 x blocks = 8, not 12"),
        ("soft", {"window": 0}, r"window must be from 1 to 64 \(length\), not 0"),
        ("soft", {"count": 0}, "count must be from 1"),
        ("soft", {"count": 4, "sample": "conv"}, "count must be null with sample=conv"),
        ("sparse", {"summary": 51}, r"summary must be from 1 to 50 \(block\), not 51"),
        ("transformer_ls", {"kernel": 4}, "kernel must be odd, or 0 for no convolution, not 4"),
    ],
)
def test_invalid_option_error_names_option(name, options, message):
    assert_error(f"^{message}", make, name, **options)


@pytest.mark.skipif(not CHECK_SHAPES, reason="shapes are not checked")
@pytest.mark.parametrize(("name", "wrong", "shape"), [("sdpa", "q", (2, 8, 4)), ("nystrom", "mask", (2, 9))])
def test_wrong_shape_error_names_forward_parameter(name, wrong, shape):
    arguments = {key: torch.ones(2, 2, 8, 4) for key in "qkv"}
    arguments["mask"] = torch.ones(2, 8, dtype=torch.bool)
    module = make(name)
    module(**arguments)
    arguments[wrong] = torch.ones(shape, dtype=arguments[wrong].dtype)
    with pytest.raises(TypeCheckError, match=rf"\.forward\.\n.*parameter '{wrong}'"):
        module(**arguments)


@pytest.mark.parametrize(("old", "new"), RENAMED.items())
def test_renamed_class_attribute_raises_type_error(old, new):
    with pytest.raises(TypeError, match=rf"^Mine\.{old} is now called {new}; rename the attribute$"):
        type("Mine", (Bare,), {old: True})


@pytest.mark.parametrize(
    ("inverse", "options", "message"),
    [
        (cubic, {"steps": -1}, "steps must be 0 or more, not -1"),
        (cubic, {"init": "x"}, "init must be one of per_matrix, batch, two_norms, not 'x'"),
        (newton, {"steps": -1}, "steps must be 0 or more, not -1"),
        (newton, {"init": "code"}, "init must be one of soft, paper, softpp, not 'code'"),
        (newton, {"grad": "exact"}, "grad must be one of implicit, unroll, not 'exact'"),
    ],
)
def test_invalid_pinv_option_error_names_option(inverse, options, message):
    assert_error(f"^{message}", inverse, torch.eye(3), **{"steps": 3, **options})


class Bare(Attention):
    """A mechanism without options and without a constructor."""

    has_dropout = True

    def forward(self, q, k, v, mask=None):
        return v


class Broken(Bare):
    def __init__(self, sizes):
        raise ValueError("numbers of rows do not match")


def test_mechanism_without_constructor_gets_sizes_and_dropout():
    words = ("task.length=32", "model.heads=4", "model.head_dim=8", "+attn.dropout=0.25")
    model = config(f"{__name__}.Bare", *words).classifier()
    sizes = Sizes(heads=4, head_dim=8, value_dim=8, length=32, dropout=0.25)
    assert [part.sizes for part in model.modules() if isinstance(part, Bare)] == [sizes] * 2


@pytest.mark.parametrize(("words", "dropout"), [([], 0.3), (["+attn.dropout=0.2"], 0.2)])
def test_block_dropout_defaults_to_model_dropout(words, dropout):
    model = config("luna", "model.dropout=0.3", *words).classifier()
    assert [part.dropout.p for part in model.blocks] == [dropout] * 2


@pytest.mark.parametrize(
    "name, word, message",
    [
        ("cur_abs", "attn.weights=laplace", "attn.weights=laplace needs impl=eager, not sdpa"),
        ("luna", "model.head_dim=3", "model.head_dim must be 32, dim / heads, with Luna, not 3"),
        ("nystrom_original", "attn.landmarks=63", "attn.landmarks must divide length 128, got 63"),
        ("mega", "attn.weights=relu", "attn.weights must be one of softmax, laplace"),
        ("mega", "block.ndim=0", "block.ndim must be 1 or more, not 0"),
        ("linear", "block=mega", "block.bias must be false around Linear, which takes no position bias"),
        # The text of an error without the name of an option is unchanged.
        (f"{__name__}.Broken", "model.layers=2", "numbers of rows do not match$"),
    ],
)
def test_error_names_option_as_on_command_line(name, word, message):
    assert_error(f"^{message}", lambda: config(name, word).classifier())
