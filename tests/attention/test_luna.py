"""Luna against two dense attentions written out, in float64."""

import pytest
import torch
from conftest import config
from support.packed import DIM, HEADS, ROWS, L, N, mask, x

from lra.attention.base import Sizes
from lra.attention.luna import Luna


def made(head_dim=DIM // HEADS, **options):
    torch.manual_seed(0)
    sizes = Sizes(heads=HEADS, head_dim=head_dim, value_dim=head_dim, length=16, dropout=0.1)
    return Luna(sizes, dim=DIM, hidden=12, **({"rows": ROWS} | options)).double().eval()


def attend(queries, keys, values, real):
    """(i,d), (j,d), (j,d), (j,) -> (i,d), head by head and key by key."""
    out, D = torch.zeros_like(queries), DIM // HEADS
    for h in range(HEADS):
        s = slice(h * D, (h + 1) * D)
        weights = (queries[:, s] @ keys[:, s].T / D**0.5).exp() * real
        out[:, s] = weights / weights.sum(-1, keepdim=True) @ values[:, s]
    return out


def oracle(block, x, real, memory):
    out, packed = torch.zeros_like(x), torch.zeros_like(memory)
    both = lambda layer, c: (layer(c)[:, :DIM], layer(c)[:, -DIM:])  # tied: the same columns twice
    for n in range(N):
        tokens, p = block.token_norm(x[n]), block.packed_norm(memory[n])
        q = attend(block.pack_query(p), *both(block.pack_context, tokens), real[n])
        y = attend(block.unpack_query(tokens), *both(block.unpack_context, q), torch.ones(ROWS))
        hidden = x[n] + block.output(y)
        out[n] = hidden + block.mlp(block.mlp_norm(hidden))
        packed[n] = memory[n] + q
    return out, packed


@pytest.mark.parametrize("tie_kv", [True, False])
@pytest.mark.parametrize("masked", [False, True])
def test_is_its_definition_over_two_layers(tie_kv, masked):
    one, two = made(tie_kv=tie_kv), made(tie_kv=tie_kv, first=False)
    real = mask() if masked else torch.ones(N, L, dtype=torch.bool)
    middle, memory = one(x(), real if masked else None, None)
    out, last = two(middle, real if masked else None, memory)
    expected, packed = oracle(one, x(), real, one.start.expand(N, -1, -1))
    torch.testing.assert_close((middle[real], memory), (expected[real], packed), rtol=1e-12, atol=1e-12)
    expected, packed = oracle(two, expected, real, packed)
    torch.testing.assert_close((out[real], last), (expected[real], packed), rtol=1e-12, atol=1e-12)


def test_one_row_says_the_same_to_every_token():
    block = made(rows=1)
    hidden = []
    block.mlp_norm.register_forward_pre_hook(lambda _, args: hidden.append(args[0]))
    block(x(), mask())
    told = hidden[0] - x()
    torch.testing.assert_close(told, told[:, :1].expand_as(told), rtol=1e-12, atol=1e-12)


def test_memory_that_is_handed_on_does_not_grow_with_the_row():
    assert made()(x()[:, :2], None)[1].shape == made()(x(), None)[1].shape == (N, ROWS, DIM)


def test_only_the_first_layer_learns_where_the_packed_sequence_starts():
    model = config("luna", "task.length=32", "attn.rows=4").classifier()
    starts = [name for name, _ in model.named_parameters() if name.endswith("start")]
    assert starts == ["blocks.0.start"]
    model(torch.randint(31, (2, 1, 32))).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all() and parameter.grad.any(), name


def test_a_later_layer_listens_to_the_memory():
    block = made(first=False)
    memory = torch.randn(2, N, ROWS, DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    assert not torch.allclose(block(x(), None, memory[0])[0], block(x(), None, memory[1])[0])
