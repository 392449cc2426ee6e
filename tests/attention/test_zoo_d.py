"""Size, memory and lengths of Skyformer, cosFormer, Hedgehog, FLARE, FNet, H-Transformer-1D and DBA."""

import pytest
import torch
from test_zoo_c import NoSquare, block

from lra.config.compose import compose
from lra.config.experiment import Experiment

# Encoder of the LRA protocol on ListOps (d 64, 2 heads of 32, length 2048, 2 layers); softmax has 209,802, of them
# 2 x 16,640 in the projections of attention.
PARAMETERS = {
    "skyformer": 209_802,
    "cosformer": 209_802,
    "hedgehog": 209_802 + 2 * 2 * 2 * (32 * 32 + 32),  # layers x (queries, keys) x heads
    "flare": 209_802 + 2 * (2 * 128 * 32 - (64 * 64 + 64)),  # latents; one projection for queries and keys
    "fnet": 209_802 - 2 * 16_640,
    "h_transformer_1d": 209_802,
    # LayerNorm of the latents, two maps to queries of 24, two to keys of 24 and values, expansion, output; P
    "dba": 209_802 + 2 * (128 + 65 * (2 * 24 + 2 * (24 + 64) + 2 * 16 + 64) - 16_640) + 16 * 64,
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_number_of_parameters(name):
    with torch.device("meta"):
        model = compose(Experiment, ["task=listops", "budget=paper", f"attn={name}"]).classifier()
    assert sum(p.numel() for p in model.parameters()) == PARAMETERS[name]


@pytest.mark.parametrize("name", PARAMETERS)
@pytest.mark.parametrize("masked", [False, True])
def test_no_square_tensor_forward_or_backward(name, masked):
    length = 1024
    made, x = block(name, length), torch.randn(2, length, 64, requires_grad=True)
    mask = torch.arange(length) < torch.tensor([[length], [700]]) if masked else None
    with NoSquare(length):
        made(x, mask)[0].sum().backward()
    assert x.grad.isfinite().all()


@pytest.mark.parametrize("name", PARAMETERS)
@pytest.mark.parametrize("length", [128, 2048, 16384])
@torch.no_grad()
def test_runs_at_every_task_length(name, length):
    made = block(name, length, "model.dim=16", "model.heads=1").eval()
    for rows in (length, length - 37):
        assert made(torch.randn(1, rows, 16), None)[0].isfinite().all()
        assert made(torch.randn(1, rows, 16), torch.arange(rows)[None] < rows - 5)[0].isfinite().all()
