"""The batch norm over real tokens, against torch's on these tokens alone."""

import pytest
import torch

from lra.model.norm import norm

DIM = 5


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("real", [(9, 9), (9, 4), (0, 2)])
def test_batch_norm_is_torchs_over_the_real_tokens(real, masked):
    torch.manual_seed(0)
    layer, plain = norm("batch", DIM, momentum=0.3).double(), torch.nn.BatchNorm1d(DIM, momentum=0.3).double()
    with torch.no_grad():
        plain.weight.normal_()
        plain.bias.normal_()
        layer.load_state_dict(plain.state_dict())
    mask = torch.arange(9) < torch.tensor(real)[:, None]
    mask = mask if masked else torch.ones_like(mask)
    for training in (True, True, False):  # the last one with the running averages of the others
        layer.train(training), plain.train(training)
        x = (torch.randn(2, 9, DIM, dtype=torch.float64) + 3).masked_fill(~mask[..., None], float("inf"))
        own, other = x.clone().requires_grad_(), x[mask].requires_grad_()
        out, expected = layer(own, mask if masked else None), plain(other)
        torch.testing.assert_close(out[mask], expected)
        assert torch.equal(out[~mask], x[~mask])
        slope = torch.randn_like(expected)
        made = torch.autograd.grad(out[mask], (own, *layer.parameters()), slope)
        wanted = torch.autograd.grad(expected, (other, *plain.parameters()), slope)
        torch.testing.assert_close((made[0][mask], *made[1:]), wanted)
        assert not made[0][~mask].any()
        assert layer.state_dict().keys() == plain.state_dict().keys()
        for key, value in plain.state_dict().items():
            torch.testing.assert_close(layer.state_dict()[key], value)


def test_batch_norm_reads_no_number_of_real_tokens():
    """On device meta, which has no memory, selecting by a mask or reading a number fails, as on a GPU it waits."""
    x = torch.randn(2, 9, DIM, device="meta", requires_grad=True)
    norm("batch", DIM).to("meta")(x, torch.ones(2, 9, dtype=torch.bool, device="meta")).sum().backward()
    assert x.grad.shape == x.shape


def test_a_batch_of_one_token_leaves_the_running_averages_finite():
    layer = norm("batch", DIM)
    out = layer(torch.randn(1, 3, DIM), torch.tensor([[True, False, False]]))
    assert out.isfinite().all() and all(value.isfinite().all() for value in layer.state_dict().values())
