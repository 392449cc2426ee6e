"""The encoder: parameter counts of the protocol, padding, pooling, precision."""

import pytest
import torch
from conftest import KERNELS, MECHANISMS, config

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


def examples(cfg, widths, lengths):
    g = torch.Generator().manual_seed(0)
    ids = torch.randint(1, 16, (len(lengths), cfg.task.towers, max(widths)), generator=g)
    mask = torch.arange(max(widths)) < torch.tensor(lengths)[:, None, None]
    mask = mask.expand(-1, cfg.task.towers, -1)
    label = torch.randint(0, cfg.task.outputs, (len(lengths),), generator=g)
    return [Batch((ids * mask)[..., :w], mask[..., :w], label) for w in widths]


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
    protocol = cfg.protocol.changed(mean_over=divisor or cfg.protocol.mean_over)
    cfg = cfg.changed(model=cfg.model.changed(pool=pool), protocol=protocol)
    torch.manual_seed(0)
    model = cfg.classifier().double().eval()
    short, whole = examples(cfg, [64, 128], [64, 33, 7])
    outputs = [model(b.inputs, b.mask) for b in (short, whole)]
    torch.testing.assert_close(*outputs, rtol=1e-9, atol=1e-11)
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


def test_cls_at_full_length_drops_the_last_token_only():
    model = config("sdpa", "model.pool=cls").classifier().eval()
    ids = torch.randint(1, 16, (2, 1, 128))
    other = ids.clone()
    other[..., -1] = 17
    assert torch.equal(model(ids), model(other))
    other[..., -2] = 17
    assert not torch.equal(model(ids), model(other))


def test_flatten_hands_every_position_to_the_head_and_padding_as_zeros():
    model = config("sdpa", "model.pool=flatten").classifier().eval()
    ids, mask = torch.randint(1, 16, (2, 1, 40)), torch.arange(40).expand(2, 1, 40) < 30
    seen = []
    model.head.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    model.norm.register_forward_hook(lambda _, inputs, rows: seen.append(rows))
    model(ids, mask)
    rows, pooled = seen
    assert pooled.shape == (2, 1, 128 * 64)
    assert torch.equal(pooled.view(2, 128, 64)[:, :30], rows[:, :30]) and not pooled.view(2, 128, 64)[:, 30:].any()


def test_pair_head_sees_both_towers_their_product_and_difference():
    head = Head(dim=3, hidden=5, outputs=2, towers=2)
    a, b = torch.randn(4, 3), torch.randn(4, 3)
    assert torch.equal(head(torch.stack([a, b], 1)), head.mlp(torch.cat([a, b, a * b, a - b], 1)))
    with pytest.raises(ValueError, match=r"task.towers must be 1 or 2, not 3"):
        Head(dim=3, hidden=5, outputs=2, towers=3)


def test_real_features_take_a_linear_map_and_nothing_else_differs():
    ids, real = config("sdpa").classifier(), config("sdpa", "~task.vocab", "+task.features=3").classifier()
    assert {k: v.shape for k, v in real.state_dict().items() if not k.startswith("embed.feature.")} == {
        k: v.shape for k, v in ids.state_dict().items() if k != "embed.token.weight"
    }
    assert real.embed.feature.weight.shape == (64, 3)
    features = torch.randn(2, 1, 40, 3)
    mask = torch.arange(40).expand(2, 1, 40) < 30
    torch.testing.assert_close(real.eval()(features, mask), real(features[:, :, :30]), rtol=1e-4, atol=1e-6)
    x = real.embed(features[:, 0])
    torch.testing.assert_close(x[1, 7], real.embed.feature(features[1, 0, 7]) + real.embed.position.weight[7])


def test_checkpointed_softmax_has_the_same_gradients():
    grads = []
    for checkpoint in (False, True):
        torch.manual_seed(0)
        cfg = config("softmax", f"attn.checkpoint={checkpoint}")
        model = cfg.classifier().train()
        torch.manual_seed(1)
        lit.loss(model, examples(cfg, [64], [64, 30])[0]).backward()
        grads.append([p.grad for p in model.parameters()])
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-8)  # dropout is drawn again alike
