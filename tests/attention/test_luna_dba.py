"""Luna, DBA and Transformer-LS against direct float64 implementations of their equations."""

import pytest
import torch
from conftest import config
from support.features import PATTERNS, TOKEN_SIZES, D, H, all_real, masks, same_with_gradients, tokens

from lra.attention.base import Sizes
from lra.attention.dba import DBA
from lra.attention.luna import Luna
from lra.attention.transformer_ls import TransformerLS

L, DIM, HEADS, LATENTS, WIDTH = 9, 8, 2, 3, 6
LS_DIM, LS_LENGTH, RANK = 6, 11, 3
OPTIONS = {Luna: {"rows": LATENTS}, DBA: {"latents": LATENTS, "width": WIDTH}}


def make(kind, **options):
    torch.manual_seed(0)
    sizes = Sizes(heads=HEADS, head_dim=DIM // HEADS, value_dim=DIM // HEADS, length=16, dropout=0.1)
    return kind(sizes, dim=DIM, hidden=12, **(OPTIONS[kind] | options)).double().eval()


def attend(queries, keys, values, real):
    """Multi-head attention with queries (i,r), keys (j,r), values (j,d) and mask (j,) -> (i,d)."""
    parts = []
    for q, k, v in zip(*(t.chunk(HEADS, -1) for t in (queries, keys, values)), strict=True):
        weights = (q @ k.T / q.shape[1] ** 0.5).exp() * real
        parts.append(weights / weights.sum(-1, keepdim=True) @ v)
    return torch.cat(parts, 1)


def luna(block, x, tokens, memory, real):
    # With tied keys and values the layer has DIM outputs, and both slices are the same.
    keys_values = lambda layer, c: (layer(c)[:, :DIM], layer(c)[:, -DIM:])
    q = attend(block.pack_query(block.packed_norm(memory)), *keys_values(block.pack_context, tokens), real)
    return attend(block.unpack_query(tokens), *keys_values(block.unpack_context, q), torch.ones(LATENTS)), memory + q


def dba(block, x, tokens, memory, real):
    keys_values = lambda context: (context[:, :WIDTH], context[:, WIDTH:])
    z = attend(block.compress_query(memory), *keys_values(block.compress_context(tokens)), real)
    o = block.latent_norm(attend(block.latent_query(z), *keys_values(block.latent_context(z)), torch.ones(LATENTS)))
    weights = (scores.exp() for scores in block.expand(tokens).chunk(HEADS, -1))
    return torch.cat([w / w.sum(1, keepdim=True) @ e for w, e in zip(weights, o.chunk(HEADS, -1), strict=True)], 1), z


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
def test_luna_and_dba_match_definition_over_two_layers(kind, options, pattern):
    first_layer, second_layer = make(kind, **options), make(kind, **options, first=False)
    x, mask = tokens(DIM, L), masks(L)[pattern]
    real = all_real(mask, L)
    first_out, memory = first_layer(x, mask, None)
    out, last_memory = second_layer(first_out, mask, memory)
    expected, packed = oracle(first_layer, x, real, first_layer.start.expand(3, -1, -1))
    torch.testing.assert_close((first_out[real], memory), (expected[real], packed), rtol=1e-12, atol=1e-12)
    expected, packed = oracle(second_layer, expected, real, packed)
    torch.testing.assert_close(last_memory, packed, rtol=1e-12, atol=1e-12)
    same_with_gradients(out[real], expected[real], [x, *first_layer.parameters(), *second_layer.parameters()])


@pytest.mark.parametrize("words", [("luna", "attn.rows=4"), ("dba",)])
def test_only_first_layer_has_initial_memory_parameter(words):
    model = config(*words, "task.length=32").classifier()
    assert [name for name, _ in model.named_parameters() if name.endswith("start")] == ["blocks.0.start"]


@PATTERNS
@pytest.mark.parametrize("window, kernel", [(1, 0), (2, 0), (4, 0), (5, 0), (11, 0), (16, 0), (4, 1), (4, 3), (4, 5)])
@torch.no_grad()
def test_transformer_ls_matches_definition(pattern, window, kernel):
    """Padded positions are compared too: they hold output(0)."""
    torch.manual_seed(0)
    mixer = TransformerLS(TOKEN_SIZES, dim=LS_DIM, rank=RANK, window=window, kernel=kernel).double().eval()
    for norm in (mixer.token_norm, mixer.compressed_norm):
        torch.nn.init.normal_(norm.weight)
        torch.nn.init.normal_(norm.bias)
    if kernel:
        assert not mixer.conv.weight.any()
        torch.nn.init.normal_(mixer.conv.weight)
    x, mask = tokens(LS_DIM, LS_LENGTH), masks(LS_LENGTH)[pattern]
    real, length, side, width = all_real(mask, LS_LENGTH), LS_LENGTH, max(window // 2, 1), H * D
    mixed = torch.zeros(len(x), length, width, dtype=x.dtype)
    for n in range(len(x)):
        q, k, v = mixer.inputs(x[n]).split(width, -1)  # (L,H D)
        k, v = mixer.token_norm(k), mixer.token_norm(v)
        p = mixer.project(x[n]).exp() * real[n, :, None]  # (L,H rank)
        p = p / p.sum(0)
        head = lambda h: slice(h * D, (h + 1) * D)
        compressed = [
            torch.stack([torch.cat([p[:, h * RANK + r] @ t[:, head(h)] for h in range(H)]) for r in range(RANK)])
            for t in (k, v)
        ]  # (rank,H D) each
        k_long, v_long = (mixer.compressed_norm(t) for t in compressed)
        for i in real[n].nonzero()[:, 0].tolist():
            start = i // window * window
            band = [j for j in range(start - side, start + window + side) if 0 <= j < length and real[n, j]]
            for h in range(H):
                keys, values = (torch.cat([a[:, head(h)], b[band][:, head(h)]]) for a, b in ((k_long, k), (v_long, v)))
                weights = (keys @ q[i, head(h)] / D**0.5).exp()
                mixed[n, i, head(h)] = weights / weights.sum() @ values
        if mixer.conv is not None:
            radius = mixer.conv.weight.shape[2] // 2
            for i in range(length):
                for j in range(max(0, i - radius), min(length, i + radius + 1)):
                    if real[n, j]:
                        for h in range(H):
                            mixed[n, i, head(h)] += mixer.conv.weight[h, 0, j - i + radius, 0] * v[j, head(h)]
    torch.testing.assert_close(mixer(x, mask), mixer.output(mixed), rtol=1e-11, atol=1e-12)
