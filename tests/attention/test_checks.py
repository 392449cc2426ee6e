"""The checks of ``lra.checks`` over every conf/attn/*.yaml, the exceptions to them, and dropout."""

import pytest
import torch
from conftest import CHECK_SIZES, KERNELS, MECHANISMS, config, printed

from lra.attention.base import Attention, Mixer
from lra.checks import __main__ as command
from lra.checks import properties

# check, mechanism -> why it may not hold. An exception that is no longer one fails too.
EXCEPTIONS = {
    (properties.alone_as_in_a_batch, "nystrom_original"): "the inverse starts from a maximum over the batch",
    (properties.fewer_tokens_than_budget, "nystrom_original"): "segments are length / landmarks wide and hold padding",
    (
        properties.padding_changes_no_real_token,
        "psf_original",
    ): "links wrap around the sequence; padding is mixed in",
    (properties.padding_anywhere_changes_no_real_token, "psf_original"): "padding takes part in the mixing",
    (properties.padding_gets_no_gradient, "psf_original"): "padding takes part in the mixing",
    (properties.alone_as_in_a_batch, "psf_original"): "links wrap around the padded sequence",
    (
        properties.gradient_is_the_derivative,
        "soft",
    ): "published: the gradient of an inverse that 20 steps do not reach",
    (properties.gradient_is_the_derivative, "soft_fixed"): "published: the gradient of a converged inverse",
}


@pytest.mark.parametrize("name", MECHANISMS)
@pytest.mark.parametrize("check", properties.CHECKS, ids=lambda check: check.__name__)
def test_check(check, name):
    if check is properties.gradient_is_the_derivative and name in KERNELS:
        pytest.skip("computes in float32; tests/ops/test_triton.py compares with float64")
    passes = check(config(name, *CHECK_SIZES))
    if reason := EXCEPTIONS.get((check, name)):
        assert not passes, f"no longer an exception: {reason}"
    else:
        assert passes


@pytest.mark.slow
@pytest.mark.parametrize("name", MECHANISMS)
def test_compactable_is_declared_correctly(name):
    """At a length at which no band or block covers the sequence."""
    made = config(name, *CHECK_SIZES)
    assert properties.compactable(made, (1024, 700), 1024) == getattr(
        properties.block(made, 1024), "compactable", False
    )


@pytest.mark.parametrize("name", MECHANISMS)
def test_dropout_acts_in_training_or_is_refused(name):
    block = lambda *words: properties.block(config(name, *CHECK_SIZES, "model.dropout=0", *words))
    kind = config(name).attn.function
    if issubclass(kind, Attention | Mixer) and not kind.has_dropout:
        with pytest.raises(ValueError, match=rf"^attn.dropout must be 0, not 0.5: {kind.__name__} has none"):
            block("++attn.dropout=0.5")
        return
    x, mask = properties.inputs(config(name, *CHECK_SIZES))
    made, without = block("++attn.dropout=0.5"), block("++attn.dropout=0")
    assert torch.equal(made(x, mask)[0][mask], without(x, mask)[0][mask])

    def trained(made):
        torch.manual_seed(1)
        return made.train()(x, mask)[0][mask]

    assert not torch.equal(trained(made), trained(without))


DRAWING = ("bigbird", "cur_random", "mega_cur_random", "performer", "performer_relu", "reformer", "reformer_official")
DRAWING += ("rfa", "skyformer")


@pytest.mark.parametrize("name", [name for name in MECHANISMS if name not in KERNELS])
def test_random_mechanisms_draw_anew_in_training_and_no_other_does(name):
    """In evaluation they do not, by a check."""
    words = ["attn.block=2", "attn.random=1"] * (name == "bigbird")  # otherwise every block is kept
    x, mask = properties.inputs(config(name, *CHECK_SIZES))
    made = properties.block(config(name, *CHECK_SIZES, "model.dropout=0", "++attn.dropout=0", *words)).train()
    assert torch.equal(made(x, mask)[0], made(x, mask)[0]) == (name not in DRAWING)


DRAWS = [  # words of a mechanism, whether it draws anew in training and in evaluation
    ("performer attn.redraw=never", False, False),
    ("rfa attn.redraw=never", False, False),
    ("skyformer attn.resample=always", True, True),
    ("cur_random attn.resample=always", True, True),
    ("cur_plus attn.score=random attn.resample=always", True, True),
]


@pytest.mark.parametrize(("words", "training", "evaluation"), DRAWS)
def test_options_say_when_to_draw_anew(words, training, evaluation):
    experiment = config(*words.split(), *CHECK_SIZES, "model.dropout=0")
    made, (x, mask) = properties.block(experiment), properties.inputs(experiment)
    for mode, drawn in ((True, training), (False, evaluation)):
        made.train(mode)
        assert torch.equal(made(x, mask)[0], made(x, mask)[0]) == (not drawn)


PADDED = ("softmax", "cur_abs", "nystrom", "mega", "mega_chunk", "synthesizer_random", "transformer_ls", "reformer")


@pytest.mark.parametrize("name", PADDED)
def test_a_sequence_of_padding_alone_is_finite_and_so_are_its_gradients(name):
    experiment = config(name, *CHECK_SIZES)
    made, (x, mask) = properties.block(experiment), properties.inputs(experiment, lengths=(128, 0))
    out = made(x.requires_grad_(), mask)[0]
    out.square().sum().backward()
    assert out.isfinite().all() and x.grad.isfinite().all()
    assert all(p.grad is None or p.grad.isfinite().all() for p in made.parameters())


DROPPING = ("linformer", "synthesizer", "synthesizer_dense", "synthesizer_random", "transformer_ls")
DROPPING += ("long_conv attn.scale=0.5 attn.squash=0",)


@pytest.mark.parametrize("words", DROPPING)
def test_dropped_weights_are_in_the_mean_those_of_evaluation(words):
    experiment = config(*words.split(), "task.length=16", "model.dim=16", "++attn.dropout=0.5")
    mixer, (x, mask) = properties.block(experiment, 16).mixer, properties.inputs(experiment, lengths=(16, 9), length=16)
    exact = mixer(x, mask)[mask]
    torch.manual_seed(2)
    with torch.no_grad():
        draws = torch.stack([mixer.train()(x, mask)[mask] for _ in range(500)])
    assert not torch.allclose(draws[0], draws[1]) and (draws.mean(0) - exact).norm() < 0.1 * exact.norm()


VARIANTS = [("soft", f"attn.sample={sample}") for sample in ("random", "first", "conv")]
VARIANTS.append(("psf", "block=plain", "attn.channels=8", "attn.project=false", "attn.residuals=true"))


@pytest.mark.parametrize("words", VARIANTS, ids=str)
@pytest.mark.parametrize("check", properties.CHECKS[:4], ids=lambda check: check.__name__)
def test_checks_of_padding_pass_for_further_options(check, words):
    assert check(config(*words, *CHECK_SIZES))


def test_command_says_which_checks_fail(monkeypatch, capfd):
    code, out, _ = printed(command.check, "attn=cur_step", patch=monkeypatch, capfd=capfd)
    assert code is None and out.count("passes  ") == len(properties.CHECKS)
    assert out.endswith("cur_step passes all checks\n")
    code, out, _ = printed(command.check, "attn=nystrom_original", patch=monkeypatch, capfd=capfd)
    assert code == "lra: nystrom_original fails 2 of 12 checks: alone as in a batch, fewer tokens than budget"
    assert out.count("FAILS") == 2


class Broken(Attention):
    """Adds a token that it does not have."""

    def forward(self, q, k, v, mask=None):
        return v + v[:, :, 200:201]


def test_an_error_of_the_mechanism_is_a_failed_check(monkeypatch, capfd):
    words = ["attn=custom", f"attn._target_={__name__}.Broken"]
    code, out, _ = printed(command.check, *words, patch=monkeypatch, capfd=capfd)
    assert "FAILS   padding changes no real token: RuntimeError: " in out and code.startswith("lra: Broken fails ")
