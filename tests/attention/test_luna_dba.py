"""Luna, DBA and Transformer-LS against lra/reference in float64."""

import pytest
import torch
from conftest import config
from support.features import PATTERNS, TOKEN_SIZES, D, H, all_real, masks, same_with_gradients, tokens

from lra.attention.base import Sizes
from lra.attention.dba import DBA
from lra.attention.luna import Luna
from lra.attention.transformer_ls import TransformerLS
from lra.reference import latents, transformer_ls

L, DIM, HEADS, LATENTS, WIDTH = 9, 8, 2, 3, 6
LS_DIM, LS_LENGTH, RANK = 6, 11, 3
OPTIONS = {Luna: {"rows": LATENTS}, DBA: {"latents": LATENTS, "width": WIDTH}}


def make(kind, **options):
    torch.manual_seed(0)
    sizes = Sizes(heads=HEADS, head_dim=DIM // HEADS, value_dim=DIM // HEADS, length=16, dropout=0.1)
    return kind(sizes, dim=DIM, hidden=12, **(OPTIONS[kind] | options)).double().eval()


def maps(query, context, width):
    """Maps of queries, keys and values. Tied keys and values are the same DIM outputs."""
    return query, lambda c: context(c)[:, :width], lambda c: context(c)[:, -DIM:]


def luna(block, tokens, memory):
    pack = maps(block.pack_query, block.pack_context, DIM)
    unpack = maps(block.unpack_query, block.unpack_context, DIM)
    y, packed = latents.luna(tokens, block.packed_norm(memory), pack, unpack, HEADS)
    return y, memory + packed


def dba(block, tokens, memory):
    compress = maps(block.compress_query, block.compress_context, WIDTH)
    latent = maps(block.latent_query, block.latent_context, WIDTH)
    return latents.dba(tokens, memory, compress, latent, block.latent_norm, block.expand, HEADS)


def oracle(block, x, real, memory):
    out, packed = torch.zeros_like(x), torch.zeros_like(memory)
    formula = luna if isinstance(block, Luna) else dba
    for n in range(len(x)):
        y, packed[n] = formula(block, block.token_norm(x[n, real[n]]), memory[n])
        hidden = x[n, real[n]] + block.output(y)
        out[n, real[n]] = hidden + block.mlp(block.mlp_norm(hidden))
    return out, packed


@pytest.mark.parametrize("kind, options", [(Luna, {"tie_kv": True}), (Luna, {"tie_kv": False}), (DBA, {})])
@PATTERNS
def test_luna_and_dba_match_reference_over_two_layers(kind, options, pattern):
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
def test_transformer_ls_matches_reference(pattern, window, kernel):
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
    real = all_real(mask, LS_LENGTH)
    mixed = torch.zeros(len(x), LS_LENGTH, H * D, dtype=x.dtype)
    for n in range(len(x)):
        at = real[n].nonzero()[:, 0]
        q, k, v = mixer.inputs(x[n, at]).split(H * D, -1)  # (n,H D)
        k, v = mixer.token_norm(k), mixer.token_norm(v)
        options = {"heads": H, "window": window, "norm": mixer.compressed_norm}
        mixed[n, at] = transformer_ls.attention(q, k, v, mixer.project(x[n, at]), at, **options)
        if kernel:
            mixed[n] += transformer_ls.convolution(v, at, mixer.conv.weight[:, 0, :, 0], LS_LENGTH)
    torch.testing.assert_close(mixer(x, mask), mixer.output(mixed), rtol=1e-11, atol=1e-12)
