"""The classifier: published parameter counts, padding, pooling, class tokens, pairs of texts and receptive field."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from conftest import KERNELS, MECHANISMS, config, experiment
from support.features import build, padded_ids

from lra.attention.cur import CUR
from lra.attention.cur_plus import CURPlus
from lra.config.compose import compose
from lra.data.datamodule import Batch
from lra.evaluate.restore import restore_experiment
from lra.maps import maps
from lra.model.classifier import Head
from lra.runs.run_dir import RunDir
from lra.studies.qkv import record_calls
from lra.studies.swap import TransferOptions, experiments
from lra.studies.transfer.record import compare_layers
from lra.train import lit

# Vocabulary, length, classes, towers, and the parameters with softmax and CUR (docs/sources.md, Nystromformer).
PUBLISHED = {
    "listops": (32, 2048, 10, 1, 209_802),
    "text": (512, 4096, 2, 1, 370_562),
    "retrieval": (512, 4096, 2, 2, 395_138),
    "image": (512, 1024, 10, 1, 174_986),
    "pathfinder": (512, 1024, 2, 1, 173_954),
}
B, L = 3, 64
SMALL = ("attn.landmarks=8", "attn.kernel=5")
BATCH_DEPENDENT = [("nystrom_original", *SMALL), ("nystrom", *SMALL, "attn.pinv.init=batch")]
BATCH_DEPENDENT += [(f"cur_{score}", "attn.count=8", "attn.pinv.init=batch") for score in ("abs", "step")]
INDEPENDENT = [("nystrom", *SMALL), ("cur_abs", "attn.count=8"), ("sdpa",)]
WORDS = ["protocol=paper", "protocol=clean", "model.positions=rotary"]


@pytest.mark.parametrize("task", PUBLISHED)
@pytest.mark.parametrize("name,more", [("softmax", 0), ("cur_abs", 0), ("nystrom", 140), ("nystrom_original", 140)])
def test_parameter_counts_match_published(task, name, more):
    vocab, length, classes, towers, count = PUBLISHED[task]
    sizes = [f"task.vocab={vocab}", f"task.length={length}", f"task.outputs={classes}", f"task.towers={towers}"]
    assert sum(p.numel() for p in config(name, *sizes).classifier().parameters()) == count + more


def test_mean_divides_by_length_in_paper_and_real_tokens_in_clean():
    ids, mask = torch.randint(1, 16, (1, 1, 40)), torch.arange(40)[None, None] < 10
    pooled = {}
    for protocol in ("paper", "clean"):
        model = build("sdpa", f"protocol={protocol}")
        model.head.register_forward_pre_hook(lambda _, inputs, p=protocol: pooled.setdefault(p, inputs[0]))
        model(ids, mask)
    torch.testing.assert_close(pooled["paper"] * 128, pooled["clean"] * 10)


def test_pair_head_uses_both_towers_product_and_difference():
    head = Head(dim=3, hidden=5, outputs=2, towers=2)
    a, b = torch.randn(4, 3), torch.randn(4, 3)
    assert torch.equal(head(torch.stack([a, b], 1)), head.mlp(torch.cat([a, b, a * b, a - b], 1)))


def test_float_features_are_embedded_by_linear_layer():
    real = config("sdpa", "~task.vocab", "+task.features=3").classifier().eval()
    features = torch.randn(2, 1, 40, 3)
    mask = torch.arange(40).expand(2, 1, 40) < 30
    torch.testing.assert_close(real(features, mask), real(features[:, :, :30]), rtol=1e-4, atol=1e-6)
    x = real.embed(features[:, 0])
    torch.testing.assert_close(x[1, 7], real.embed.feature(features[1, 0, 7]) + real.embed.position.weight[7])


def test_checkpointed_softmax_gradients_match():
    grads = []
    for checkpoint in (False, True):
        torch.manual_seed(0)
        model = config("softmax", f"attn.checkpoint={checkpoint}").classifier().train()
        torch.manual_seed(1)
        lit.loss(model, Batch(*padded_ids([64, 30]), torch.tensor([1, 2]))).backward()
        grads.append([p.grad for p in model.parameters()])
    # The recomputed forward pass draws the same dropout masks.
    torch.testing.assert_close(*grads, rtol=1e-6, atol=1e-8)


def pairs(name, *words):
    """Build a model with two towers, and pairs whose second text repeats one token: its column sums are the largest."""
    model = build(name, "task.towers=2", f"task.length={L}", *words)
    for part in model.modules():
        if hasattr(part, "widths"):
            # Attention weights that are far from uniform.
            part.inputs.weight.data *= 8
    ids = torch.randint(1, 16, (B, 2, L), generator=torch.manual_seed(1))
    ids[:, 1] = 7
    mask = torch.arange(L) < torch.tensor([[L, 50], [31, 60], [40, L]])[..., None]
    return model, Batch(ids * mask, mask, torch.zeros(B, dtype=torch.int64))


@pytest.mark.parametrize("pad", ["batch", "none"])
@pytest.mark.parametrize("words", BATCH_DEPENDENT + INDEPENDENT, ids=" ".join)
def test_towers_are_encoded_as_separate_batches(words, pad):
    model, batch = pairs(*words, f"data.pad={pad}")
    # The first texts and the second texts as separate batches.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model.head, "forward", lambda pooled: pooled)
        pooled = [model(batch.inputs[:, [tower]], batch.mask[:, [tower]]) for tower in range(2)]
    out, expected = model(batch.inputs, batch.mask), model.head(torch.cat(pooled, 1))
    torch.testing.assert_close(out, expected, rtol=1e-10, atol=1e-12)
    gradients = (torch.autograd.grad(x.square().sum(), list(model.parameters())) for x in (out, expected))
    torch.testing.assert_close(*gradients, rtol=1e-8, atol=1e-10)
    assert model.encode_separately == (words in BATCH_DEPENDENT)
    if model.encode_separately:
        model.encode_separately = False
        assert (model(batch.inputs, batch.mask) - expected).abs().max() > 1e-7
    elif pad == "batch":
        assert all(len(calls) == 1 and len(calls[0].out) == 2 * B for calls in record_calls(model, batch).values())


def test_layer_comparison_encodes_towers_separately():
    """Towers are separate if either model requires it, and neither model is changed."""
    (dependent, batch), (exact, _) = pairs(*BATCH_DEPENDENT[0]), pairs("sdpa")
    exact.load_state_dict(dependent.state_dict(), strict=False)
    paths = list(record_calls(exact, batch))
    for first_model, second_model in (exact, dependent), (dependent, exact):
        layer_results = compare_layers(first_model, second_model, [batch], spectrum_examples=4)
        assert [layer.path for layer in layer_results] == paths and all(layer.relative > 0 for layer in layer_results)
    assert dependent.encode_separately and not exact.encode_separately
    assert all(layer.relative == layer.stack_relative == 0 for layer in compare_layers(dependent, dependent, [batch]))


@pytest.mark.parametrize("words", [BATCH_DEPENDENT[0], INDEPENDENT[0]], ids=" ".join)
def test_attention_maps_are_in_order_of_sequences(words):
    model, batch = pairs(*words)
    attention_map = maps.attention_map(model, batch, 0)
    assert attention_map.shape[0] == 2 * B
    records = record_calls(model, batch)["blocks.0.mixer.attention"]
    v = torch.stack([call.arguments["v"] for call in records], 1).flatten(0, 1)
    out = torch.stack([call.out for call in records], 1).flatten(0, 1)
    real = batch.mask.flatten(0, 1)[:, None, :, None].expand_as(out)
    torch.testing.assert_close((attention_map @ v)[real], out[real])


LENGTH = 128
BOARD = ["task=adding", f"task.length={LENGTH}", "budget=quick", "+budgets.quick.allowance=16", "model.pool=class"]
BOARD += ["model.head={_target_: lra.model.classifier.Head, _partial_: true, kind: gelu}"]
# Mechanisms with which the last token does not reach the class token in two layers, and why.
OUT_OF_REACH = {
    "none": "no token sees another one",
    "conv": "two kernels reach 10 tokens to either side",
    "local": "no token sees another block",
    "local_strided": "no token sees another group",
    "longformer": "two windows reach 16 tokens to either side",
    "sparse": "at stride 11 the last token is in neither the band nor the columns of two layers",
}
# Options that initialise gates to remember the whole sequence; with the defaults they forget most of it.
LONG_HORIZONS = {"hgrn2": ["attn.lower_bound=0.99"], "mamba2": ["attn.step_min=1e-4", "attn.step_max=1e-3"]}
# The last token reaches the class token with a gradient below 1e-6 but above this number. Only the moving average of
# MEGA connects its chunks; with the Reformer the class token attends to few tokens; minGRU and minLSTM forget about
# half of the state at every token, and no option changes their initial gates.
WEAK_GRADIENT = {"mega_chunk": 1e-13, "reformer_official": 1e-14, "min_gru": 1e-25, "min_lstm": 1e-25}


# nystrom_original needs landmarks that divide the length with the class token.
@pytest.mark.parametrize("name", [name for name in MECHANISMS if name not in (*KERNELS, "nystrom_original")])
def test_last_token_reaches_class_token(name):
    bias = ["block.bias=false"] if name.startswith("mega_cur") else []
    torch.manual_seed(0)
    model = experiment(*BOARD, f"attn={name}", *bias, *LONG_HORIZONS.get(name, [])).classifier().eval().double()
    x = torch.randn(2, 1, LENGTH, 2, dtype=torch.float64, generator=torch.manual_seed(1)).requires_grad_()
    model(x).sum().backward()
    gradient_size = x.grad[:, 0, -1].abs().max().item()
    if name in OUT_OF_REACH:
        assert gradient_size == 0, "no longer out of reach"
    else:
        assert WEAK_GRADIENT.get(name, 1e-6) < gradient_size and (gradient_size < 1e-6) == (name in WEAK_GRADIENT)


@pytest.mark.parametrize("word", [*WORDS, *(f"model.pool={pool}" for pool in ("cls", "class", "last", "flatten"))])
def test_output_is_equal_alone_padded_and_packed(word):
    lengths = (16, 9, 2)
    ids, mask = padded_ids(lengths)
    padding_model, packing_model = (build("sdpa", word, f"data.pad={pad}") for pad in ("batch", "none"))
    single_outputs = torch.cat([padding_model(ids[i : i + 1, :, :n]) for i, n in enumerate(lengths)])
    torch.testing.assert_close(padding_model(ids, mask), single_outputs)
    torch.testing.assert_close(packing_model(ids, mask), single_outputs)


def class_tokens(name, *words):
    """Return the option class_token of every layer."""
    modules = config(name, *words).classifier().modules()
    return [module.options.class_token for module in modules if isinstance(module, CUR | CURPlus)]


@pytest.mark.parametrize("pool", ["mean", "cls", "flatten"])
@pytest.mark.parametrize("name", [name for name in MECHANISMS if "cur_" in name])
def test_cur_selects_class_token_if_it_is_pooled(name, pool):
    assert class_tokens(name, f"model.pool={pool}", "attn.count=8") == [pool == "cls"] * 2


@pytest.mark.parametrize("pool", ["mean", "cls"])
@pytest.mark.parametrize("class_token", [True, False])
def test_class_token_override_is_in_label_unless_default(pool, class_token):
    words = [f"model.pool={pool}", f"attn.class_token={str(class_token).lower()}"]
    assert class_tokens("cur_plus", *words) == [class_token] * 2
    is_default = class_token == (pool == "cls")
    experiment = config("cur_plus", *words)
    assert experiment.label == ("cur_plus" if is_default else f"cur_plus-class_token={class_token}")
    assert experiment.choices({})["attn.class_token"] is class_token
    assert (experiment.choices({}) == config("cur_plus", words[0]).choices({})) == is_default


@pytest.mark.parametrize("pool", ["mean", "cls"])
def test_transfer_class_token_follows_run_unless_overridden(pool):
    record = {"study": "s", "task": "listops", "protocol": "paper", "budget": "smoke", "label": "x", "seed": 0}
    choices = config("cur_abs", f"model.pool={pool}").choices({}) | {"attn.class_token": False}
    run = RunDir(path=Path("x"), choices=choices, seed=0, record=SimpleNamespace(**record, sources=None))
    assert restore_experiment(run, "data").attn.get("class_token") is False
    for override, expected in ([], pool == "cls"), (["true"], True), (["false"], False):
        words = [f"attn.class_token={word}" for word in override]
        target = experiments(run, compose(TransferOptions, ["run=x", "attn=cur_plus", *words]))[1]
        assert target.attn.get("class_token") is expected
