"""The loss of phase one against its definition, position by position, and what the encoder may and may not see."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from conftest import config
from support.features import padded_ids

from lra.model.pretrainer import Pretrainer, draw_holes

L, VOCAB = 20, 32


def classifier(name="sdpa", *overrides):
    torch.manual_seed(0)
    return config(name, f"task.length={L}", *overrides).classifier().double().eval()


def pretrainer(encoder, loss="cross_entropy", objective="masked", **options):
    outputs = VOCAB if loss == "cross_entropy" else 1
    return Pretrainer(encoder, dim=64, outputs=outputs, loss=loss, objective=objective, **options).double().eval()


batch = partial(padded_ids, (L, 13, 5))


@pytest.mark.parametrize("loss", ["cross_entropy", "l1"])
@pytest.mark.parametrize("towers", [1, 2])
def test_masked_loss_is_over_the_holes_alone(loss, towers):
    inputs, mask = batch(towers)
    model = pretrainer(classifier(), loss)
    torch.manual_seed(2)
    holes = draw_holes(0.4, inputs, mask)
    assert holes.any() and not (holes & ~mask).any()
    total, count = model.error(inputs, mask, holes)
    vectors = model(inputs, mask, holes)
    terms = []
    for n, t, i in holes.nonzero().tolist():
        told = model.predict(vectors[n, t, i]).float()
        wanted = inputs[n, t, i]
        terms.append(F.cross_entropy(told, wanted) if loss == "cross_entropy" else (told[0] - wanted / 255).abs())
    assert count == len(terms) == int(holes.sum())
    torch.testing.assert_close(total, sum(terms), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mask_id", ["own", "padding"])
def test_what_stands_in_a_hole_is_not_seen(mask_id):
    inputs, mask = batch()
    model = pretrainer(classifier(), mask_id=mask_id)
    holes = draw_holes(0.4, inputs, mask)
    other = torch.where(holes, (inputs + 3) % 16, inputs)
    assert torch.equal(model(inputs, mask, holes), model(other, mask, holes))
    shown = (inputs * ~holes, mask)  # own: a hole is told from a token of id 0, padding: it is one
    assert torch.equal(model(inputs, mask, holes), model(*shown, torch.zeros_like(holes))) == (mask_id == "padding")


def test_next_token_loss_is_that_of_prefixes():
    inputs, mask = batch()
    model = pretrainer(classifier("sdpa", "attn.causal=true"), objective="next")
    total, count = model.error(inputs, mask)
    terms = []
    for n, length in enumerate((20, 13, 5)):
        for i in range(1, length):
            vectors = model(inputs[n : n + 1, :, :i], None)
            terms.append(F.cross_entropy(model.predict(vectors[0, 0, -1]).float(), inputs[n, 0, i]))
    assert count == len(terms) == 19 + 12 + 4
    torch.testing.assert_close(total, sum(terms), rtol=1e-5, atol=1e-5)
    full, _ = model.error(inputs[:1], None)
    torch.testing.assert_close(full, model.error(inputs[:1], mask[:1])[0], rtol=1e-5, atol=1e-5)


def test_real_features_are_told_by_their_mean_absolute_error():
    made = classifier("sdpa", "task=adding")
    model = Pretrainer(made, dim=64, outputs=2, loss="l1", objective="masked").double().eval()
    inputs, holes = torch.randn(3, 1, L, 2, dtype=torch.float64), torch.rand(3, 1, L) < 0.5
    total, count = model.error(inputs, None, holes)
    told = model.predict(model(inputs, None, holes))
    want = ((told - inputs).abs().mean(-1) * holes).sum()
    assert count == holes.sum()
    torch.testing.assert_close(total, want.float(), rtol=1e-5, atol=1e-5)


def test_the_encoder_has_the_names_of_the_classifier_and_every_parameter_a_gradient():
    inputs, mask = batch()
    made = classifier("nystrom_original", "attn.landmarks=4")  # towers one by one
    model = pretrainer(made)
    own, theirs = model.state_dict(), made.state_dict()
    assert {key for key in theirs if key not in own} == {key for key in theirs if key.startswith("head.")}
    assert {key for key in own if key not in theirs} == {"hole", "predict.weight", "predict.bias"}
    model.error(inputs, mask, draw_holes(0.4, inputs, mask))[0].backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_no_hole_is_a_loss_of_zero():
    inputs, mask = batch()
    total, count = pretrainer(classifier()).error(inputs, mask, torch.zeros_like(mask))
    assert count == 0 and total == 0 and total.requires_grad
