"""The block of each mechanism: no tensor of n x n, every length of the tasks."""

import itertools

import pytest
import torch
from conftest import KERNELS, MECHANISMS, config
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

NAMES = [name for name in MECHANISMS if not name.startswith(("cur_", "mega", "nystrom")) and name not in KERNELS]
SQUARE = ("soft", "softpp", "softmax", "synthesizer_random")  # quadratic in memory
QUADRATIC = (*SQUARE, "sdpa", "synthesizer", "synthesizer_dense", "sparse_fixed", "reformer_official")  # slow at 16384
LONG = [name for name in NAMES if name not in SQUARE]
FURTHER = ("synthesizer attn.dot_product=true", "synthesizer_dense attn.dot_product=true", "luna attn.tie_kv=false")
FURTHER += ("mega_chunk", "mega_chunk attn.weights=laplace", "mega_cur_step", "mega_cur_abs attn.weights=laplace")
FURTHER += ("linformer attn.share_kv=false attn.share_heads=true", "transformer_ls attn.kernel=35")


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
    return cfg.replace(task=cfg.task.replace(length=length)).block_factory()()


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
    for name, length in itertools.product(NAMES, (128, 1024, 2048, 4096, 16384)):
        if length < 16384 or name not in QUADRATIC:
            yield pytest.param(name, length, marks=[pytest.mark.slow] * (length in (1024, 4096)))


@pytest.mark.parametrize(("name", "length"), lengths())
@torch.no_grad()
def test_runs_at_the_lengths_of_the_tasks(name, length):
    made, shorter = block(name, length, "model.dim=16", "model.heads=1").eval(), length - 37
    assert made(torch.randn(1, length, 16), None)[0].isfinite().all()
    assert made(torch.randn(1, shorter, 16), torch.arange(shorter)[None] < shorter - 5)[0].isfinite().all()
