"""Transformer-LS against its definition written out query by query, in float64."""

import pytest
import torch
from support.features import PATTERNS, TOKEN_SIZES, D, H, all_real, masks, tokens

from lra.attention.transformer_ls import TransformerLS

DIM, L, RANK = 6, 11, 3


def made(**options):
    torch.manual_seed(0)
    mixer = TransformerLS(TOKEN_SIZES, dim=DIM, rank=RANK, **options).double().eval()
    for norm in (mixer.token_norm, mixer.compressed_norm):
        torch.nn.init.normal_(norm.weight)
        torch.nn.init.normal_(norm.bias)
    return mixer


def oracle(mixer, x, real, window):
    length, reach, width = x.shape[1], max(window // 2, 1), H * D
    mixed = torch.zeros(len(x), length, width, dtype=x.dtype)
    for n in range(len(x)):
        q, k, v = mixer.inputs(x[n]).split(width, -1)  # (L,H D)
        k, v = mixer.token_norm(k), mixer.token_norm(v)
        p = mixer.project(x[n]).exp() * real[n, :, None]  # (L,H rank)
        p = p / p.sum(0)
        head = lambda h: slice(h * D, (h + 1) * D)
        long = [
            torch.stack([torch.cat([p[:, h * RANK + r] @ t[:, head(h)] for h in range(H)]) for r in range(RANK)])
            for t in (k, v)
        ]  # (rank,H D) each
        k_long, v_long = (mixer.compressed_norm(t) for t in long)
        for i in real[n].nonzero()[:, 0].tolist():
            start = i // window * window
            seen = [j for j in range(start - reach, start + window + reach) if 0 <= j < length and real[n, j]]
            for h in range(H):
                keys, values = (torch.cat([a[:, head(h)], b[seen][:, head(h)]]) for a, b in ((k_long, k), (v_long, v)))
                weights = (keys @ q[i, head(h)] / D**0.5).exp()
                mixed[n, i, head(h)] = weights / weights.sum() @ values
        if mixer.conv is not None:
            reach_c = mixer.conv.weight.shape[2] // 2
            for i in range(length):
                for j in range(max(0, i - reach_c), min(length, i + reach_c + 1)):
                    if real[n, j]:
                        for h in range(H):
                            mixed[n, i, head(h)] += mixer.conv.weight[h, 0, j - i + reach_c, 0] * v[j, head(h)]
    return mixer.output(mixed)


@torch.no_grad()
def check(mixer, pattern, window):
    """Padded rows too: they are output(0)."""
    x, mask = tokens(DIM, L), masks(L)[pattern]
    torch.testing.assert_close(mixer(x, mask), oracle(mixer, x, all_real(mask, L), window), rtol=1e-11, atol=1e-12)


@PATTERNS
@pytest.mark.parametrize("window", [1, 2, 4, 5, 11, 16])
def test_is_its_definition(pattern, window):
    check(made(window=window), pattern, window)


@PATTERNS
@pytest.mark.parametrize("kernel", [1, 3, 5])
def test_convolution_of_the_values(pattern, kernel):
    mixer = made(window=4, kernel=kernel)
    assert not mixer.conv.weight.any()
    torch.nn.init.normal_(mixer.conv.weight)
    check(mixer, pattern, 4)
