"""Transformer-LS against its definition written out query by query, in float64."""

import pytest
import torch

from lra.attention.base import Sizes
from lra.attention.transformer_ls import TransformerLS

N, L, DIM, H, D, RANK = 2, 11, 6, 2, 4, 3


def made(**options):
    torch.manual_seed(0)
    sizes = Sizes(heads=H, head_dim=D, value_dim=D, length=16)
    mixer = TransformerLS(sizes, dim=DIM, **({"rank": RANK, "window": 4} | options)).double().eval()
    for norm in (mixer.token_norm, mixer.compressed_norm):
        torch.nn.init.normal_(norm.weight)
        torch.nn.init.normal_(norm.bias)
    return mixer


def x():
    return torch.randn(N, L, DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def mask():
    real = torch.ones(N, L, dtype=torch.bool)
    real[0, [0, 4]], real[1, 6:] = False, False
    return real


def oracle(mixer, x, real, window):
    length, reach, width = x.shape[1], max(window // 2, 1), H * D
    mixed = torch.zeros(N, length, width, dtype=x.dtype)
    for n in range(N):
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


@pytest.mark.parametrize("window", [1, 2, 4, 5, 11, 16])
@pytest.mark.parametrize("masked", [False, True])
def test_is_its_definition(window, masked):
    mixer = made(window=window)
    real = mask() if masked else torch.ones(N, L, dtype=torch.bool)
    with torch.no_grad():
        out, expected = mixer(x(), real if masked else None), oracle(mixer, x(), real, window)
    torch.testing.assert_close(out, expected, rtol=1e-11, atol=1e-12)  # padded rows too: they give output(0)


@pytest.mark.parametrize("kernel", [1, 3, 5])
def test_convolution_of_the_values(kernel):
    mixer = made(kernel=kernel)
    torch.testing.assert_close(mixer(x(), mask()), oracle(mixer, x(), mask(), 4), rtol=1e-11, atol=1e-12)
    assert not mixer.conv.weight.any()
    torch.nn.init.normal_(mixer.conv.weight)
    with torch.no_grad():
        out, expected = mixer(x(), mask()), oracle(mixer, x(), mask(), 4)
    torch.testing.assert_close(out, expected, rtol=1e-11, atol=1e-12)
