"""Luna and DBA, whole blocks with a memory, against their products written out, in float64."""

import pytest
import torch
from conftest import config
from support.features import PATTERNS, all_real, masks, same_with_gradients, tokens

from lra.attention.base import Sizes
from lra.attention.dba import DBA
from lra.attention.luna import Luna

L, DIM, HEADS, ROWS, WIDTH = 9, 8, 2, 3, 6
OPTIONS = {Luna: {"rows": ROWS}, DBA: {"latents": ROWS, "width": WIDTH}}


def made(kind, **options):
    torch.manual_seed(0)
    sizes = Sizes(heads=HEADS, head_dim=DIM // HEADS, value_dim=DIM // HEADS, length=16, dropout=0.1)
    return kind(sizes, dim=DIM, hidden=12, **(OPTIONS[kind] | options)).double().eval()


def attend(queries, keys, values, real):
    """(i,r), (j,r), (j,d), (j,) -> (i,d), head by head."""
    parts = []
    for q, k, v in zip(*(t.chunk(HEADS, -1) for t in (queries, keys, values)), strict=True):
        weights = (q @ k.T / q.shape[1] ** 0.5).exp() * real
        parts.append(weights / weights.sum(-1, keepdim=True) @ v)
    return torch.cat(parts, 1)


def luna(block, x, tokens, memory, real):
    both = lambda layer, c: (layer(c)[:, :DIM], layer(c)[:, -DIM:])  # tied: the same columns twice
    q = attend(block.pack_query(block.packed_norm(memory)), *both(block.pack_context, tokens), real)
    y = attend(block.unpack_query(tokens), *both(block.unpack_context, q), torch.ones(ROWS))
    return y, memory + q


def dba(block, x, tokens, memory, real):
    both = lambda context: (context[:, :WIDTH], context[:, WIDTH:])
    z = attend(block.compress_query(memory), *both(block.compress_context(tokens)), real)
    o = block.latent_norm(attend(block.latent_query(z), *both(block.latent_context(z)), torch.ones(ROWS)))
    weights = (scores.exp() for scores in block.expand(tokens).chunk(HEADS, -1))
    parts = [w / w.sum(1, keepdim=True) @ e for w, e in zip(weights, o.chunk(HEADS, -1), strict=True)]
    return torch.cat(parts, 1), z


def oracle(block, x, real, memory):
    out, packed = torch.zeros_like(x), torch.zeros_like(memory)
    for n in range(len(x)):
        formula = luna if isinstance(block, Luna) else dba
        y, packed[n] = formula(block, x[n], block.token_norm(x[n]), memory[n], real[n])
        hidden = x[n] + block.output(y)
        out[n] = hidden + block.mlp(block.mlp_norm(hidden))
    return out, packed


@pytest.mark.parametrize("kind, options", [(Luna, {"tie_kv": True}), (Luna, {"tie_kv": False}), (DBA, {})])
@PATTERNS
def test_is_its_definition_over_two_layers(kind, options, pattern):
    one, two = made(kind, **options), made(kind, **options, first=False)
    x, mask = tokens(DIM, L), masks(L)[pattern]
    real = all_real(mask, L)
    middle, memory = one(x, mask, None)
    out, last = two(middle, mask, memory)
    expected, packed = oracle(one, x, real, one.start.expand(3, -1, -1))
    torch.testing.assert_close((middle[real], memory), (expected[real], packed), rtol=1e-12, atol=1e-12)
    expected, packed = oracle(two, expected, real, packed)
    torch.testing.assert_close(last, packed, rtol=1e-12, atol=1e-12)
    same_with_gradients(out[real], expected[real], [x, *one.parameters(), *two.parameters()])


@pytest.mark.parametrize("words", [("luna", "attn.rows=4"), ("dba",)])
def test_only_the_first_layer_learns_where_the_memory_starts(words):
    model = config(*words, "task.length=32").classifier()
    assert [name for name, _ in model.named_parameters() if name.endswith("start")] == ["blocks.0.start"]
    model(torch.randint(31, (2, 1, 32))).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all() and parameter.grad.any(), name
