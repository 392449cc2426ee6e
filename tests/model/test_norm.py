"""Parts of a block: norms over real tokens, the bfloat16 residual stream on a CPU, dropout and rotary positions."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import KERNELS, MECHANISMS, assert_error, config, p_value, slow
from support.features import padded_ids, same_with_gradients

from lra.model import dropout
from lra.model.dropout import Dropout
from lra.model.multihead import rotate
from lra.model.norm import NORMS, make_norm
from lra.ops.attention_maps import attend_thin

DIM = 5
HEADS, D, LENGTH = 2, 6, 11
HALF = torch.bfloat16
FAST = ("cur_abs", "cur_step", "nystrom", "sdpa", "mean", "mega", "s4d_lin")
# Relative tolerance: about 50 roundings of 2^-9, a dozen in each pass of each of two layers, if all of them add up.
TOLERANCE = 50 * 2**-9
# Mechanisms that select or sort by rounded numbers choose other tokens, so they get a larger tolerance.
TOLERANCES = dict.fromkeys(("cur_abs", "cur_embed", "cur_random", "cur_sum", "reformer", "reformer_official"), 0.25)


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("real", [(9, 9), (9, 4), (0, 2)])
def test_batch_norm_matches_torch_over_real_tokens(real, masked):
    torch.manual_seed(0)
    layer, torch_bn = make_norm("batch", DIM, momentum=0.3).double(), torch.nn.BatchNorm1d(DIM, momentum=0.3).double()
    with torch.no_grad():
        torch_bn.weight.normal_()
        torch_bn.bias.normal_()
        layer.load_state_dict(torch_bn.state_dict())
    mask = torch.arange(9) < torch.tensor(real)[:, None]
    mask = mask if masked else torch.ones_like(mask)
    # Two steps of training, then evaluation with their running averages.
    for training in (True, True, False):
        layer.train(training)
        torch_bn.train(training)
        x = (torch.randn(2, 9, DIM, dtype=torch.float64) + 3).masked_fill(~mask[..., None], float("inf"))
        padded, real = x.clone().requires_grad_(), x[mask].requires_grad_()
        out, expected = layer(padded, mask if masked else None), torch_bn(real)
        torch.testing.assert_close(out[mask], expected)
        assert torch.equal(out[~mask], x[~mask])
        upstream = torch.randn_like(expected)
        gradients = torch.autograd.grad(out[mask], (padded, *layer.parameters()), upstream)
        exact = torch.autograd.grad(expected, (real, *torch_bn.parameters()), upstream)
        torch.testing.assert_close((gradients[0][mask], *gradients[1:]), exact)
        assert not gradients[0][~mask].any()
        torch.testing.assert_close(dict(layer.state_dict()), dict(torch_bn.state_dict()))


def test_batch_norm_of_one_token_is_finite():
    layer = make_norm("batch", DIM)
    out = layer(torch.randn(1, 3, DIM), torch.tensor([[True, False, False]]))
    assert out.isfinite().all() and all(value.isfinite().all() for value in layer.state_dict().values())


def step(model, use_autocast):
    """Return the loss and the gradient of a batch of four sequences, two of them padded."""
    ids, mask = padded_ids([128, 70, 90, 128])
    torch.manual_seed(1)
    with torch.autocast("cpu", HALF, enabled=use_autocast):
        loss = F.cross_entropy(model(ids, mask).float(), torch.tensor([1, 2, 3, 4]))
    loss.backward()
    grad = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    model.zero_grad()
    return loss.item(), grad


def build(name, *words):
    torch.manual_seed(0)
    # GELU, because rounding can change the sign of a number near zero and so switch a ReLU.
    head = "model.head={_target_: lra.model.classifier.Head, _partial_: true, kind: gelu}"
    return config(name, "model.dropout=0", head, *words).classifier().train()


@pytest.mark.parametrize("pad", ["batch", "none"])
@pytest.mark.parametrize("name", [n if n in FAST else slow(n) for n in MECHANISMS if n not in KERNELS])
def test_bfloat16_step_is_close_to_float32(name, pad):
    model = build(name, f"data.pad={pad}")
    # A model that needs whole padded batches is the same with both values of pad.
    if pad == "none" and not (model.packed or model.grouped):
        pytest.skip(f"{name} keeps its padding")
    (loss, grad), (rounded, second_grad) = (step(model, use_autocast) for use_autocast in (False, True))
    assert second_grad.isfinite().all() and second_grad.dtype == torch.float32
    assert abs(rounded - loss) < TOLERANCE * loss
    assert (second_grad - grad).norm() < TOLERANCES.get(name, TOLERANCE) * grad.norm()


@pytest.mark.parametrize("pad", ["batch", "none"])
@pytest.mark.parametrize("name", ["cur_abs", "sdpa"])
def test_residual_stream_is_bfloat16_under_autocast(name, pad):
    model, stream_dtypes = build(name, f"data.pad={pad}"), []
    for part in (*(block.mlp_norm for block in model.blocks), model.norm):
        part.register_forward_hook(lambda module, inputs, out: stream_dtypes.append((inputs[0].dtype, out.dtype)))
    for use_autocast, dtype in ((True, HALF), (False, torch.float32)):
        step(model, use_autocast)
        assert stream_dtypes == [(dtype, dtype)] * 3
        stream_dtypes.clear()


@pytest.mark.parametrize("kind", NORMS)
def test_norms_accumulate_in_float32(kind):
    """A bfloat16 sum of 4,096 terms would stall early. The kernels of layer and batch norm round their results."""
    torch.manual_seed(0)
    x = (torch.randint(2, (1, 4096, 1)) * 2 + 1).to(HALF).expand(-1, -1, 8)
    norm = make_norm(kind, 8 if kind == "batch" else 4096)
    x = x if kind == "batch" else x.mT.contiguous()
    with torch.no_grad():
        rounded, exact = norm(x), norm(x.float())
    torch.testing.assert_close(rounded.float(), exact, rtol=2**-8 if kind in ("layer", "batch") else 1e-6, atol=0)


@pytest.mark.parametrize("pad", ["batch", "none"])
def test_mean_pooling_accumulates_in_float32(pad):
    model = build("none", f"data.pad={pad}", "protocol.mean_over=length", "task.length=2048")
    model.length, model.norm, model.blocks = 1, None, torch.nn.ModuleList()
    model.embed.forward = lambda ids, positions=None: torch.ones(*ids.shape, 2)
    mask = torch.arange(2048) < torch.tensor([2047, 1025])[:, None]
    with torch.autocast("cpu", HALF):
        assert model._encode(mask.long(), mask).tolist() == [[2047.0] * 2, [1025.0] * 2]


@pytest.mark.parametrize("narrow_side", ["queries", "keys"])
def test_attend_thin_in_bfloat16_is_close_to_float32(narrow_side):
    """The scores (at most 4), the weights and the result are each rounded to 2^-9."""
    g = torch.Generator().manual_seed(0)
    i, j = (5, 40) if narrow_side == "queries" else (40, 5)
    q, k, v = (torch.randn(2, 3, n, 8, generator=g).to(HALF).requires_grad_() for n in (i, j, j))
    real = torch.rand(2, 1, j, generator=g) < 0.7
    bias = torch.randn(3, i, j, generator=g)
    for mask, position_bias in ((None, None), (real, None), (real, bias)):
        float32_inputs = [x.detach().float().requires_grad_() for x in (q, k, v)]
        rounded = attend_thin(q, k, v, mask, None if position_bias is None else position_bias.to(HALF))
        exact = attend_thin(*float32_inputs, mask, position_bias)
        assert rounded.dtype == HALF and (rounded - exact).norm() < 8 * 2**-9 * exact.norm()
        grads = torch.autograd.grad(rounded.sum(), (q, k, v)), torch.autograd.grad(exact.sum(), float32_inputs)
        for first_grad, second_grad in zip(*grads, strict=True):
            assert (first_grad - second_grad).norm() < 16 * 2**-9 * max(second_grad.norm(), exact.norm())


@pytest.mark.parametrize("p", [0.1, 0.5, 0.97])
def test_dropout_rate_scale_and_gradient(p):
    torch.manual_seed(0)
    x = torch.rand(7, 11, 1300, dtype=torch.float64).add_(1).requires_grad_()
    out = Dropout(p)(x)
    keep_mask = out != 0
    n = x.numel()
    assert p_value([keep_mask.sum(), n - keep_mask.sum()], torch.tensor([1 - p, p]) * n) > 1e-3
    factor = (out / x)[keep_mask]
    torch.testing.assert_close(factor, factor[:1].expand_as(factor), rtol=1e-14, atol=0)
    # p is rounded to a multiple of 2^-16.
    assert abs(factor[0] * (1 - p) - 1) <= 2**-17 / (1 - p - 2**-17) + 1e-14
    out.backward(torch.full_like(x, 3))
    torch.testing.assert_close(x.grad, 3 * (out / x).detach())


def test_dropout_mask_has_the_bits_of_numpy_streams(monkeypatch):
    """Each piece has its own stream, and each entry 16 bits of its own."""
    monkeypatch.setattr(dropout, "PIECE", 2**12)
    size = 2**16 + 2**11 + 7
    torch.manual_seed(0)
    seed = int(torch.empty((), dtype=torch.int64).random_())
    torch.manual_seed(0)
    keep_mask = Dropout(0.5)(torch.ones(size)).bool()
    streams = [np.random.Generator(np.random.SFC64((seed, first))) for first in range(0, size, 2**12)]
    draws = np.concatenate([stream.integers(2**64, size=2**10, dtype=np.uint64).view(np.uint16) for stream in streams])
    assert np.array_equal(keep_mask, draws[:size] >= 2**15)


@pytest.mark.parametrize("x", [torch.ones(()), torch.ones(0), torch.ones(6, 4).t()], ids=["scalar", "empty", "turned"])
def test_dropout_shapes_evaluation_and_extreme_rates(x):
    assert Dropout(0.1)(x).shape == x.shape and Dropout(0.5).eval()(x) is x and Dropout(0.0)(x) is x
    assert not Dropout(1.0)(x).any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("tied", [False, True])
def test_16_bit_dropout_rounds_once(dtype, tied):
    """1 / 0.9 is not a 16-bit number, so the product is computed in float32 and each entry is rounded once."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(3, 500, 40, generator=g).to(dtype).requires_grad_()
    drop = Dropout(0.1, tied=tied)
    torch.manual_seed(5)
    out = drop(x)
    torch.manual_seed(5)
    keep_mask = drop(torch.ones(3, 500, 40)) != 0
    scale = dropout.LEVELS / (dropout.LEVELS - round(0.1 * dropout.LEVELS))
    assert out.dtype == dtype and torch.equal(out, torch.where(keep_mask, x.float() * scale, 0).to(dtype))
    grad = torch.randn(3, 500, 40, generator=g).to(dtype)
    (saved,) = out.grad_fn.saved_tensors
    out.backward(grad)
    assert torch.equal(x.grad, torch.where(keep_mask, grad.float() * scale, 0).to(dtype))
    assert saved.dtype == dtype and saved.unique().tolist() == [0, 1]


def test_tied_dropout_shares_mask_over_positions():
    torch.manual_seed(0)
    out = Dropout(0.25, tied=True)(torch.ones(50, 9, 40))
    assert torch.equal(out, out[:, :1].expand_as(out)) and set(out.unique().tolist()) == {0.0, out.max().item()}
    assert out.max().item() == pytest.approx(4 / 3, rel=1e-4) and abs((out == 0).float().mean() - 0.25) < 0.05


def rotate_complex(x, positions):
    """Rotate x (n,D): features i and D/2 + i form one complex number, with the angle position · 10000^(-2i/D)."""
    angles = positions[:, None] * 10_000.0 ** (-2 * torch.arange(D // 2, dtype=torch.float64) / D)
    pairs = torch.complex(*x.chunk(2, -1)) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat([pairs.real, pairs.imag], -1)


def test_rotary_attention_matches_complex_rotation():
    torch.manual_seed(0)
    words = ("model.positions=rotary", f"task.length={LENGTH}", f"model.heads={HEADS}", f"model.dim={HEADS * D}")
    mixer, g = config("sdpa", *words).block_factory()().mixer.double(), torch.Generator().manual_seed(1)
    x = torch.randn(2, LENGTH, HEADS * D, dtype=torch.float64, generator=g).requires_grad_()
    mask = torch.rand(2, LENGTH, generator=g) < 0.7
    positions = torch.arange(LENGTH)
    outputs = []
    for tokens, real in zip(x, mask, strict=True):
        heads = []
        for q, k, v in zip(*(part.split(D, -1) for part in mixer.inputs(tokens).chunk(3, -1)), strict=True):
            scores = rotate_complex(q, positions) @ rotate_complex(k, positions)[real].T / D**0.5
            heads.append(scores.softmax(-1) @ v[real])
        outputs.append(mixer.output(torch.cat(heads, -1)))
    same_with_gradients(mixer(x, mask), torch.stack(outputs), [x, *mixer.parameters()])


def test_rotate_takes_any_positions_and_keeps_dtype():
    x, positions = torch.randn(7, D, dtype=torch.float64), torch.tensor([0, 1, 5, 2, 9, 100, 3])
    torch.testing.assert_close(rotate(x, positions), rotate_complex(x, positions), rtol=1e-12, atol=1e-12)
    half = x.bfloat16()
    torch.testing.assert_close(rotate(half), rotate(half.float()).bfloat16(), rtol=2**-8, atol=2**-8)


@pytest.mark.parametrize("positions", ["rotary", "none"])
def test_rotary_and_no_positions_have_no_position_table(positions):
    model = config("sdpa", f"model.positions={positions}").classifier().double().eval()
    assert model.embed.position is None
    ids = torch.randint(1, 15, (1, 1, 20))
    assert torch.allclose(model(ids.flip(-1)), model(ids)) == (positions == "none")


@pytest.mark.parametrize("attn", ["s4d_lin", "luna", "mega", "psf", "fnet", "sdpa model.head_dim=5"])
def test_rotary_positions_need_queries_and_keys_of_heads_of_even_size(attn):
    learned = r"model\.positions must be learned or none for"
    message = "head_dim must be even for rotary positions, not 5" if "head_dim=5" in attn else learned
    assert_error(message, config(attn, "model.positions=rotary").classifier)
