"""CUR attention in small randomly initialised Hugging Face encoders, compared with their exact attention."""

import copy
import warnings

import pytest
import torch
from conftest import assert_error

from lra.ops.cur import cur_attention
from lra.ops.selection import SCORES

pytestmark = pytest.mark.peers
transformers = pytest.importorskip("transformers", "5.0", reason="transformers 5 is not installed: make test-peers")
from lra.integrations.huggingface import register  # noqa: E402 behind the skip

WIDTH = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
TEXT = {**WIDTH, "intermediate_size": 64, "vocab_size": 50}
MODERN = TEXT | {f"{name}_token_id": 0 for name in ("pad", "bos", "eos", "cls", "sep")}
MODERN |= {"local_attention": 8, "global_attn_every_n_layers": 1}
PICTURE = {**WIDTH, "image_size": 24, "patch_size": 4}
TEXTS = {"bert": ("Bert", TEXT), "roberta": ("Roberta", TEXT), "modernbert": ("ModernBert", MODERN)}
MODELS = TEXTS | {"vit": ("ViT", {**PICTURE, "intermediate_size": 64}), "dinov2": ("Dinov2", PICTURE)}
# All rows and columns and the true inverse: CUR is then exact attention.
EXACT = {"steps": None, "copy_rv": False, "count": 64}

# An option does not replace the selection that defines a name.
register(score="step")
register("cur_true", **EXACT)
register("cur_8", count=8)
register("cur_plus_8", count=8, columns="cells", score="farthest")


def build(name, sizes):
    return getattr(transformers, f"{name}Model")(getattr(transformers, f"{name}Config")(**sizes))


def model(kind, attention="eager"):
    torch.manual_seed(0)
    encoder = build(*MODELS[kind])
    # The default standard deviation of 0.02 gives nearly uniform attention, which CUR approximates too easily.
    for parameter in encoder.parameters():
        torch.nn.init.normal_(parameter, std=0.3) if parameter.dim() > 1 else None
    encoder.set_attn_implementation(attention)
    return encoder.double().eval()


def inputs(kind, seed=1, lengths=(20, 13, 5)):
    g = torch.Generator().manual_seed(seed)
    if kind in ("vit", "dinov2"):
        return {"pixel_values": torch.randn(3, 3, 24, 24, dtype=torch.float64, generator=g)}
    mask = torch.arange(20) < torch.tensor(lengths)[:, None]
    ids = torch.randint(5, 50, mask.shape, generator=g)
    return {"input_ids": torch.where(mask, ids, 1 if kind == "roberta" else 0), "attention_mask": mask.long()}


def states(encoder, batch):
    """Last hidden states of the real tokens, (tokens, hidden)."""
    with torch.no_grad():
        out = encoder(**batch).last_hidden_state
    return out[batch["attention_mask"].bool()] if "attention_mask" in batch else out.flatten(0, 1)


def is_close(actual, expected):
    """The tolerance is loose since inverting an ill-conditioned attention submatrix loses most float64 digits."""
    return (actual - expected).norm() < 1e-6 * expected.norm()


@pytest.mark.parametrize("kind", MODELS)
def test_selecting_all_tokens_equals_exact_attention(kind):
    batch = inputs(kind)
    expected, encoder = states(model(kind), batch), model(kind, "cur_true")
    assert is_close(states(encoder, batch), expected)
    encoder.set_attn_implementation("cur_8")
    assert not is_close(states(encoder, batch), expected)


@pytest.mark.parametrize("kind", TEXTS)
@pytest.mark.parametrize("attention", ["cur_8", "cur_abs", "cur_true", "cur_plus_8"])
def test_padding_does_not_change_real_tokens(kind, attention):
    encoder, batch = model(kind, attention), inputs(kind)
    mask = batch["attention_mask"].bool()
    variant = batch | {"input_ids": torch.where(mask, batch["input_ids"], 7)}
    # RoBERTa derives positions from token ids, in which padding with another id would count.
    if kind == "roberta":
        positions = (mask.cumsum(1) * mask + 1).long()
        batch, variant = batch | {"position_ids": positions}, variant | {"position_ids": positions}
    torch.testing.assert_close(states(encoder, batch), states(encoder, variant))
    unpadded = [states(encoder, {k: v[i : i + 1, :n] for k, v in batch.items()}) for i, n in enumerate((20, 13, 5))]
    torch.testing.assert_close(states(encoder, batch), torch.cat(unpadded), rtol=1e-8, atol=1e-9)


@pytest.mark.compiles
@pytest.mark.parametrize("attention", ["cur", "cur_8", "cur_abs"])
def test_padded_batch_compiles_without_graph_breaks_and_exports(attention):
    encoder, batch = model("bert", attention), inputs("bert")
    expected = states(encoder, batch)
    exported = torch.export.export(encoder, (), batch).module()
    compiled = torch.compile(copy.deepcopy(encoder), fullgraph=True, backend="eager")
    for variant in (exported, compiled):
        torch.testing.assert_close(states(variant, batch), expected, rtol=1e-12, atol=1e-12)


def test_registered_names_and_config_options_are_equivalent():
    batch = inputs("vit")
    # Fewer than the 37 tokens are selected: with all of them every selection is exact attention.
    results = {}
    for name in ("cur", *(f"cur_{score}" for score in SCORES if score != "random")):
        register("cur_named", count=8, score=name.partition("_")[2] or "step")
        encoder = model("vit", name)
        encoder.config.cur = {"count": 8}
        results[name] = states(encoder, batch)
        torch.testing.assert_close(results[name], states(model("vit", "cur_named"), batch))
    # Random selections differ from call to call.
    assert states(model("vit", "cur_random"), batch).isfinite().all()
    torch.testing.assert_close(results["cur"], results["cur_step"])
    assert not torch.allclose(results["cur_abs"], results["cur_step"])
    encoder = model("vit", "cur_step")
    encoder.config.cur = {"count": 8}
    torch.testing.assert_close(states(encoder, batch), states(model("vit", "cur_8"), batch))
    encoder.config.cur = EXACT
    assert is_close(states(encoder, batch), states(model("vit"), batch))


def test_class_token_is_always_selected():
    """With its row selected, the class token's output of the first layer is exact; without, it is not."""
    register("cur_1", count=1, score="abs", pairing="same_q")
    register("cur_1_free", count=1, score="abs", pairing="same_q", class_token=False)
    class_tokens = []
    hook = lambda _, args, out: class_tokens.append((out[0] if isinstance(out, tuple) else out)[:, 0])
    for attention in ("eager", "cur_1", "cur_1_free"):
        encoder = model("dinov2", attention)
        first_layer = encoder.encoder.layer[0] if hasattr(encoder, "encoder") else encoder.layers[0]
        first_layer.attention.register_forward_hook(hook)
        states(encoder, inputs("dinov2"))
    torch.testing.assert_close(class_tokens[1], class_tokens[0])
    assert not torch.allclose(class_tokens[2], class_tokens[0], atol=1e-3)


@pytest.mark.parametrize("kind", MODELS)
def test_every_attention_parameter_gets_a_gradient(kind):
    encoder = model(kind, "cur_8")
    encoder(**inputs(kind)).last_hidden_state.square().sum().backward()
    params = {name: p for name, p in encoder.named_parameters() if "attention" in name or "attn." in name}
    assert params and all(p.grad is not None and p.grad.isfinite().all() and p.grad.any() for p in params.values())


def test_reload_uses_saved_attention_name_and_warns_without_it(tmp_path):
    encoder, batch = model("bert", "cur_abs"), inputs("bert")
    encoder.config.cur = {"count": 8}
    encoder.save_pretrained(tmp_path)
    reload = lambda **words: transformers.AutoModel.from_pretrained(tmp_path, **words).double().eval()
    reloaded = reload()
    torch.testing.assert_close(states(reload(attn_implementation="cur_abs"), batch), states(encoder, batch))
    with pytest.warns(UserWarning, match=r"config.cur is set but the model computes exact attention"):
        states(reloaded, batch)
    encoder.config.attn_implementation = "cur_abs"
    encoder.save_pretrained(tmp_path)
    reloaded = reload()
    torch.testing.assert_close(states(reloaded, batch), states(encoder, batch))
    reloaded.set_attn_implementation("sdpa")
    del reloaded.config.cur
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        exact = states(reloaded, batch)
    torch.testing.assert_close(exact, states(model("bert", "sdpa"), batch))


def test_decoder_raises():
    gpt = build("GPT2", {"n_embd": 32, "n_layer": 1, "n_head": 2, "vocab_size": 50} | {"attn_implementation": "cur"})
    assert_error("gpt2 is a decoder or masks keys query by query", gpt, input_ids=inputs("bert")["input_ids"])
    decoder = build("Bert", {**TEXT, "is_decoder": True, "attn_implementation": "cur"})
    assert_error("bert is a decoder", decoder, **inputs("bert"))
    assert_error("GPT2Attention is causal; CUR attention is for encoders", gpt.h[0].attn.eval(), torch.randn(1, 4, 32))


def test_local_attention_layers_raise():
    local, batch = build("ModernBert", {**MODERN, "global_attn_every_n_layers": 2}).double().eval(), inputs("bert")
    states(local, batch)
    local.set_attn_implementation("cur")
    assert_error(r"modernbert has layers of local attention.*global_attn_every_n_layers=1", local, **batch)


def test_dropout_and_unknown_options_raise():
    batch, bert = inputs("bert"), model("bert", "cur")
    assert_error("asks for output_attentions, which CUR attention does not have", bert, **batch, output_attentions=True)
    mask = torch.ones(20, 20, dtype=torch.bool).tril().expand(3, 1, 20, 20)
    assert_error("BertSelfAttention masks keys query by query", bert, batch["input_ids"], mask)
    assert_error(r"attention dropout 0.1 in training.*set the model's attention dropout to 0", bert.train(), **batch)
    assert_error(r"register: unknown option cuont; valid options are count, score", register, "typo", cuont=3)
    bert.eval().config.cur = {"cuont": 3}
    assert_error(r"config.cur: unknown option cuont; valid options are count", bert, **batch)


def test_additive_mask_equals_boolean_mask():
    encoder, batch = model("bert", "cur_8"), inputs("bert")
    keys = batch["attention_mask"].bool()[:, None, None]
    bias = torch.zeros(keys.shape, dtype=torch.float64).masked_fill(~keys, torch.finfo(torch.float64).min)
    out = encoder(batch["input_ids"], bias.expand(3, 1, 20, 20)).last_hidden_state
    torch.testing.assert_close(out[keys[:, 0, 0]], states(encoder, batch))
    assert_error("adds a position bias", encoder, batch["input_ids"], bias.clamp(min=-1e4))


def test_cur_attention_matches_registered_attention():
    """The queries, keys and values that the model passes give the same output in cur_attention."""
    attention, lengths = transformers.AttentionInterface()["cur_8"], []

    def compare(module, q, k, v, mask, **options):
        lengths.append(q.shape[2])
        result = attention(module, q, k, v, mask, **options)
        expected = cur_attention(q, k, v, scale=options["scaling"], count=8, class_token=True)
        torch.testing.assert_close(result[0], expected.transpose(1, 2))
        assert mask is None and result[1] is None
        return result

    transformers.AttentionInterface.register("cur_compared", compare)
    states(model("vit", "cur_compared"), inputs("vit"))
    assert lengths == [37, 37]
