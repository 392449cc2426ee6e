"""PSF and the one-block models of its paper (conf/experiment/psf_*) against lra/reference/psf.py, in float64."""

import pytest
import torch
import torch.nn.functional as F
from conftest import experiment
from support.features import PATTERNS, TOKEN_SIZES, all_real, masks, same_with_gradients

from lra.attention.psf import PSF
from lra.reference import psf as reference
from lra.reference.psf import sparse_factor

DIM, L = 6, 11


@PATTERNS
@pytest.mark.parametrize("ring", ["real", "row"])
@pytest.mark.parametrize(
    "options, offsets",
    [
        ({}, [0, 1, 2, 4, 8]), ({"residuals": True}, [0, 1, 2, 4, 8]), ({"channels": 4}, [0, 1, 2, 4, 8]),
        ({"links": "paper"}, [0, 1, 2, 4]), ({"links": 6, "factors": 2}, [0, 1, 2, 4, 8, 16]),
        ({"links": 1, "factors": 1}, [0]),
        ({"channels": 4, "project": False, "hidden": 3, "value_hidden": 5}, [0, 1, 2, 4, 8]),
    ],
    ids=str,
)  # fmt: skip
def test_psf_and_gradients_match_reference(pattern, ring, options, offsets):
    torch.manual_seed(0)
    psf, mask = PSF(TOKEN_SIZES, dim=DIM, **options, ring=ring).double(), masks(L)[pattern]
    assert len(psf.weights) == options.get("factors", 4) and psf.offsets.tolist() == offsets
    x = torch.randn(3, L, DIM, dtype=torch.float64, requires_grad=True)
    real = all_real(mask if ring == "real" else None, L)
    weights = list(psf.weights)
    mixed = [reference.attention(x[n, real[n]], psf.values, weights, residuals=psf.residuals) for n in range(3)]
    out = psf(x, mask)[real]
    assert out.shape[-1] == (4 if options.get("project") is False else DIM)
    same_with_gradients(out, psf.output(torch.cat(mixed)), [x, *psf.parameters()])


# Released configurations: token ids, embedding width, positions, factors M, links K, hidden units of f, hidden units of
# g, channels, inputs, hidden units and outputs of the head. Our Text has 258 token ids, not 97; our Pathfinder has 256
# grey levels, not 225. Adding has no embedding but a linear layer with 2 inputs and a bias.
MODEL_SIZES = {
    "listops": (17, 512, 2000, 11, 12, 128, 128, 128, 128, None, 10),
    "text": (258, 32, 0, 12, 13, 128, 128, 32, 32, None, 2),
    "image": (256, 16, 1024, 10, 11, 16, 16, 16, 1024 * 16, 16, 10),
    "pathfinder": (256, 32, 1024, 11, 12, 128, 128, 32, 1024 * 32, None, 2),
    "temporal_order": (6, 32, 128, 7, 8, 32, 32, 8, 128 * 8, None, 4),
    "genome": (6, 32, 0, 14, 15, 32, 32, 32, 16384 * 32, None, 2),
    "adding": (3, 32, 0, 7, 8, 32, 32, 8, 128 * 8, None, 1),
}
# Dropout of the embedding, of g and of the head; learning rate; steps: epochs * (training examples // batch size).
TRAINING = {
    "listops": ((0, 0, 0), 1e-3, 7 * (96000 // 32)),
    "text": ((0.4, 0, 0), 1e-4, 145 * (25000 // 32)),
    "image": ((0, 0.2, 0.8), 1e-3, 35 * (45000 // 32)),
    "pathfinder": ((0, 0, 0), 1e-3, 45 * (160000 // 64)),
    "adding": ((0, 0, 0), 1e-3, 20 * (200000 // 40)),
    "temporal_order": ((0, 0, 0), 1e-3, 20 * (200000 // 40)),
    "genome": ((0.2, 0, 0.8), 1e-4, 100 * (5151 // 16)),
}


@pytest.mark.parametrize("task", TRAINING)
def test_model_sizes_and_training_match_published(task):
    cfg, (dropouts, rate, steps) = experiment(f"experiment=psf_{task}"), TRAINING[task]
    model = cfg.meta_model
    vocab, d, positions, M, K, f, g, channels, inputs, hidden, outputs = MODEL_SIZES[task]
    mlp = lambda i, h, o: (i + 1) * h + (h + 1) * o
    head = mlp(inputs, hidden, outputs) if hidden else (inputs + 1) * outputs
    expected = (vocab + positions) * d + mlp(d, g, channels) + M * mlp(d, f, K) + head
    assert sum(p.numel() for p in model.parameters()) == expected
    assert (model.embed.dropout.p, model.blocks[0].mixer.values[1].p, model.head.dropout.p) == dropouts
    assert (cfg.optim.lr, cfg.optim.steps, cfg.optim.schedule, cfg.optim.weight_decay) == (rate, steps, "constant", 0)
    assert cfg.optim.clip_norm == (1.0 if task == "genome" else None)
    assert (cfg.task.metric == "balanced_accuracy") == (task == "genome")


@pytest.mark.parametrize("task, has_cls", [("listops", True), ("text", True), ("image", False), ("adding", False)])
def test_model_matches_published_formula(task, has_cls):
    cfg = experiment(f"experiment=psf_{task}", "budget=smoke", "task.length=64")
    torch.manual_seed(0)
    model = cfg.classifier().double().eval()
    state = model.state_dict()
    affine = lambda name, x: x @ state[f"{name}.weight"].T + state[f"{name}.bias"]
    mlp = lambda name, x: affine(f"{name}.2", F.gelu(affine(f"{name}.0", x)))
    if task == "adding":
        inputs = torch.randn(3, 64, 2, dtype=torch.float64)
        E = affine("embed.feature", inputs)
    else:
        inputs = torch.randint(0, 16, (3, 64))
        ids = torch.cat([torch.full((3, 1), cfg.task.vocab - 1), inputs], 1)[:, :64] if has_cls else inputs
        E = state["embed.token.weight"][ids] + state.get("embed.position.weight", 0)
    summaries = []
    for x in E:
        first = v = mlp("blocks.0.mixer.values.0", x)
        for m in range(len(model.blocks[0].mixer.weights)):
            v = sparse_factor(mlp(f"blocks.0.mixer.weights.{m}", x)) @ v
            v = v + first if cfg.attn.get("residuals") else v
        summaries.append(v[0] if has_cls else v.flatten())
    pooled = torch.stack(summaries)
    expected = mlp("head.mlp", pooled) if cfg.model.head.get("kind") == "gelu" else affine("head.mlp.0", pooled)
    torch.testing.assert_close(model(inputs[:, None]), expected, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("init", ["torch", "lecun"])
@pytest.mark.parametrize("task, padding", [("listops", "zero"), ("text", "constant"), ("image", "learned")])
def test_padding_embedding_is_zero_constant_or_learned(task, padding, init):
    model = experiment(f"experiment=psf_{task}", "budget=smoke", f"model.init={init}").classifier().eval()
    table, ids = model.embed.token.weight, torch.tensor([[0, 5, 0, 9]])
    model.embed(ids).sum().backward()
    assert (table[0] == 0).all() == (padding == "zero")
    assert (table.grad[0] == 0).all() == (padding != "learned") and (table.grad[5] != 0).all()
    if task == "text":
        assert 0.09 < table.abs().max() <= 0.1
