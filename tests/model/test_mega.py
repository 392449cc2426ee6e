"""MEGA against lra/reference/mega.py in float64, its embeddings and head, and its published configurations."""

from functools import partial
from types import SimpleNamespace

import pytest
import torch
from conftest import assert_error, config, experiment
from support.features import same_with_gradients

from lra.attention.base import Sizes
from lra.attention.cur import CUR
from lra.attention.softmax import Softmax
from lra.model.embed import PixelEmbedding, TokenEmbedding
from lra.model.mega import EMA, Mega, MegaHead, RelativeBias
from lra.model.norm import NORMS
from lra.ops.attention_maps import laplace
from lra.ops.pinv import exact
from lra.reference import mega as reference

N, L, DIM, HIDDEN, Z, NDIM = 3, 23, 6, 10, 4, 3
NAMES = ("delta", "alpha", "beta", "gamma", "omega")
LENGTHS = (23, 15, 4)


def x_and_mask():
    x = torch.randn(N, L, DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    return x, torch.arange(L) < torch.tensor(LENGTHS)[:, None]


def mega(attention=Softmax, weights="softmax", **options):
    """Build a block whose scores, gates and averages vary between tokens; with the published init they hardly do."""
    torch.manual_seed(0)
    options = {"z": Z, "ndim": NDIM, "truncation": None, "length": L + 2} | options
    block = Mega(partial(attention, weights=weights), dim=DIM, hidden=HIDDEN, dropout=0.1, **options)
    with torch.no_grad():
        for name, parameter in block.named_parameters():
            if not name.startswith("ema"):
                parameter.add_(0.7 * torch.randn_like(parameter))
    return block.double().eval()


def apply_norm(layer, x):
    parts = layer.state_dict()
    # Batch norm in evaluation mode.
    if "running_mean" in parts:
        x = (x - parts["running_mean"]) / (parts["running_var"] + 1e-5).sqrt()
    elif "bias" in parts:
        return torch.nn.functional.layer_norm(x, x.shape[-1:], layer.weight, layer.bias)
    else:
        x = x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    return x * getattr(layer, "weight", getattr(layer, "scale", None)) + getattr(layer, "bias", 0)


def reference_ema(ema, x):
    return reference.ema(x, *(ema.get_parameter(name) for name in NAMES))


def reference_block(block, x, weights, chunk=None):
    """Apply lra/reference/mega.py and the feed-forward layer to one sequence of real tokens, x (n,d)."""
    y = apply_norm(block.norm, x) if block.prenorm else x
    maps = (block.values, block.gates, block.output, block.qk_scale, block.qk_shift)
    averaged = reference_ema(block.ema, y)
    x = reference.gated_attention(x, y, averaged, *maps, f=weights, w=block.bias.weight, chunk=chunk)
    x = x if block.prenorm else apply_norm(block.norm, x)
    y = apply_norm(block.mlp_norm, x) if block.prenorm else x
    x = x + block.mlp[2](torch.nn.functional.silu(block.mlp[0](y)))
    return x if block.prenorm else apply_norm(block.mlp_norm, x)


@pytest.mark.parametrize("weights", ["softmax", "laplace"])
@pytest.mark.parametrize("kind", NORMS)
@pytest.mark.parametrize("prenorm", [True, False])
@pytest.mark.parametrize("chunk", [None, 6])
def test_mega_block_and_gradients_match_reference(weights, kind, prenorm, chunk):
    block = mega(weights=weights, norm=kind, prenorm=prenorm, chunk=chunk)
    if kind == "batch":
        for layer in (block.norm, block.mlp_norm):
            layer.running_mean.normal_()
            layer.running_var.uniform_(0.5, 2)
    x, mask = x_and_mask()
    out = block(x.requires_grad_(), mask)[0]
    assert out.isfinite().all()
    expected = [reference_block(block, x[n, :real], weights, chunk) for n, real in enumerate(LENGTHS)]
    same_with_gradients(out[mask], torch.cat(expected), [x, *block.parameters()])


@pytest.mark.parametrize("truncation", [None, 1, 2, 7, L, 99])
@pytest.mark.parametrize("masked", [True, False])
def test_ema_matches_sum_over_lags(truncation, masked):
    torch.manual_seed(0)
    ema = EMA(DIM, ndim=NDIM, truncation=truncation).double()
    x, mask = x_and_mask()
    # A masked token inside the sequence contributes nothing, but the average decays at its position.
    mask[:, 2] = False
    real = x * mask[..., None] if masked else x
    past_kernel, future_kernel = ema.kernel(truncation or L).detach()
    y = torch.zeros_like(x)
    for t in range(L):
        for lag in range(min(truncation or L, L)):
            y[:, t] += past_kernel[:, lag] * real[:, t - lag] if t >= lag else 0
            y[:, t] += future_kernel[:, lag] * real[:, t + lag] if t + lag < L else 0
    expected = torch.nn.functional.silu(y + ema.omega * x)
    torch.testing.assert_close(ema(x, mask if masked else None), expected, rtol=1e-10, atol=1e-11)


def test_ema_float32_error_is_close_to_recurrence_error():
    torch.manual_seed(0)
    ema, x = EMA(8), torch.randn(1, 2048, 8)
    with torch.no_grad():
        truth = reference_ema(ema.double(), x[0].double())
        recurrence = reference_ema(ema.float(), x[0])
    assert recurrence.dtype == torch.float32
    assert (ema(x)[0] - truth).abs().max() < 8 * (recurrence - truth).abs().max()


@pytest.mark.parametrize("weights,impl", [("softmax", "eager"), ("softmax", "sdpa"), ("laplace", "eager")])
@pytest.mark.parametrize("score", ["step", "abs"])
@pytest.mark.parametrize("copy_rv", [True, False])
def test_cur_selects_rows_and_columns_of_biased_scores(weights, impl, score, copy_rv):
    torch.manual_seed(0)
    q, k, v = (torch.randn(N, 2, L, size, dtype=torch.float64) for size in (Z, Z, HIDDEN))
    bias = RelativeBias(L + 2).double()
    bias.weight.data.normal_()
    sizes = Sizes(heads=2, head_dim=Z, value_dim=HIDDEN, length=L + 2)
    attention = CUR(sizes, count=6, score=score, pinv=exact, copy_rv=copy_rv, weights=weights, impl=impl).double()
    out = attention(q, k, v, x_and_mask()[1], bias)
    for n, real in enumerate(LENGTHS):
        c = min(6, real)
        for h in range(2):
            a, b, values = (t[n, h, :real] for t in (q, k, v))
            rows = cols = [i * real // c for i in range(c)]
            if score == "abs":
                rows, cols = (t.abs().sum(1).topk(c).indices for t in (a, b))
            A = reference.scores(a, b, weights, bias.weight)
            C, R = reference.weights(A[:, cols], weights), reference.weights(A[rows], weights)
            expected = C @ torch.linalg.pinv(C[rows]) @ (R @ values)
            if copy_rv:
                expected[rows] = R @ values
            torch.testing.assert_close(out[n, h, :real], expected, rtol=1e-9, atol=1e-10)


def test_laplace_weight_of_very_low_score_is_not_zero():
    x = torch.linspace(-6, 6, 99, dtype=torch.float64)
    torch.testing.assert_close(laplace(x), reference.laplace(x), rtol=0, atol=1e-15)
    # In float32 the form with 1 + erf would round to 0.
    assert 0 < laplace(torch.tensor(-1.0)) < 1e-8


def test_pixel_embedding_is_affine_in_intensity():
    embed = PixelEmbedding(length=4, dim=3, dropout=0.0, mean=0.48, std=0.24)
    expected = (torch.tensor([0, 1, 0.2])[:, None] - 0.48) / 0.24 * embed.scale + embed.shift
    torch.testing.assert_close(embed(torch.tensor([[0, 255, 51]]))[0], expected)


def test_token_embedding_without_positions():
    torch.manual_seed(0)
    embed = TokenEmbedding(vocab=1000, length=8, dim=64, dropout=0.0, std=None, positions=False)
    assert set(embed.state_dict()) == {"token.weight"}
    assert embed.token.weight.std().item() == pytest.approx(1 / 8, rel=0.02)
    assert torch.equal(embed(torch.tensor([[5, 7]]))[0, 1], embed.token.weight[7])


def test_mega_head_concatenates_towers():
    head = MegaHead(dim=3, hidden=5, outputs=2, towers=2)
    pooled = torch.randn(4, 2, 3)
    hidden = torch.nn.functional.gelu(head.mlp[0](pooled.flatten(1)))
    torch.testing.assert_close(head(pooled), hidden @ head.mlp[3].weight.T)


@pytest.mark.parametrize("task", ["listops", "text", "retrieval", "image", "pathfinder", "pathfinder_x"])
def test_parameter_counts_and_epochs_match_published(task):
    cfg = experiment(f"experiment=mega_{task}")
    m, b, t = cfg.model, SimpleNamespace(**cfg.block.options), cfg.task
    d, h = m.dim, m.hidden
    per_norm = {"layer": 2 * d, "scale": 1, "batch": 2 * d}[b.norm]
    average = 2 * 4 * d * b.ndim + d
    # Values, gates and output; scales and shifts; the position bias.
    gated = (d + 1) * h + (d + 1) * (2 * d + b.z + h) + (h + 1) * d + 4 * b.z + 2 * t.length - 1
    layer = average + gated + (d + 1) * h + (h + 1) * d + 2 * per_norm
    ends = 2 * d + per_norm if b.prenorm else t.vocab * d
    head = (t.towers * d + 1) * h + h * t.outputs
    assert sum(p.numel() for p in cfg.meta_model.parameters()) == m.layers * layer + ends + head
    steps_per_epoch = {"listops": 96_000, "text": 25_000, "retrieval": 147_086, "image": 45_000}.get(task, 160_000)
    assert cfg.optim.eval_every == -(-steps_per_epoch // cfg.optim.batch)


@pytest.mark.parametrize("attn,num_projections", [("sdpa", 2), ("soft", 1), ("flare", 1)])
def test_every_scale_of_queries_and_keys_gets_a_gradient(attn, num_projections):
    """Mechanisms with one tensor for queries and keys have one scale and shift."""
    block = config(attn, "block=mega", "block.bias=false", "task.length=32", "model.dim=16").block_factory()()
    torch.nn.init.normal_(block.qk_scale)
    block(torch.randn(2, 32, 16), None)[0].square().sum().backward()
    for parameter in (block.qk_scale, block.qk_shift):
        assert len(parameter) == num_projections and (parameter.grad.abs().sum(1) > 0).all()


def test_mechanism_that_does_not_fit_mega_raises_value_error():
    assert_error("Mega needs a mechanism of queries, keys and values, not PSF", config("psf", "block=mega").classifier)
    # The mechanism works on one chunk.
    assert_error(r"count must be from 1 to 6 \(length\), not 7", mega, partial(CUR, count=7, impl="eager"), chunk=6)
