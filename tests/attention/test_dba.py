"""DBA against its three products written out head by head, in float64."""

import pytest
import torch
from conftest import config
from support.packed import DIM, HEADS, L, N, mask, x

from lra.attention.base import Sizes
from lra.attention.dba import DBA

LATENTS, WIDTH = 3, 6


def made(head_dim=DIM // HEADS, **options):
    torch.manual_seed(0)
    sizes = Sizes(heads=HEADS, head_dim=head_dim, value_dim=head_dim, length=16, dropout=0.1)
    return DBA(sizes, dim=DIM, hidden=12, **({"latents": LATENTS, "width": WIDTH} | options)).double().eval()


def attend(queries, context, real):
    """(i,r), (j,r+d), (j,) -> (i,d), head by head."""
    keys, values, parts, r = context[:, :WIDTH], context[:, WIDTH:], [], WIDTH // HEADS
    for h in range(HEADS):
        s, e = slice(h * r, (h + 1) * r), slice(h * DIM // HEADS, (h + 1) * DIM // HEADS)
        weights = (queries[:, s] @ keys[:, s].T / r**0.5).exp() * real
        parts.append(weights / weights.sum(-1, keepdim=True) @ values[:, e])
    return torch.cat(parts, 1)


def oracle(block, x, real, memory):
    out, packed = torch.zeros_like(x), torch.zeros_like(memory)
    for n in range(N):
        tokens = block.token_norm(x[n])
        z = attend(block.compress_query(memory[n]), block.compress_context(tokens), real[n])
        o = block.latent_norm(attend(block.latent_query(z), block.latent_context(z), torch.ones(LATENTS)))
        y = torch.zeros_like(tokens)
        for h in range(HEADS):
            weights = block.expand(tokens)[:, h * LATENTS : (h + 1) * LATENTS].exp()
            e = slice(h * DIM // HEADS, (h + 1) * DIM // HEADS)
            y[:, e] = weights / weights.sum(1, keepdim=True) @ o[:, e]
        hidden = x[n] + block.output(y)
        out[n], packed[n] = hidden + block.mlp(block.mlp_norm(hidden)), z
    return out, packed


@pytest.mark.parametrize("masked", [False, True])
def test_is_its_definition_over_two_layers(masked):
    one, two = made(), made(first=False)
    real = mask() if masked else torch.ones(N, L, dtype=torch.bool)
    tokens = x().requires_grad_()
    middle, memory = one(tokens, real if masked else None, None)
    out, last = two(middle, real if masked else None, memory)
    expected, packed = oracle(one, tokens, real, one.start.expand(N, -1, -1))
    torch.testing.assert_close((middle[real], memory), (expected[real], packed), rtol=1e-12, atol=1e-12)
    expected, packed = oracle(two, expected, real, packed)
    torch.testing.assert_close((out[real], last), (expected[real], packed), rtol=1e-12, atol=1e-12)
    leaves = [tokens, *one.parameters(), *two.parameters()]
    grads = [torch.autograd.grad(y[real].square().sum(), leaves) for y in (out, expected)]
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10)


def test_only_the_first_layer_learns_where_the_latents_start():
    model = config("dba", "task.length=32").classifier()
    starts = [name for name, _ in model.named_parameters() if name.endswith("start")]
    assert starts == ["blocks.0.start"]
    model(torch.randint(31, (2, 1, 32))).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all() and parameter.grad.any(), name


def test_a_later_layer_reads_the_latents_of_the_one_before():
    block = made(first=False)
    memory = torch.randn(2, N, LATENTS, DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    assert not torch.allclose(block(x(), None, memory[0])[0], block(x(), None, memory[1])[0])
