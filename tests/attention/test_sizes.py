"""The sizes that a mechanism is built with, and the command line's messages for those that it refuses."""

import pytest
import torch
from conftest import config

from lra.attention.base import Attention, Sizes
from lra.varlen import VarlenLayout

SIZES = {"heads": 2, "head_dim": 4, "value_dim": 4, "length": 16}


class Bare(Attention):
    """No options, no constructor."""

    drops = True

    def forward(self, q, k, v, mask=None):
        return v


class Broken(Bare):
    def __init__(self, sizes):
        raise ValueError("numbers of rows do not match")


@pytest.mark.parametrize("dropout", [-0.1, 1.1])
def test_dropout_is_a_share(dropout):
    with pytest.raises(ValueError, match=rf"^dropout must be from 0 to 1, not {dropout}"):
        Sizes(**SIZES, dropout=dropout)


def test_a_mechanism_without_a_constructor_is_told_the_sizes_and_takes_dropout():
    words = ("task.length=32", "model.heads=4", "model.head_dim=8", "+attn.dropout=0.25")
    model = config(f"{__name__}.Bare", *words).classifier()
    told = Sizes(heads=4, head_dim=8, value_dim=8, length=32, dropout=0.25)
    assert [part.sizes for part in model.modules() if isinstance(part, Bare)] == [told] * 2


def test_a_whole_block_has_the_dropout_of_the_model_or_its_own():
    for words, dropout in (((), 0.3), (("+attn.dropout=0.2",), 0.2)):
        model = config("luna", "model.dropout=0.3", *words).classifier()
        assert [part.dropout.p for part in model.blocks] == [dropout] * 2


@pytest.mark.parametrize(
    "name, word, message",
    [
        ("cur_abs", "attn.weights=laplace", "attn.weights=laplace needs impl=eager, not sdpa"),
        ("luna", "model.head_dim=3", "model.head_dim must be 32, dim / heads, with Luna, not 3"),
        ("nystrom_original", "attn.landmarks=63", "attn.landmarks must divide length 128, not 63"),
        ("mega", "attn.weights=relu", "attn.weights must be one of softmax, laplace"),
        ("mega", "block.ndim=0", "block.ndim must be a whole number of 1 or more, not 0"),
        ("linear", "block=mega", "block.bias must be false around Linear, which takes no position bias"),
    ],
)
def test_messages_name_options_as_the_command_line_does(name, word, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        config(name, word).classifier()


def test_an_error_about_something_else_stays_what_it_is():
    made = config(f"{__name__}.Broken")
    with pytest.raises(ValueError, match=r"^numbers of rows do not match$"):
        made.classifier()


def test_packed_rows_are_padded_for_a_mechanism_without_varlen():
    class Last(Bare):
        def forward(self, q, k, v, mask=None):
            assert mask.dtype is torch.bool and v.shape[:3] == (2, 2, 3)
            return v * mask.sum(1)[:, None, None, None]

    layout = VarlenLayout(torch.tensor([[True, True, True], [True, False, False]]))
    x = torch.ones(1, 2, 4, 4)
    assert torch.equal(Last(Sizes(**SIZES)).varlen(x, x, x, layout)[0, 0, :, 0], torch.tensor([3.0, 3.0, 3.0, 1.0]))
