"""Pairs of texts: a mechanism that mixes the examples of a batch gets each text of the pairs as a batch of its own."""

import pytest
import torch
from conftest import config

from lra.data.datamodule import Batch
from lra.maps import maps
from lra.studies.qkv import calls
from lra.studies.transfer.compare import layers

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
@pytest.mark.parametrize("words", MIXING, ids=" ".join)
def test_texts_are_encoded_one_after_the_other(words, pad):
    model, batch = pairs(*words, f"data.pad={pad}")
    out, expected = model(batch.inputs, batch.mask), one_after_the_other(model, batch)
    torch.testing.assert_close(out, expected, rtol=1e-10, atol=1e-12)
    parameters = list(model.parameters())
    for ours, theirs in zip(*(torch.autograd.grad(x.square().sum(), parameters) for x in (out, expected)), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-10)
    model.encode_separately = False
    assert (model(batch.inputs, batch.mask) - expected).abs().max() > 1e-7


@pytest.mark.parametrize("words", ALONE, ids=" ".join)
def test_others_take_both_at_once(words):
    model, batch = pairs(*words)
    found = calls(model, batch)
    assert not model.encode_separately and all(len(seen) == 1 and len(seen[0].out) == 2 * B for seen in found.values())
    torch.testing.assert_close(
        model(batch.inputs, batch.mask), one_after_the_other(model, batch), rtol=1e-10, atol=1e-12
    )


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
def test_maps_are_in_the_order_of_the_rows(words):
    model, batch = pairs(*words)
    found = maps.attention_map(model, batch, 0)
    assert found.shape[0] == 2 * B
    seen = calls(model, batch)["blocks.0.mixer.attention"]
    v, out = (
        torch.stack(parts, 1).flatten(0, 1) for parts in zip(*((c.arguments["v"], c.out) for c in seen), strict=True)
    )
    real = batch.mask.flatten(0, 1)[:, None, :, None].expand_as(out)
    torch.testing.assert_close((found @ v)[real], out[real])
