"""Size, memory and lengths of Linformer, Luna, the Synthesizers and Transformer-LS."""

import pytest
import torch
from conftest import config
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lra.config.compose import compose
from lra.config.experiment import Experiment

LINEAR = ("linformer", "luna", "transformer_ls")
FUSED = ("synthesizer", "synthesizer_dense")  # quadratic in time, not in memory
ALL = (*LINEAR, *FUSED, "synthesizer_random")
BLOCKS = [(name, ()) for name in (*LINEAR, *FUSED)] + [(name, ("attn.dot_product=true",)) for name in FUSED]
BLOCKS += [("linformer", ("attn.share_kv=false", "attn.share_heads=true")), ("luna", ("attn.tie_kv=false",))]
BLOCKS += [("transformer_ls", ("attn.kernel=35",))]

# Encoder of the LRA protocol on ListOps (d 64, 2 heads of 32, length 2048, 2 layers); softmax has 209,802.
PARAMETERS = {
    "linformer": 209_802 + 2 * (2 * 256 * 2048),
    "luna": 209_802 + 256 * 64 + 2 * (64 * 64 + 64 + 2 * 64),  # P; one projection and one LayerNorm more
    "synthesizer": 209_802 + 2 * (-2 * (64 * 64 + 64) + 2 * 2 * 2048 * 32),
    "synthesizer_random": 209_802 + 2 * (-2 * (64 * 64 + 64) + 2 * 2048 * 2048),
    "synthesizer_dense": 209_802 + 2 * (-(64 * 64 + 64) + 2 * 2048 * (32 + 1)),
    "transformer_ls": 209_802 + 2 * (64 * 2 * 32 + 2 * 2 * 64),
}


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
    cfg = cfg.changed(task=cfg.task.changed(length=length))
    return cfg.block_factory()()


@pytest.mark.parametrize(("name", "options"), BLOCKS)
@pytest.mark.parametrize("masked", [False, True])
def test_no_square_tensor_forward_or_backward(name, options, masked):
    length = 1024
    made, x = block(name, length, *options), torch.randn(2, length, 64, requires_grad=True)
    mask = torch.arange(length) < torch.tensor([[length], [700]]) if masked else None
    with NoSquare(length):
        made(x, mask)[0].sum().backward()
    assert x.grad.isfinite().all()


def test_the_square_detector_sees_exact_attention():
    made, x = block("softmax", 256), torch.randn(1, 256, 64)
    with pytest.raises(AssertionError, match="makes"), NoSquare(256):
        made(x, None)


@pytest.mark.parametrize("name", ALL)
def test_number_of_parameters(name):
    with torch.device("meta"):
        model = compose(Experiment, ["task=listops", "budget=paper", f"attn={name}"]).classifier()
    assert sum(p.numel() for p in model.parameters()) == PARAMETERS[name]


@pytest.mark.parametrize(
    ("name", "length"),
    [(name, length) for length in (128, 1024, 2048, 4096) for name in ALL] + [(name, 16384) for name in LINEAR],
)
@torch.no_grad()
def test_runs_at_every_task_length(name, length):
    made = block(name, length, "model.dim=16", "model.heads=1").eval()
    for rows in (length, length - 37):
        assert made(torch.randn(1, rows, 16), None)[0].isfinite().all()
