"""SOFT, PSF and the kernel feature mechanisms in the model of the protocol: sizes, lengths, and no n x n tensor."""

import pytest
import torch
from conftest import config
from torch.utils._python_dispatch import TorchDispatchMode

from lra.config.compose import compose
from lra.config.experiment import Experiment

LINEAR = ["soft_fixed", "psf", "psf_original", "linear", "linear_unnormalised", "performer", "performer_relu", "rfa"]

# The model of the protocol on ListOps has 209,802 parameters with softmax: 133,120 in the embeddings, 2 x 33,472 in the
# blocks, of them 2 x 16,640 in the four projections of attention, 128 in the last norm and 9,610 in the head.
PARAMETERS = {
    "soft": 209_802 - 2 * 4_160,  # one projection for queries and keys
    "softpp": 209_802 - 2 * 4_160,
    "soft_fixed": 209_802 - 2 * 4_160,
    "psf": 209_802 - 2 * 16_640 + 2 * (65 * 64 + 65 * 64 + 11 * (65 * 16 + 17 * 12)),  # g and 11 f
    "psf_original": 220_530,
    "linear": 209_802,
    "linear_unnormalised": 209_802,
    "performer": 209_802,
    "performer_relu": 209_802,
    "rfa": 209_802 + 2 * 64,  # a scale for each head and dimension
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_of_the_protocol_model(name):
    model = compose(Experiment, ["task=listops", f"attn={name}"]).classifier()
    assert sum(p.numel() for p in model.parameters()) == PARAMETERS[name]


def block(name, length):
    torch.manual_seed(0)
    cfg = config(name)
    cfg = cfg.changed(task=cfg.task.changed(length=length))
    return cfg.block_factory()()


LENGTHS = [(name, n) for name in LINEAR for n in (128, 1024, 2048, 4096, 16384)]
LENGTHS += [(name, n) for name in ("soft", "softpp") for n in (128, 1024, 2048, 4096)]


@pytest.mark.parametrize(
    ("name", "length"), [pytest.param(*one, marks=[pytest.mark.slow] * (one[1] in (1024, 4096))) for one in LENGTHS]
)
def test_runs_at_the_lengths_of_the_tasks(name, length):
    made, x = block(name, length).eval(), torch.randn(1, length, 64)
    with torch.no_grad():
        assert made(x, torch.arange(length)[None] < length - 5)[0].isfinite().all()


class NoSquare(TorchDispatchMode):
    """Fails on any tensor with two dimensions of at least ``length``, forward and backward."""

    def __init__(self, length):
        super().__init__()
        self.length = length

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else (out,):
            if isinstance(tensor, torch.Tensor) and sum(size >= self.length for size in tensor.shape) > 1:
                raise MemoryError(f"{func}: {tuple(tensor.shape)}")
        return out


def step(name, length, masked):
    made, x = block(name, length).train(), torch.randn(2, length, 64, requires_grad=True)
    mask = torch.arange(length) < torch.tensor([[length], [length // 3]]) if masked else None
    with NoSquare(length):
        made(x, mask)[0].square().mean().backward()
    assert x.grad.any()


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", LINEAR)
def test_builds_no_square_tensor(name, masked):
    step(name, 1024, masked)


def test_square_tensors_are_seen_in_the_forward_and_in_the_backward_pass():
    with pytest.raises(MemoryError):
        step("softmax", 1024, False)
    loss = block("softmax", 1024)(torch.randn(1, 1024, 64), None)[0].sum()
    with pytest.raises(MemoryError), NoSquare(1024):
        loss.backward()
