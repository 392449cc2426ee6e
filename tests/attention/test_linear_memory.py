"""The model of the protocol with each mechanism: parameters, no tensor of n x n, every length of the tasks."""

import itertools

import pytest
import torch
from conftest import config
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

# The model of the protocol on ListOps (d 64, 2 heads of 32, length 2048, 2 layers) has 209,802 parameters with softmax:
# 133,120 in the embeddings, 2 x 33,472 in the blocks, of them 2 x 16,640 in the four projections of attention, 128 in
# the last norm and 9,610 in the head.
BASE, PROJECTION = 209_802, 64 * 64 + 64
PARAMETERS = {
    **dict.fromkeys(("linear", "linear_unnormalised", "performer", "performer_relu", "skyformer", "cosformer"), BASE),
    **dict.fromkeys(("local", "local_strided", "sparse", "sparse_fixed", "longformer", "bigbird"), BASE),
    "h_transformer_1d": BASE,
    "rfa": BASE + 2 * 64,  # a scale for each head and dimension
    "sinkhorn": BASE + 2 * 2 * 33 * 41,  # layers x heads x (D weights and a bias) x blocks
    # One projection for queries and keys.
    **dict.fromkeys(("soft", "softpp", "soft_fixed", "reformer", "reformer_official"), BASE - 2 * PROJECTION),
    "flare": BASE + 2 * (2 * 128 * 32 - PROJECTION),  # and latents
    "psf": BASE - 2 * 16_640 + 2 * (65 * 64 + 65 * 64 + 11 * (65 * 16 + 17 * 12)),  # g and 11 f
    "psf_original": 220_530,
    "fnet": BASE - 2 * 16_640,
    "hedgehog": BASE + 2 * 2 * 2 * (32 * 32 + 32),  # layers x (queries, keys) x heads
    "linformer": BASE + 2 * (2 * 256 * 2048),
    "luna": BASE + 256 * 64 + 2 * (PROJECTION + 2 * 64),  # P; one projection and one LayerNorm more
    "synthesizer": BASE + 2 * (-2 * PROJECTION + 2 * 2 * 2048 * 32),
    "synthesizer_random": BASE + 2 * (-2 * PROJECTION + 2 * 2048 * 2048),
    "synthesizer_dense": BASE + 2 * (-PROJECTION + 2 * 2048 * (32 + 1)),
    "transformer_ls": BASE + 2 * (64 * 2 * 32 + 2 * 2 * 64),
    # LayerNorm of the latents, two maps to queries of 24, two to keys of 24 and values, expansion, output; P
    "dba": BASE + 2 * (128 + 65 * (2 * 24 + 2 * (24 + 64) + 2 * 16 + 64) - 16_640) + 16 * 64,
}
SQUARE = ("soft", "softpp", "synthesizer_random")  # quadratic in memory
QUADRATIC = (*SQUARE, "synthesizer", "synthesizer_dense", "sparse_fixed", "reformer_official")  # too slow at 16384
LONG = [name for name in PARAMETERS if name not in SQUARE]
FURTHER = ("synthesizer attn.dot_product=true", "synthesizer_dense attn.dot_product=true", "luna attn.tie_kv=false")
FURTHER += ("mega_chunk", "mega_chunk attn.weights=laplace", "mega_cur_step", "mega_cur_abs attn.weights=laplace")
FURTHER += ("linformer attn.share_kv=false attn.share_heads=true", "transformer_ls attn.kernel=35")


@pytest.mark.parametrize("name", PARAMETERS)
def test_number_of_parameters(name):
    assert sum(p.numel() for p in config(name, "budget=paper").sketch.parameters()) == PARAMETERS[name]


class NoSquare(TorchDispatchMode):
    """Fails on an operation that returns a tensor of two dimensions of at least ``length``."""

    def __init__(self, length):
        super().__init__()
        self.length = length

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, torch.Tensor) and sum(size >= self.length for size in leaf.shape) > 1:
                raise AssertionError(f"{func} makes {tuple(leaf.shape)}")
        return out


def block(name, length, *overrides):
    torch.manual_seed(0)
    cfg = config(name, *overrides)
    return cfg.changed(task=cfg.task.changed(length=length)).block_factory()()


@pytest.mark.parametrize("words", [*LONG, *FURTHER])
@pytest.mark.parametrize("masked", [False, True])
def test_no_square_tensor_forward_or_backward(words, masked):
    name, *words = words.split()
    length = 1024
    made, x = block(name, length, *words).train(), torch.randn(2, length, 64, requires_grad=True)
    mask = torch.arange(length) < torch.tensor([[length], [700]]) if masked else None
    with NoSquare(length):
        made(x, mask)[0].square().mean().backward()
    assert x.grad.isfinite().all() and x.grad.any()


def test_square_tensors_are_seen_in_the_forward_and_in_the_backward_pass():
    made, x = block("softmax", 256), torch.randn(1, 256, 64)
    with pytest.raises(AssertionError, match="makes"), NoSquare(256):
        made(x, None)
    loss = made(x, None)[0].sum()
    with pytest.raises(AssertionError, match="makes"), NoSquare(256):
        loss.backward()


def lengths():
    for name, length in itertools.product(PARAMETERS, (128, 1024, 2048, 4096, 16384)):
        if length < 16384 or name not in QUADRATIC:
            yield pytest.param(name, length, marks=[pytest.mark.slow] * (length in (1024, 4096)))


@pytest.mark.parametrize(("name", "length"), lengths())
@torch.no_grad()
def test_runs_at_the_lengths_of_the_tasks(name, length):
    made, shorter = block(name, length, "model.dim=16", "model.heads=1").eval(), length - 37
    assert made(torch.randn(1, length, 16), None)[0].isfinite().all()
    assert made(torch.randn(1, shorter, 16), torch.arange(shorter)[None] < shorter - 5)[0].isfinite().all()
