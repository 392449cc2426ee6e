"""CUR in tiny randomly initialised encoders of transformers, against their own exact attention."""

import copy
import warnings

import pytest
import torch

from lra.ops.cur import cur_attention
from lra.ops.selection import SCORES

pytestmark = pytest.mark.peers
transformers = pytest.importorskip("transformers", "5.0", reason="transformers 5 is not installed: make test-peers")
from lra.integrations.huggingface import register  # noqa: E402 behind the skip

WIDTH = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
TEXT = {**WIDTH, "intermediate_size": 64, "vocab_size": 50}
MODERN = TEXT | {f"{name}_token_id": 0 for name in ("pad", "bos", "eos", "cls", "sep")} | {"local_attention": 8}
PICTURE = {**WIDTH, "image_size": 24, "patch_size": 4}
TEXTS = {
    "bert": ("Bert", TEXT),
    "roberta": ("Roberta", TEXT),
    "modernbert": ("ModernBert", {**MODERN, "global_attn_every_n_layers": 1}),
}
MODELS = TEXTS | {"vit": ("ViT", {**PICTURE, "intermediate_size": 64}), "dinov2": ("Dinov2", PICTURE)}
TRUE = {"steps": None, "copy_rv": False, "count": 64}  # every row and column, true inverse: exact attention

register()
register("cur_true", **TRUE)
register("cur_8", count=8)
register("cur_plus_8", count=8, columns="cells", score="farthest")


def build(name, sizes):
    return getattr(transformers, f"{name}Model")(getattr(transformers, f"{name}Config")(**sizes))


def model(kind, attention="eager"):
    torch.manual_seed(0)
    made = build(*MODELS[kind])
    for parameter in made.parameters():  # the default of 0.02 leaves next to uniform maps
        torch.nn.init.normal_(parameter, std=0.3) if parameter.dim() > 1 else None
    made.set_attn_implementation(attention)
    return made.double().eval()


def inputs(kind, seed=1, lengths=(20, 13, 5)):
    g = torch.Generator().manual_seed(seed)
    if kind in ("vit", "dinov2"):
        return {"pixel_values": torch.randn(3, 3, 24, 24, dtype=torch.float64, generator=g)}
    mask = torch.arange(20) < torch.tensor(lengths)[:, None]
    ids = torch.randint(5, 50, mask.shape, generator=g)
    return {"input_ids": torch.where(mask, ids, 1 if kind == "roberta" else 0), "attention_mask": mask.long()}


def states(made, given):
    """Rows of real tokens."""
    with torch.no_grad():
        out = made(**given).last_hidden_state
    return out[given["attention_mask"].bool()] if "attention_mask" in given else out.flatten(0, 1)


def near(got, expected):
    """The true inverse of a map with small singular values loses most of float64's digits."""
    return (got - expected).norm() < 1e-6 * expected.norm()


@pytest.mark.parametrize("kind", MODELS)
def test_keeping_everything_is_exact_attention_and_less_is_not(kind):
    given = inputs(kind)
    expected, made = states(model(kind), given), model(kind, "cur_true")
    assert near(states(made, given), expected)
    made.set_attn_implementation("cur_8")
    assert not near(states(made, given), expected)


@pytest.mark.parametrize("kind", TEXTS)
@pytest.mark.parametrize("attention", ["cur_8", "cur_abs", "cur_true", "cur_plus_8"])
def test_padding_never_changes_a_real_token(kind, attention):
    made, given = model(kind, attention), inputs(kind)
    mask = given["attention_mask"].bool()
    other = given | {"input_ids": torch.where(mask, given["input_ids"], 7)}
    if kind == "roberta":  # its positions are counted by the padding id
        positions = (mask.cumsum(1) * mask + 1).long()
        given, other = given | {"position_ids": positions}, other | {"position_ids": positions}
    torch.testing.assert_close(states(made, given), states(made, other))
    alone = [states(made, {k: v[i : i + 1, :n] for k, v in given.items()}) for i, n in enumerate((20, 13, 5))]
    torch.testing.assert_close(states(made, given), torch.cat(alone), rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("attention", ["cur", "cur_8", "cur_abs"])
def test_a_padded_batch_is_compiled_and_exported_whole(attention):
    made, given = model("bert", attention), inputs("bert")
    expected = states(made, given)
    exported = torch.export.export(made, (), given).module()
    compiled = torch.compile(copy.deepcopy(made), fullgraph=True, backend="eager")
    for other in (exported, compiled):
        torch.testing.assert_close(states(other, given), expected, rtol=1e-12, atol=1e-12)


def test_every_registered_name_and_options_of_a_model():
    given = inputs("vit")
    results = {name: states(model("vit", name), given) for name in ("cur", *(f"cur_{s}" for s in SCORES))}
    torch.testing.assert_close(results["cur"], results["cur_step"])
    made = model("vit", "cur_step")
    made.config.cur = {"count": 8}
    torch.testing.assert_close(states(made, given), states(model("vit", "cur_8"), given))
    made.config.cur = TRUE
    assert near(states(made, given), states(model("vit"), given))


def test_the_class_token_is_kept():
    """Its row of the output is exact where only its layer's attention is replaced."""
    register("cur_1", count=1, score="abs", pairing="same_q")
    register("cur_1_free", count=1, score="abs", pairing="same_q", class_token=False)
    made, free = model("dinov2", "cur_1"), model("dinov2", "cur_1_free")
    exact, given = model("dinov2"), inputs("dinov2")
    rows = []
    for one in (exact, made, free):
        seen = []
        first = one.encoder.layer[0] if hasattr(one, "encoder") else one.layers[0]
        first.attention.register_forward_hook(lambda _, args, out, seen=seen: seen.append(out))
        states(one, given)
        rows.append((seen[0][0] if isinstance(seen[0], tuple) else seen[0])[:, 0])
    torch.testing.assert_close(rows[1], rows[0])
    assert not torch.allclose(rows[2], rows[0], atol=1e-3)


@pytest.mark.parametrize("kind", MODELS)
def test_every_parameter_of_the_attention_gets_a_gradient(kind):
    made = model(kind, "cur_8")
    made(**inputs(kind)).last_hidden_state.square().sum().backward()
    own = {name: p for name, p in made.named_parameters() if "attention" in name or "attn." in name}
    assert own and all(p.grad is not None and p.grad.isfinite().all() and p.grad.any() for p in own.values())


def test_saved_with_its_name_and_warned_without(tmp_path):
    made, given = model("bert", "cur_abs"), inputs("bert")
    made.config.cur = {"count": 8}
    made.save_pretrained(tmp_path)
    saved = lambda **words: transformers.AutoModel.from_pretrained(tmp_path, **words).double().eval()
    again = saved()
    torch.testing.assert_close(states(saved(attn_implementation="cur_abs"), given), states(made, given))
    with pytest.warns(UserWarning, match=r"config.cur is set but the model computes exact attention"):
        states(again, given)
    made.config.attn_implementation = "cur_abs"
    made.save_pretrained(tmp_path)
    again = saved()
    torch.testing.assert_close(states(again, given), states(made, given))
    again.set_attn_implementation("sdpa")
    del again.config.cur
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        exact = states(again, given)
    torch.testing.assert_close(exact, states(model("bert", "sdpa"), given))


def test_decoders_are_an_error():
    small = {"n_embd": 32, "n_layer": 1, "n_head": 2, "vocab_size": 50}
    gpt = transformers.GPT2Model(transformers.GPT2Config(**small, attn_implementation="cur"))
    with pytest.raises(ValueError, match="gpt2 is a decoder or masks keys query by query"):
        gpt(input_ids=inputs("bert")["input_ids"])
    decoder = build("Bert", {**TEXT, "is_decoder": True, "attn_implementation": "cur"})
    with pytest.raises(ValueError, match="bert is a decoder"):
        decoder(**inputs("bert"))
    layer = copy.deepcopy(gpt.h[0].attn).eval()
    with pytest.raises(ValueError, match="GPT2Attention is causal; CUR attention is for encoders"):
        layer(torch.randn(1, 4, 32))


def test_local_layers_are_an_error():
    local = build("ModernBert", {**MODERN, "global_attn_every_n_layers": 2}).double().eval()
    states(local, inputs("bert"))
    local.set_attn_implementation("cur")
    with pytest.raises(ValueError, match=r"modernbert has layers of local attention.*global_attn_every_n_layers=1"):
        local(**inputs("bert"))


def test_dropout_and_unknown_arguments_are_an_error():
    given = inputs("bert")
    with pytest.raises(ValueError, match=r"attention dropout 0.1 in training.*set the model's attention dropout to 0"):
        model("bert", "cur").train()(**given)
    with pytest.raises(ValueError, match="asks for output_attentions, which CUR attention does not have"):
        model("bert", "cur")(**given, output_attentions=True)
    with pytest.raises(ValueError, match="BertSelfAttention masks keys query by query"):
        model("bert", "cur")(given["input_ids"], torch.ones(20, 20, dtype=torch.bool).tril().expand(3, 1, 20, 20))
    with pytest.raises(ValueError, match=r"register: no option cuont; there is count, score"):
        register("typo", cuont=3)
    made = model("bert", "cur")
    made.config.cur = {"cuont": 3}
    with pytest.raises(ValueError, match=r"config.cur: no option cuont; there is count"):
        made(**given)


def test_a_mask_that_is_added_to_the_scores():
    made, given = model("bert", "cur_8"), inputs("bert")
    keys = given["attention_mask"].bool()[:, None, None]
    added = torch.zeros(keys.shape, dtype=torch.float64).masked_fill(~keys, torch.finfo(torch.float64).min)
    torch.testing.assert_close(
        made(given["input_ids"], added.expand(3, 1, 20, 20)).last_hidden_state[keys[:, 0, 0]], states(made, given)
    )


def test_the_function_is_what_the_model_computes():
    """One layer by hand from the projections of the model."""
    made, given = model("vit", "cur_8"), inputs("vit")
    calls = []
    register("cur_spy", count=8)
    inner = transformers.AttentionInterface()["cur_spy"]
    transformers.AttentionInterface.register(
        "cur_spy", lambda *a, **k: calls.append((a, k, inner(*a, **k))) or calls[-1][2]
    )
    made.set_attn_implementation("cur_spy")
    states(made, given)
    for (_, q, k, v, mask), named, (out, weights) in calls:
        assert mask is None and weights is None
        expected = cur_attention(q, k, v, scale=named["scaling"], count=8, class_token=True)
        torch.testing.assert_close(out, expected.transpose(1, 2))
