"""The controls against exact attention: equal scores, and scores of a token for itself alone."""

import torch
from conftest import config

from lra.attention.base import Sizes
from lra.attention.controls import Identity, Mean
from lra.attention.softmax import Softmax

SIZES = Sizes(heads=2, head_dim=3, value_dim=5, length=6)


def values():
    g = torch.Generator().manual_seed(0)
    q, v = torch.randn(2, 2, 6, 3, generator=g).double(), torch.randn(2, 2, 6, 5, generator=g).double()
    return q, v, torch.tensor([[True] * 6, [True, False, True, True, False, False]])


def test_the_mean_is_softmax_attention_with_equal_scores():
    q, v, mask = values()
    for given in (mask, None):
        torch.testing.assert_close(Mean(SIZES)(q, q, v, given), Softmax(SIZES)(q * 0, q, v, given))


def test_none_is_softmax_attention_of_each_token_to_itself():
    _, v, mask = values()
    far = 1e3 * torch.eye(6).double().expand(2, 2, 6, 6)
    exact = Softmax(Sizes(heads=2, head_dim=6, value_dim=5, length=6))(far, far, v, mask)
    torch.testing.assert_close(Identity(SIZES)(far, far, v, mask)[:, :, 0], exact[:, :, 0])
    torch.testing.assert_close(Identity(SIZES)(far, far, v, None), v)


def test_controls_have_the_parameters_of_exact_attention():
    shapes = [{k: p.shape for k, p in config(n).classifier().state_dict().items()} for n in ("sdpa", "mean", "none")]
    assert shapes[0] == shapes[1] == shapes[2]
