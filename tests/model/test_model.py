"""The encoder: parameter counts of the protocol, padding, pooling, precision."""

import pytest
import torch
import torch.nn.functional as F
from conftest import KERNELS, MECHANISMS, config
from support.features import padded_ids

from lra.data.datamodule import Batch
from lra.model.classifier import Head
from lra.train import lit

# docs/sources.md, Nystromformer: vocabulary, length, classes, towers -> parameters of softmax and CUR
PUBLISHED = {
    "listops": (32, 2048, 10, 1, 209_802),
    "text": (512, 4096, 2, 1, 370_562),
    "retrieval": (512, 4096, 2, 2, 395_138),
    "image": (512, 1024, 10, 1, 174_986),
    "pathfinder": (512, 1024, 2, 1, 173_954),
}


@pytest.mark.parametrize("task", PUBLISHED)
@pytest.mark.parametrize("name,more", [("softmax", 0), ("cur_abs", 0), ("nystrom", 140), ("nystrom_original", 140)])
def test_parameter_counts_are_the_published_ones(task, name, more):
    vocab, length, classes, towers, count = PUBLISHED[task]
    sizes = [f"task.vocab={vocab}", f"task.length={length}", f"task.outputs={classes}", f"task.towers={towers}"]
    model = config(name, *sizes).classifier()
    assert sum(p.numel() for p in model.parameters()) == count + more


@pytest.mark.parametrize("name", [m for m in MECHANISMS if m != "psf_original" and m not in KERNELS])
@pytest.mark.parametrize(
    "pool,divisor",
    [
        ("mean", "length"),
        ("cls", ""),
        pytest.param("mean", "real", marks=pytest.mark.slow),  # these two add nothing that depends on the mechanism
        pytest.param("flatten", "", marks=pytest.mark.slow),
    ],
)
def test_loss_is_the_same_however_far_the_batch_is_padded(name, pool, divisor):
    cfg = config(name, "task.towers=2", *["model.pool=cls"] * (pool == "cls"))  # which some mechanisms follow
    protocol = cfg.protocol.replace(mean_over=divisor or cfg.protocol.mean_over)
    cfg = cfg.replace(model=cfg.model.replace(pool=pool), protocol=protocol)
    torch.manual_seed(0)
    model = cfg.classifier().double().eval()
    ids, mask = padded_ids([64, 33, 7], towers=2)
    short, whole = (Batch(F.pad(ids, (0, n)), F.pad(mask, (0, n)), torch.tensor([1, 2, 3])) for n in (0, 64))
    torch.testing.assert_close(*(model(b.inputs, b.mask) for b in (short, whole)), rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(lit.loss(model, short), lit.loss(model, whole), rtol=1e-6, atol=1e-6)


def test_paper_mean_divides_by_the_length_and_clean_by_the_real_tokens():
    ids, mask = torch.randint(1, 16, (1, 1, 40)), torch.arange(40)[None, None] < 10
    pooled = {}
    for protocol in ("paper", "clean"):
        torch.manual_seed(0)
        model = config("sdpa", f"protocol={protocol}").classifier().eval()
        model.head.register_forward_pre_hook(lambda _, inputs, p=protocol: pooled.setdefault(p, inputs[0]))
        model(ids, mask)
    torch.testing.assert_close(pooled["paper"] * 128, pooled["clean"] * 10)


def test_pair_head_sees_both_towers_their_product_and_difference():
    head = Head(dim=3, hidden=5, outputs=2, towers=2)
    a, b = torch.randn(4, 3), torch.randn(4, 3)
    assert torch.equal(head(torch.stack([a, b], 1)), head.mlp(torch.cat([a, b, a * b, a - b], 1)))
    with pytest.raises(ValueError, match=r"towers must be one of 1, 2, not 3"):
        Head(dim=3, hidden=5, outputs=2, towers=3)


def test_real_features_take_a_linear_map():
    real, features = config("sdpa", "~task.vocab", "+task.features=3").classifier().eval(), torch.randn(2, 1, 40, 3)
    mask = torch.arange(40).expand(2, 1, 40) < 30
    torch.testing.assert_close(real(features, mask), real(features[:, :, :30]), rtol=1e-4, atol=1e-6)
    x = real.embed(features[:, 0])
    torch.testing.assert_close(x[1, 7], real.embed.feature(features[1, 0, 7]) + real.embed.position.weight[7])


def test_checkpointed_softmax_has_the_same_gradients():
    grads = []
    for checkpoint in (False, True):
        torch.manual_seed(0)
        model = config("softmax", f"attn.checkpoint={checkpoint}").classifier().train()
        torch.manual_seed(1)
        lit.loss(model, Batch(*padded_ids([64, 30]), torch.tensor([1, 2]))).backward()
        grads.append([p.grad for p in model.parameters()])
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-8)  # dropout is drawn again alike
