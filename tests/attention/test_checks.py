"""Every mechanism: the checks of ``lra.checks``, dropout, random draws, memory, sequence lengths and float32 error."""

import contextlib
import itertools

import pytest
import torch
from conftest import CHECK_SIZES, KERNELS, MECHANISMS, assert_error, config
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lra.attention.base import Attention, Mixer, Sizes
from lra.attention.cosformer import CosFormer
from lra.attention.fnet import FNet
from lra.attention.h_transformer_1d import HTransformer1D
from lra.attention.hedgehog import Hedgehog
from lra.attention.linear import RFA, Linear, Performer
from lra.attention.longformer import Longformer
from lra.attention.lru import LRU
from lra.attention.s5 import S5
from lra.checks import __main__ as command
from lra.checks import properties
from lra.checks.exceptions import EXCEPTIONS
from lra.ops.untraced import FUNCTIONS

EAGER = [name for name in MECHANISMS if name not in KERNELS]


@pytest.mark.parametrize("name", MECHANISMS)
@pytest.mark.parametrize("check", properties.CHECKS, ids=lambda check: check.__name__)
def test_mechanism_passes_check(check, name):
    """An exception whose check passes fails the test, so the list stays current."""
    if check is properties.gradient_is_the_derivative and name in KERNELS:
        pytest.skip("computes in float32; tests/ops/test_triton.py compares with float64")
    # Kernels run in Triton's interpreter, which is slow.
    budget = ["attn.count=32"] if name in KERNELS else []
    passes = check(config(name, *CHECK_SIZES, *budget))
    if reason := EXCEPTIONS.get((check.__name__, name)):
        assert not passes, f"no longer an exception: {reason}"
    else:
        assert passes


PADDING = ["soft attn.sample=random", "soft attn.sample=first", "soft attn.sample=conv"]
PADDING.append("psf block=plain attn.channels=8 attn.project=false attn.residuals=true")
BUDGETS = ["cur_abs attn.count=8", "nystrom attn.landmarks=8"]
VARIANTS = [*itertools.product(properties.CHECKS[:4], PADDING)]
VARIANTS += itertools.product([properties.fewer_tokens_than_budget], BUDGETS)
# The batch norm of a block has running averages.
VARIANTS.append((properties.evaluation_is_repeatable, "mean block=glu"))


@pytest.mark.parametrize(("check", "words"), VARIANTS, ids=lambda value: getattr(value, "__name__", value))
def test_checks_pass_for_other_options(check, words):
    assert check(config(*words.split(), *CHECK_SIZES))


class Flawed(Attention):
    """The values themselves, with the flaw that one check looks for."""

    compactable = True

    def __init__(self, sizes, *, flaw: str):
        super().__init__(sizes)
        self.flaw = flaw
        self.num_calls = 0

    def forward(self, q, k, v, mask=None):
        self.num_calls += 1
        match self.flaw:
            case "evaluation_is_repeatable":
                return v + self.num_calls
            case "every_parameter_gets_a_gradient":
                return v.detach()
            case "compactable_as_declared":
                return v * torch.arange(v.shape[2])[:, None]
            case "no_mask_is_a_mask_of_real_tokens":
                return v if mask is None else 2 * v
            case "sequences_of_padding_stay_finite":
                num_real = v.new_ones(1, 1) if mask is None else mask.sum(1, keepdim=True)
                return v * (num_real / num_real)[:, :, None, None]
            case "bfloat16_stays_near_float32":
                return v + 100.0 * (v.dtype == torch.bfloat16)


# ``EXCEPTIONS`` shows that the other checks can fail.
FLAWS = set(properties.CHECKS) - {getattr(properties, name) for name, _ in EXCEPTIONS}


@pytest.mark.parametrize("check", sorted(FLAWS, key=str), ids=lambda check: check.__name__)
def test_check_detects_a_flaw(check):
    assert not check(config(f"{__name__}.Flawed", *CHECK_SIZES, f"+attn.flaw={check.__name__}"))


@pytest.mark.slow
@pytest.mark.parametrize("name", MECHANISMS)
def test_compactable_flag_matches_behaviour(name):
    """The length is 1,024, so that no band or block covers the whole sequence."""
    experiment = config(name, *CHECK_SIZES)
    is_declared = getattr(properties.block(experiment, 1024), "compactable", False)
    assert properties.is_compactable(experiment, (1024, 700), 1024) == is_declared


class Broken(Attention):
    """Reads position 200 of a shorter sequence, which raises a RuntimeError."""

    def forward(self, q, k, v, mask=None):
        return v + v[:, :, 200:201]


FAILURES = "lra: nystrom_original fails 2 of 12 checks: alone as in a batch, fewer tokens than budget"
REPORTS = {
    "attn=cur_step": ("None", {"passes  ": 12, "cur_step passes all checks\n": 1}),
    "attn=nystrom_original": (FAILURES, {"FAILS": 2}),
    "attn=custom": ("lra: Broken fails ", {"FAILS   padding changes no real token: RuntimeError: ": 1}),
}


@pytest.mark.parametrize("word", REPORTS)
def test_check_command_reports_failed_checks(word, call):
    message, printed_lines = REPORTS[word]
    custom_class = [f"attn._target_={__name__}.Broken"] if word == "attn=custom" else []
    exit_message, out, _ = call(command.check, word, *custom_class)
    assert str(exit_message).startswith(message)
    assert {line: out.count(line) for line in printed_lines} == printed_lines


@pytest.mark.parametrize("impl", ["sdpa", "triton", "triton_rounded"])
def test_kernels_are_checked_in_float32_without_difference_quotient(impl):
    experiment = config("cur_abs", *CHECK_SIZES)
    experiment = experiment.replace(attn=experiment.attn.replace(impl=impl))
    is_kernel = impl != "sdpa"
    assert properties.in_float32(experiment) == is_kernel
    skipped = set(properties.CHECKS) - set(command.applicable_checks(experiment))
    assert skipped == ({properties.gradient_is_the_derivative} if is_kernel else set())


def test_check_command_counts_skipped_checks(monkeypatch, call):
    monkeypatch.setattr(command, "in_float32", lambda experiment: True)
    _, out, _ = call(command.check, "attn=cur_step")
    assert out.endswith("cur_step passes 11 of 12 checks, 1 skipped\n") and "difference quotient" in out
    exit_message, _, _ = call(command.check, "attn=nystrom_original")
    assert exit_message.startswith("lra: nystrom_original fails 2 of 11 checks: ")


def build_block(words, dropout):
    """Build a block with attention dropout only."""
    experiment = config(*words.split(), *CHECK_SIZES)
    model, attn = experiment.model.replace(dropout=0.0), experiment.attn.replace(dropout=dropout)
    return properties.block(experiment.replace(model=model, attn=attn))


@pytest.mark.parametrize("name", MECHANISMS)
def test_dropout_is_active_in_training_or_rejected(name):
    experiment = config(name, *CHECK_SIZES)
    kind = experiment.attn.function
    if issubclass(kind, Attention | Mixer) and not kind.has_dropout:
        assert_error(rf"^attn.dropout must be 0, not 0.5: {kind.__name__} has no dropout", build_block, name, 0.5)
        return
    x, mask = properties.inputs(experiment)
    with_dropout, without_dropout = build_block(name, 0.5), build_block(name, 0.0)
    assert torch.equal(with_dropout(x, mask)[0][mask], without_dropout(x, mask)[0][mask])
    outputs = []
    for module in (with_dropout, without_dropout):
        torch.manual_seed(1)
        outputs.append(module.train()(x, mask)[0][mask])
    assert not torch.equal(*outputs)


DROPOUT_ON_WEIGHTS = ("linformer", "synthesizer", "synthesizer_dense", "synthesizer_random", "transformer_ls")
DROPOUT_ON_WEIGHTS += ("long_conv attn.scale=0.5 attn.squash=0",)


@pytest.mark.parametrize("words", DROPOUT_ON_WEIGHTS)
def test_mean_over_dropout_draws_matches_evaluation(words):
    experiment = config(*words.split(), "task.length=16", "model.dim=16", "++attn.dropout=0.5")
    mixer, (x, mask) = properties.block(experiment, 16).mixer, properties.inputs(experiment, lengths=(16, 9), length=16)
    exact = mixer(x, mask)[mask]
    torch.manual_seed(2)
    with torch.no_grad():
        draws = torch.stack([mixer.train()(x, mask)[mask] for _ in range(500)])
    assert not torch.allclose(draws[0], draws[1]) and (draws.mean(0) - exact).norm() < 0.1 * exact.norm()


RANDOM = ("bigbird", "cur_random", "mega_cur_random", "performer", "performer_relu", "reformer", "reformer_official")
RANDOM += ("rfa", "skyformer")
# Overrides of a mechanism -> whether it draws new random numbers at each call (in training, in evaluation).
# By default BigBird selects every block of such a short sequence.
EXPECTED_RANDOMNESS = {name: (name in RANDOM, False) for name in EAGER if name != "bigbird"} | {
    "bigbird attn.block=2 attn.random=1": (True, False),
    "performer attn.redraw=never": (False, False),
    "rfa attn.redraw=never": (False, False),
    "skyformer attn.resample=always": (True, True),
    "cur_random attn.resample=always": (True, True),
    "cur_plus attn.score=random attn.resample=always": (True, True),
}


@pytest.mark.parametrize("words", EXPECTED_RANDOMNESS)
def test_only_random_mechanisms_vary_between_calls(words):
    module, (x, mask) = build_block(words, 0.0), properties.inputs(config(words.split()[0], *CHECK_SIZES))
    for is_training, draws in zip((True, False), EXPECTED_RANDOMNESS[words], strict=True):
        module.train(is_training)
        assert torch.equal(module(x, mask)[0], module(x, mask)[0]) == (not draws)


class NoSquare(TorchDispatchMode):
    """Raise on any operation that returns a tensor with two dimensions of at least ``length``."""

    def __init__(self, length):
        super().__init__()
        self.length = length

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        # An operator of this package: its function may make tensors too.
        function = FUNCTIONS.get(func.name())
        with self if function else contextlib.nullcontext():
            out = (function or func)(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, torch.Tensor) and sum(size >= self.length for size in leaf.shape) > 1:
                raise AssertionError(f"{func} makes {tuple(leaf.shape)}")
        return out


MEMORY = [name for name in EAGER if not name.startswith(("cur_", "mega", "nystrom"))]
# Mechanisms with quadratic memory, and all mechanisms that are too slow at 16,384 tokens.
SQUARE = ("soft", "softpp", "softmax", "synthesizer_random")
QUADRATIC = (*SQUARE, "sdpa", "synthesizer", "synthesizer_dense", "sparse_fixed", "reformer_official")
OPTIONS = ("synthesizer attn.dot_product=true", "synthesizer_dense attn.dot_product=true", "luna attn.tie_kv=false")
OPTIONS += ("mega_chunk", "mega_chunk attn.weights=laplace", "mega_cur_step", "mega_cur_abs attn.weights=laplace")
OPTIONS += ("linformer attn.share_kv=false attn.share_heads=true", "transformer_ls attn.kernel=35")
OPTIONS += ("cur_abs", "cur_step", "cur_plus", "nystrom")


def block_of_length(words, length, heads=2):
    torch.manual_seed(0)
    experiment = config(*words.split(), *CHECK_SIZES)
    task, model = experiment.task.replace(length=length), experiment.model.replace(heads=heads)
    return experiment.replace(task=task, model=model).block_factory()()


@pytest.mark.parametrize("words", [*(name for name in MEMORY if name not in SQUARE), *OPTIONS])
@pytest.mark.parametrize("masked", [False, True])
def test_forward_and_backward_allocate_no_square_tensor(words, masked):
    length = 1024
    module, x = block_of_length(words, length).train(), torch.randn(2, length, 16, requires_grad=True)
    mask = torch.arange(length) < torch.tensor([[length], [700]]) if masked else None
    with NoSquare(length):
        module(x, mask)[0].square().mean().backward()
    assert x.grad.isfinite().all() and x.grad.any()


def test_no_square_mode_detects_forward_and_backward():
    module, x = block_of_length("softmax", 256), torch.randn(1, 256, 16)
    with pytest.raises(AssertionError, match="makes"), NoSquare(256):
        module(x, None)
    loss = module(x, None)[0].sum()
    with pytest.raises(AssertionError, match="makes"), NoSquare(256):
        loss.backward()


def length_cases():
    for name, length in itertools.product(MEMORY, (128, 1024, 2048, 4096, 16384)):
        if length < 16384 or name not in QUADRATIC:
            yield pytest.param(name, length, marks=[pytest.mark.slow] * (length in (1024, 4096)))


@pytest.mark.parametrize(("name", "length"), length_cases())
@torch.no_grad()
def test_mechanism_runs_at_task_lengths(name, length):
    module, shorter = block_of_length(name, length, heads=1).eval(), length - 37
    assert module(torch.randn(1, length, 16), None)[0].isfinite().all()
    assert module(torch.randn(1, shorter, 16), torch.arange(shorter)[None] < shorter - 5)[0].isfinite().all()


EPS = torch.finfo(torch.float32).eps
ROUNDING_CASES = [
    (Linear, {}), (Performer, {"redraw": "never"}), (Performer, {"kernel": "relu", "redraw": "never"}),
    (RFA, {"redraw": "never"}), (CosFormer, {}), (Hedgehog, {}), (HTransformer1D, {}),
    (Longformer, {"window": 63}), (FNet, {"dim": 8}), (LRU, {"dim": 8, "r_max": 0.99}), (S5, {"dim": 8}),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "options"), ROUNDING_CASES, ids=str)
@pytest.mark.parametrize("masked", [False, True])
def test_float32_error_grows_like_sum_of_random_errors(kind, options, masked):
    """A sum of n terms with random relative errors up to EPS is off by √n EPS; n is at least the length.

    LRU and S5 multiply their rounded phase by up to n, so the slowest states are off by n EPS.
    """
    length = 1024
    # A full sequence, a prime number of real tokens, one, and none.
    real = torch.arange(length) < torch.tensor([length, 773, 1, 0])[:, None]
    torch.manual_seed(0)
    module = kind(Sizes(heads=2, head_dim=4, value_dim=4, length=length), **options).eval()
    is_mixer = "dim" in options
    shape = (4, length, 8) if is_mixer else (4, 2, length, 4)
    draw = lambda shape, seed: torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    inputs = [draw(shape, seed) for seed in range(1 if is_mixer else 3)]
    if kind is CosFormer:
        # A denominator close to 0 magnifies rounding errors: queries without an entry above 0.1 lose their signs.
        inputs[0] = inputs[0].where(inputs[0].amax(-1, keepdim=True) > 0.1, inputs[0].abs())
    upstream = draw((4, length, 8), 7)
    results = []
    for dtype in (torch.float32, torch.float64):
        module.to(dtype)
        leaves = [x.to(dtype).requires_grad_() for x in inputs]
        out = module(*leaves, real if masked else None)
        out = out.movedim(-2, 1).flatten(2) * (real[..., None] if masked else 1)
        results.append([out, *torch.autograd.grad((out * upstream.to(dtype)).sum(), leaves)])
    tolerance = (length if kind in (LRU, S5) else length**0.5) * EPS
    for rounded, exact in zip(*results, strict=True):
        assert (rounded - exact).norm() < tolerance * exact.norm()
