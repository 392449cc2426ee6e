"""Checks of mechanisms at the level of the encoder block, in float64 with two exceptions.

A check is a function of an experiment that returns whether it passes. The first line of its docstring is printed if it
fails. Unless a check sets other lengths, a batch has four sequences of 128 positions, of which 128, 97, 70 and 3 are
real tokens. Triton kernels compute in float32, and one check compares bfloat16 with float32.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from ..config.experiment import Experiment
from ..ops.attention_maps import uses_kernels
from ..ops.segment_means import argsort_valid_first

LENGTH = 128
# Real tokens of each sequence: full, odd, even, and fewer than every default token budget.
LENGTHS = (128, 97, 70, 3)
# Real tokens of a sequence that has fewer than the token budget.
FEW = 16
# Step of the difference quotient.
STEP = 1e-6
# Largest distance of the bfloat16 result from the float32 result, relative to the norm of the latter.
BFLOAT16_TOLERANCE = 0.1

# Returns whether the mechanism of an experiment passes.
Check = Callable[[Experiment], bool]


def block(experiment: Experiment, length: int = LENGTH) -> nn.Module:
    """Build the encoder block of an experiment in evaluation mode and float64.

    The block of a Triton kernel has one head, stays in float32 and casts its input.
    """
    is_kernel = in_float32(experiment)
    model = experiment.model
    if is_kernel:
        # One head keeps the size of a head within the sizes that the kernels support.
        model = model.replace(heads=1)
    task = experiment.task.replace(length=length)
    experiment = experiment.replace(model=model, task=task)

    # The same random initial weights at every call.
    torch.manual_seed(0)
    build = experiment.block_factory()
    module = build().eval()
    if not is_kernel:
        return module.double()

    def cast_input(_: nn.Module, args: tuple) -> tuple:
        return args[0].float(), *args[1:]

    module.register_forward_pre_hook(cast_input)
    return module


def in_float32(experiment: Experiment) -> bool:
    """Return whether the mechanism is checked in float32: with Triton kernels, which take no float64."""
    return uses_kernels(experiment.attn.get("impl") or "eager")


def outputs(module: nn.Module, x: Tensor, mask: Tensor | None) -> Tensor:
    """Return the token vectors (N,L,dim) that a block makes of an input."""
    # A block also returns the memory for the next block.
    return module(x, mask)[0]


def real_outputs(module: nn.Module, x: Tensor, mask: Tensor) -> Tensor:
    """Return the outputs of the real tokens of all sequences, one after the other."""
    return outputs(module, x, mask)[mask]  # (tokens,dim)


def inputs(
    experiment: Experiment,
    *,
    seed: int = 1,
    lengths: tuple[int, ...] = LENGTHS,
    length: int = LENGTH,
) -> tuple[Tensor, Tensor]:
    """Draw random token vectors (N,L,dim), and make the mask (N,L) of sequences with these numbers of real tokens."""
    generator = torch.Generator().manual_seed(seed)
    shape = (len(lengths), length, experiment.model.dim)
    x = torch.randn(*shape, dtype=torch.float64, generator=generator)
    # Real tokens come first; the rest of a sequence is padding.
    num_real = torch.tensor(lengths)[:, None]
    mask = torch.arange(length) < num_real
    return x, mask


def with_holes(mask: Tensor) -> Tensor:
    """Also mask about 40 percent of the real positions, as an image task masks black pixels; position 1 stays real."""
    generator = torch.Generator().manual_seed(2)
    is_real = torch.rand(mask.shape, generator=generator) < 0.6
    is_second = torch.arange(mask.shape[1]) == 1
    return (mask & is_real) | is_second


def same(a: Tensor, b: Tensor) -> bool:
    """Return whether two results are equal up to the rounding of their dtype."""
    if a.dtype == torch.float64:
        return torch.allclose(a, b, rtol=1e-9, atol=1e-11)
    return torch.allclose(a, b, rtol=1e-5, atol=1e-5)


def padding_changes_no_real_token(experiment: Experiment, holes: bool = False) -> bool:
    """Other values in padded positions do not change the outputs of real tokens."""
    module = block(experiment)
    x, mask = inputs(experiment)
    if holes:
        mask = with_holes(mask)
    # Padding gets large random values.
    noise, _ = inputs(experiment, seed=3)
    x_other = torch.where(mask[..., None], x, 7 * noise)
    expected = real_outputs(module, x, mask)
    out = real_outputs(module, x_other, mask)
    return same(expected, out)


def padding_anywhere_changes_no_real_token(experiment: Experiment) -> bool:
    """Other values in masked positions between real tokens do not change the outputs of real tokens either."""
    return padding_changes_no_real_token(experiment, holes=True)


def padding_gets_no_gradient(experiment: Experiment) -> bool:
    """The derivatives of real outputs with respect to padded inputs are zero."""
    module = block(experiment)
    x, mask = inputs(experiment)
    x.requires_grad_()
    total = real_outputs(module, x, mask).sum()
    (gradient,) = torch.autograd.grad(total, x)
    return not gradient[~mask].any()


def alone_as_in_a_batch(experiment: Experiment) -> bool:
    """An example has the same result alone, without padding, and in a batch."""
    module = block(experiment)
    x, mask = inputs(experiment)
    batched = outputs(module, x, mask)
    for i, num_real in enumerate(LENGTHS):
        example = x[i : i + 1, :num_real]  # (1,num_real,dim)
        single = outputs(module, example, None)[0]
        if not same(batched[i, :num_real], single):
            return False
    return True


def evaluation_is_repeatable(experiment: Experiment) -> bool:
    """A forward pass on another batch and one in training mode in between do not change the result."""
    module = block(experiment)
    x, mask = inputs(experiment)
    first = outputs(module, x, mask)

    # Another, smaller batch without a mask, then a forward pass in training mode.
    other_x, _ = inputs(experiment, seed=4)
    module(other_x[:2], None)
    module.train()
    # A batch norm of the block updates its running averages in training; that is no fault of the mechanism.
    for norm in module.modules():
        if isinstance(norm, nn.BatchNorm1d):
            norm.eval()
    module(x, mask)
    second = outputs(module.eval(), x, mask)
    return torch.equal(first, second)


def every_parameter_gets_a_gradient(experiment: Experiment) -> bool:
    """The gradients of every parameter and of the input are finite and not all zero."""
    module = block(experiment).train()
    x, mask = inputs(experiment)
    x.requires_grad_()
    outputs(module, x, mask).square().sum().backward()
    for tensor in (*module.parameters(), x):
        gradient = tensor.grad
        if gradient is None or not gradient.any() or not gradient.isfinite().all():
            return False
    return True


def is_compactable(experiment: Experiment, lengths: tuple[int, ...] = LENGTHS, length: int = LENGTH) -> bool:
    """Compaction, followed by padding to a multiple of 64, changes no output of a real token."""
    module = block(experiment, length)
    x, mask = inputs(experiment, lengths=lengths, length=length)
    mask = with_holes(mask)

    # Compaction: real tokens first, in their order; padding behind the longest sequence is cut off.
    longest = int(mask.sum(-1).max())
    width = math.ceil(longest / 64) * 64
    order = argsort_valid_first(mask)[:, :width]
    index = order[..., None]  # (N,width,1)
    compact_mask = mask.gather(1, order)

    compact_x = x.take_along_dim(index, 1)  # (N,width,dim)
    compact_out = real_outputs(module, compact_x, compact_mask)
    out = outputs(module, x, mask).take_along_dim(index, 1)
    return same(compact_out, out[compact_mask])


def compactable_as_declared(experiment: Experiment) -> bool:
    """With ``compactable = True``, outputs do not depend on masked positions, not even on their number."""
    is_declared = getattr(block(experiment), "compactable", False)
    return not is_declared or is_compactable(experiment)


def no_mask_is_a_mask_of_real_tokens(experiment: Experiment) -> bool:
    """``mask=None`` means that all tokens are real."""
    module = block(experiment)
    x, mask = inputs(experiment)
    all_real = torch.ones_like(mask)
    without_mask = outputs(module, x, None)
    with_mask = outputs(module, x, all_real)
    return same(without_mask, with_mask)


def fewer_tokens_than_budget(experiment: Experiment) -> bool:
    """With fewer real tokens than ``count`` or ``landmarks``, a budget of that many tokens gives the same result."""
    module = block(experiment)
    budgets = [key for key in ("count", "landmarks") if experiment.attn.get(key) is not None]
    # A mechanism without a token budget only has to stay finite.
    if not budgets:
        x, mask = inputs(experiment, lengths=(FEW, FEW))
        return bool(real_outputs(module, x, mask).isfinite().all())

    # FEW tokens, or one fewer than a smaller budget.
    budget = experiment.attn.get(budgets[0])
    few = min(FEW, max(1, budget - 1))
    x, mask = inputs(experiment, lengths=(few, few))
    out = real_outputs(module, x, mask)

    # The same weights with a budget of exactly the real tokens.
    smaller_attn = experiment.attn.replace(**{budgets[0]: few})
    smaller = block(experiment.replace(attn=smaller_attn))
    weights = module.state_dict()
    smaller.load_state_dict(weights)
    expected = real_outputs(smaller, x, mask)
    return same(out, expected)


def gradient_is_the_derivative(experiment: Experiment) -> bool:
    """The gradient along a random direction is the difference quotient."""
    module = block(experiment)
    x, mask = inputs(experiment, lengths=(128, 50))
    direction, _ = inputs(experiment, seed=5, lengths=(128, 50))

    def loss(t: Tensor | float) -> Tensor:
        out = outputs(module, x + t * direction, mask)
        weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(6), dtype=out.dtype)
        return (out * weight)[mask].sum()

    # The derivative at t = 0, by autograd and by central differences.
    t = torch.zeros((), dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(loss(t), t)
    with torch.no_grad():
        rise = loss(STEP) - loss(-STEP)
    quotient = rise / (2 * STEP)
    return torch.allclose(slope, quotient, rtol=1e-5, atol=1e-5)


def sequences_of_padding_stay_finite(experiment: Experiment) -> bool:
    """A sequence without real tokens has finite outputs and gradients."""
    module = block(experiment).train()
    x, mask = inputs(experiment, lengths=(LENGTH, 0, 0))
    x.requires_grad_()
    out = outputs(module, x, mask)
    # The loss reads padded positions too, so that their gradients are not zero.
    out.square().sum().backward()
    gradients = [tensor.grad for tensor in (*module.parameters(), x) if tensor.grad is not None]
    return all(bool(tensor.isfinite().all()) for tensor in (out, *gradients))


def bfloat16_stays_near_float32(experiment: Experiment) -> bool:
    """Under autocast to bfloat16 on the CPU the result is finite and close to the float32 result."""
    module = block(experiment).float()
    x, mask = inputs(experiment)
    x = x.float()
    exact = real_outputs(module, x, mask)
    with torch.autocast("cpu", torch.bfloat16):
        rough = real_outputs(module, x, mask)
    distance = (rough - exact).norm()
    is_close = distance < BFLOAT16_TOLERANCE * exact.norm()
    is_finite = rough.isfinite().all()
    return bool(is_finite) and bool(is_close)


CHECKS: tuple[Check, ...] = (
    padding_changes_no_real_token,
    padding_anywhere_changes_no_real_token,
    padding_gets_no_gradient,
    alone_as_in_a_batch,
    evaluation_is_repeatable,
    every_parameter_gets_a_gradient,
    compactable_as_declared,
    no_mask_is_a_mask_of_real_tokens,
    fewer_tokens_than_budget,
    gradient_is_the_derivative,
    sequences_of_padding_stay_finite,
    bfloat16_stays_near_float32,
)
