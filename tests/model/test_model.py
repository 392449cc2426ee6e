"""The encoder: parameter counts of the protocol, padding, pooling, class tokens, precision and pairs of texts."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from conftest import CHECK_SIZES, KERNELS, MECHANISMS, config, experiment
from support.features import padded_ids

from lra.attention.cur import CUR
from lra.attention.cur_plus import CURPlus
from lra.config.compose import compose
from lra.data.datamodule import Batch
from lra.evaluate.restore import configuration, unflatten
from lra.maps import maps
from lra.model.classifier import Head
from lra.runs.run_dir import RunDir
from lra.studies.qkv import calls
from lra.studies.swap import TransferOptions, experiments
from lra.studies.transfer.compare import layers
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


POOLS = [("mean", "length"), ("cls", "")]
# These add nothing that depends on the mechanism.
POOLS += [pytest.param("mean", "real", marks=pytest.mark.slow), pytest.param("flatten", "", marks=pytest.mark.slow)]


@pytest.mark.parametrize("name", [m for m in MECHANISMS if m != "psf_original" and m not in KERNELS])
@pytest.mark.parametrize("pool,divisor", POOLS)
def test_outputs_are_the_same_however_far_the_batch_is_padded(name, pool, divisor):
    # CUR selects the class token where it is pooled.
    words = ["model.pool=cls"] if pool == "cls" and "cur_" in name else []
    cfg = config(name, *CHECK_SIZES, *words)
    task, protocol = cfg.task.replace(towers=2), cfg.protocol.replace(mean_over=divisor or cfg.protocol.mean_over)
    torch.manual_seed(0)
    model = cfg.replace(task=task, model=cfg.model.replace(pool=pool), protocol=protocol).classifier().double().eval()
    ids, mask = padded_ids([64, 33, 7], towers=2)
    expected = model(ids, mask)
    torch.testing.assert_close(model(F.pad(ids, (0, 64)), F.pad(mask, (0, 64))), expected, rtol=1e-9, atol=1e-11)


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
    # Dropout draws the same numbers again.
    torch.testing.assert_close(*grads, rtol=1e-6, atol=1e-8)


B, L = 3, 64
SMALL = ("attn.landmarks=8", "attn.kernel=5")
MIXING = [("nystrom_original", *SMALL), ("nystrom", *SMALL, "attn.pinv.init=batch")]
MIXING += [(f"cur_{score}", "attn.count=8", "attn.pinv.init=batch") for score in ("abs", "step")]
ALONE = [("nystrom", *SMALL), ("cur_abs", "attn.count=8"), ("sdpa",)]


def pairs(name, *words):
    """A model of two towers, and pairs whose second text is one token only, so that its column sums are the largest."""
    torch.manual_seed(0)
    model = config(name, "task.towers=2", f"task.length={L}", *words).classifier().double().eval()
    for part in model.modules():
        if hasattr(part, "widths"):
            part.inputs.weight.data *= 8  # weights of attention that are far from even
    ids = torch.randint(1, 16, (B, 2, L), generator=torch.manual_seed(1))
    ids[:, 1] = 7
    mask = torch.arange(L) < torch.tensor([[L, 50], [31, 60], [40, L]])[..., None]
    return model, Batch(ids * mask, mask, torch.zeros(B, dtype=torch.int64))


def one_after_the_other(model, batch):
    """The logits if the model encodes a batch of first texts and a batch of second ones."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model.head, "forward", lambda pooled: pooled)
        pooled = [model(batch.inputs[:, [tower]], batch.mask[:, [tower]]) for tower in range(2)]
    return model.head(torch.cat(pooled, 1))


@pytest.mark.parametrize("pad", ["batch", "none"])
@pytest.mark.parametrize("words", MIXING + ALONE, ids=" ".join)
def test_texts_are_encoded_as_if_one_after_the_other(words, pad):
    model, batch = pairs(*words, f"data.pad={pad}")
    out, expected = model(batch.inputs, batch.mask), one_after_the_other(model, batch)
    torch.testing.assert_close(out, expected, rtol=1e-10, atol=1e-12)
    gradients = (torch.autograd.grad(x.square().sum(), list(model.parameters())) for x in (out, expected))
    torch.testing.assert_close(*gradients, rtol=1e-8, atol=1e-10)
    assert model.encode_separately == (words in MIXING)
    if model.encode_separately:
        model.encode_separately = False
        assert (model(batch.inputs, batch.mask) - expected).abs().max() > 1e-7
    elif pad == "batch":
        assert all(len(seen) == 1 and len(seen[0].out) == 2 * B for seen in calls(model, batch).values())


def test_layers_are_compared_text_by_text():
    """Whichever of the two models asks for it, and neither is changed."""
    (mixing, batch), (exact, _) = pairs(*MIXING[0]), pairs("sdpa")
    exact.load_state_dict(mixing.state_dict(), strict=False)
    places = list(calls(exact, batch))
    for one, other in (exact, mixing), (mixing, exact):
        found = layers(one, other, [batch], spectrum=4)
        assert [layer.path for layer in found] == places and all(layer.relative > 0 for layer in found)
    assert mixing.encode_separately and not exact.encode_separately
    assert all(layer.relative == layer.stack_relative == 0 for layer in layers(mixing, mixing, [batch]))
    joint, apart = (calls(exact, batch, encode_separately)[places[0]] for encode_separately in (False, True))
    torch.testing.assert_close(torch.stack([call.out for call in apart], 1).flatten(0, 1), joint[0].out)


@pytest.mark.parametrize("words", [MIXING[0], ALONE[0]], ids=" ".join)
def test_maps_are_in_the_order_of_the_sequences(words):
    model, batch = pairs(*words)
    attention_map = maps.attention_map(model, batch, 0)
    assert attention_map.shape[0] == 2 * B
    seen = calls(model, batch)["blocks.0.mixer.attention"]
    v = torch.stack([call.arguments["v"] for call in seen], 1).flatten(0, 1)
    out = torch.stack([call.out for call in seen], 1).flatten(0, 1)
    real = batch.mask.flatten(0, 1)[:, None, :, None].expand_as(out)
    torch.testing.assert_close((attention_map @ v)[real], out[real])


LENGTH = 128
BOARD = ["budget=quick", f"task.length={LENGTH}", "+budgets.quick.allowance=16", "model.pool=class", "model.dropout=0"]
BOARD += ["model.head={_target_: lra.model.classifier.Head, _partial_: true, kind: gelu}"]
# Mechanisms of two layers that do not bring the last token to the class token, and why.
OUT_OF_REACH = {
    "none": "no token sees another one",
    "conv": "two kernels reach 10 tokens to either side",
    "local": "no token sees another block",
    "local_strided": "no token sees another group",
    "longformer": "two windows reach 16 tokens to either side",
    "sparse": "at stride 11 the last token is in neither the band nor the columns of two layers",
}
# Options with which a recurrence starts with horizons of the sequence's length; by default its gates forget most of it.
LONG_HORIZONS = {"hgrn2": ["attn.lower_bound=0.99"], "mamba2": ["attn.step_min=1e-4", "attn.step_max=1e-3"]}
# In reach, with a gradient of the class output below 1e-6 but above this number.
FADED = {
    "mega_chunk": 1e-13,  # only the moving average connects chunks
    "reformer_official": 1e-14,  # the class token attends to few others
    "min_gru": 1e-25,  # about half of the state is forgotten at every token, and no option changes the initial gates
    "min_lstm": 1e-25,
}


def adding_model(name):
    torch.manual_seed(0)
    adding = experiment("task=adding", "attn=sdpa", *BOARD)
    bias = ["block.bias=false"] if name.startswith("mega_cur") else []
    # Composed for other tests too, with another task.
    composed = config(name, *BOARD, *bias, *LONG_HORIZONS.get(name, []))
    return composed.replace(task=adding.task, model=adding.model).classifier().eval()


@pytest.mark.parametrize("name", [name for name in MECHANISMS if name not in KERNELS])
def test_the_last_token_reaches_the_class_token(name):
    if name == "nystrom_original":
        with pytest.raises(ValueError, match=f"landmarks must divide length {LENGTH + 1}"):
            adding_model(name)
        return
    x = torch.randn(2, 1, LENGTH, 2, dtype=torch.float64, generator=torch.manual_seed(1)).requires_grad_()
    adding_model(name).double()(x).sum().backward()
    reach = x.grad[:, 0, -1].abs().max().item()
    if name in OUT_OF_REACH:
        assert reach == 0, "no longer out of reach"
    else:
        assert FADED.get(name, 1e-6) < reach and (reach < 1e-6) == (name in FADED)


@pytest.mark.parametrize("word", ["model.pool=class", "model.pool=last", "model.positions=rotary"])
def test_a_sequence_has_the_same_result_alone_padded_and_packed(word):
    lengths, models = (16, 9, 2), []
    ids, mask = padded_ids(lengths)
    for pad in ("batch", "none"):
        torch.manual_seed(0)
        models.append(config("sdpa", word, f"data.pad={pad}").classifier().double().eval())
    padded, packed = (model(ids, mask) for model in models)
    alone = torch.cat([models[0](ids[i : i + 1, :, :n]) for i, n in enumerate(lengths)])
    torch.testing.assert_close(padded, alone)
    torch.testing.assert_close(packed, alone)


def class_tokens(model):
    return [module.options.class_token for module in model.modules() if isinstance(module, CUR | CURPlus)]


@pytest.mark.parametrize("pool", ["mean", "cls", "flatten"])
@pytest.mark.parametrize("name", [name for name in MECHANISMS if "cur_" in name])
def test_the_class_token_is_selected_where_it_is_pooled(name, pool):
    model = config(name, f"model.pool={pool}", "attn.count=8").classifier()
    assert class_tokens(model) == [pool == "cls"] * 2


@pytest.mark.parametrize("pool", ["mean", "cls"])
@pytest.mark.parametrize("class_token", [True, False])
def test_an_override_holds_and_is_part_of_the_label_if_it_changes_anything(pool, class_token):
    override = f"attn.class_token={str(class_token).lower()}"
    chosen = config("cur_plus", f"model.pool={pool}", override)
    assert class_tokens(chosen.classifier()) == [class_token] * 2
    is_default = class_token == (pool == "cls")
    assert chosen.label == ("cur_plus" if is_default else f"cur_plus-class_token={class_token}")
    assert config("cur_plus", f"model.pool={pool}", "attn.count=8").label == "cur_plus-count=8"
    choices = config("cur_abs", f"model.pool={pool}", override).choices({})
    assert choices["attn.class_token"] is class_token
    assert (choices == config("cur_abs", f"model.pool={pool}").choices({})) == is_default


@pytest.mark.parametrize("pool", ["mean", "cls"])
def test_a_transfer_follows_its_run_and_old_runs_stay_what_they_were(pool):
    record = {"study": "s", "task": "listops", "protocol": "paper", "budget": "smoke", "label": "x", "seed": 0}
    choices = config("cur_abs", f"model.pool={pool}").choices({}) | {"attn.class_token": False}
    run = RunDir(path=Path("x"), choices=choices, seed=0, record=SimpleNamespace(**record))
    assert configuration(run, "data").attn.get("class_token") is False
    assert unflatten(choices)["attn"]["class_token"] is False
    for override, expected in ([], pool == "cls"), (["true"], True), (["false"], False):
        words = [f"attn.class_token={word}" for word in override]
        target = experiments(run, compose(TransferOptions, ["run=x", "attn=cur_plus", *words]))[1]
        assert target.attn.get("class_token") is expected
    for word in ("True", "False"):
        options = compose(TransferOptions, ["run=x", "attn=cur_abs", f"attn.class_token={word.lower()}"])
        assert options.label == f"cur_abs-class_token={word}"
