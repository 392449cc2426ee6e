"""The checks that every mechanism passes, at the level of the encoder block, in float64.

A check is a function of an experiment that returns whether it passes. A batch has four sequences of 128 positions, of
which 128, 97, 70 and 3 are real tokens. A Triton kernel computes in float32.
"""

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from ..config.experiment import Experiment
from ..ops.segments import real_first

LENGTH = 128
# Real tokens of each sequence: full, odd, and fewer than every default count.
LENGTHS = (128, 97, 70, 3)
# Real tokens of a sequence that is shorter than the mechanism's budget of tokens.
FEW = 16
# Step of the difference quotient.
STEP = 1e-6
# Maximum distance of bfloat16 from float32, relative to the norm of the float32 result.
ROUGH = 0.1


def block(experiment: Experiment, length: int = LENGTH) -> nn.Module:
    """Build the encoder block of an experiment in evaluation mode and float64.

    The block of a Triton kernel stays in float32 and casts its input.
    """
    torch.manual_seed(0)
    is_kernel = in_float32(experiment)
    model = experiment.model.replace(heads=1) if is_kernel else experiment.model
    task = experiment.task.replace(length=length)
    # Random initial weights of the experiment's sizes.
    module = experiment.replace(model=model, task=task).block_factory()()
    if is_kernel:
        module.register_forward_pre_hook(lambda _, args: (args[0].float(), *args[1:]))
        return module.eval()
    return module.double().eval()


def in_float32(experiment: Experiment) -> bool:
    """Return whether the mechanism computes in float32 only."""
    return experiment.attn.get("impl") == "triton"


def inputs(
    experiment: Experiment,
    *,
    seed: int = 1,
    lengths: tuple[int, ...] = LENGTHS,
    length: int = LENGTH,
) -> tuple[Tensor, Tensor]:
    """Draw random token vectors (N,L,dim), and make the mask (N,L) of sequences of the given real lengths."""
    generator = torch.Generator().manual_seed(seed)
    shape = (len(lengths), length, experiment.model.dim)
    x = torch.randn(*shape, dtype=torch.float64, generator=generator)
    mask = torch.arange(length) < torch.tensor(lengths)[:, None]
    return x, mask


def with_holes(mask: Tensor) -> Tensor:
    """Mask random real positions too, as black pixels do; position 1 of each sequence stays real."""
    generator = torch.Generator().manual_seed(2)
    is_real = torch.rand(mask.shape, generator=generator) < 0.6
    is_second = torch.arange(mask.shape[1]) == 1
    return mask & is_real | is_second


def same(a: Tensor, b: Tensor) -> bool:
    """Return whether two results are equal up to the rounding of their dtype."""
    if a.dtype == torch.float64:
        return torch.allclose(a, b, rtol=1e-9, atol=1e-11)
    return torch.allclose(a, b, rtol=1e-5, atol=1e-5)


def padding_changes_no_real_row(experiment: Experiment, holes: bool = False) -> bool:
    """Other values in padded positions do not change the outputs of real tokens."""
    module = block(experiment)
    x, mask = inputs(experiment)
    if holes:
        mask = with_holes(mask)
    # Padding gets large random values.
    noise = 7 * inputs(experiment, seed=3)[0]
    x_other = torch.where(mask[..., None], x, noise)
    return same(module(x, mask)[0][mask], module(x_other, mask)[0][mask])


def padding_anywhere_changes_no_real_row(experiment: Experiment) -> bool:
    """Neither do they with padding between real tokens."""
    return padding_changes_no_real_row(experiment, holes=True)


def padding_gets_no_gradient(experiment: Experiment) -> bool:
    """The derivatives of real outputs by padded inputs are zero."""
    module = block(experiment)
    x, mask = inputs(experiment)
    module(x.requires_grad_(), mask)[0][mask].sum().backward()
    return bool((x.grad[~mask] == 0).all())


def alone_as_in_a_batch(experiment: Experiment) -> bool:
    """An example has the same result alone, without padding, and in a batch."""
    module = block(experiment)
    x, mask = inputs(experiment)
    batched = module(x, mask)[0]
    for i, n_real in enumerate(LENGTHS):
        single = module(x[i : i + 1, :n_real], None)[0][0]
        if not same(batched[i, :n_real], single):
            return False
    return True


def evaluation_is_repeatable(experiment: Experiment) -> bool:
    """Other batches and a training step in between leave no state."""
    module = block(experiment)
    x, mask = inputs(experiment)
    first = module(x, mask)[0]
    # Another batch of other sizes, then a forward pass in training mode.
    module(inputs(experiment, seed=4)[0][:2], None)
    module.train()(x, mask)
    module.eval()
    return torch.equal(first, module(x, mask)[0])


def every_parameter_gets_a_gradient(experiment: Experiment) -> bool:
    """Gradients of the parameters and of the input are finite and not zero."""
    module = block(experiment).train()
    x, mask = inputs(experiment)
    module(x.requires_grad_(), mask)[0].square().sum().backward()
    for tensor in (*module.parameters(), x):
        gradient = tensor.grad
        if gradient is None or not gradient.isfinite().all() or not gradient.any():
            return False
    return True


def hole_free(experiment: Experiment, lengths: tuple[int, ...] = LENGTHS, length: int = LENGTH) -> bool:
    """Compacted sequences, cut to a multiple of 64 positions, have the results of the sequences with padding."""
    module = block(experiment, length)
    x, mask = inputs(experiment, lengths=lengths, length=length)
    mask = with_holes(mask)

    # Compaction: real tokens first, in their order; padding behind the longest sequence is cut off.
    longest = int(mask.sum(-1).max())
    width = -(-longest // 64) * 64
    order = real_first(mask)[:, :width]
    index = order[..., None].expand(-1, -1, x.shape[-1])  # (N,width,dim)
    compact_mask = mask.gather(1, order)

    compact_out = module(x.gather(1, index), compact_mask)[0]
    out = module(x, mask)[0].gather(1, index)
    return same(compact_out[compact_mask], out[compact_mask])


def what_is_declared_hole_free_is(experiment: Experiment) -> bool:
    """A mechanism with ``hole_free = True`` depends on no masked position, not even on their number."""
    is_declared = getattr(block(experiment), "hole_free", False)
    return not is_declared or hole_free(experiment)


def no_mask_is_a_mask_of_real_tokens(experiment: Experiment) -> bool:
    """``mask=None`` means that all tokens are real."""
    module = block(experiment)
    x, mask = inputs(experiment)
    return same(module(x, None)[0], module(x, torch.ones_like(mask))[0])


def fewer_tokens_than_kept_ones(experiment: Experiment) -> bool:
    """With fewer real tokens than ``count`` or ``landmarks`` the result is equal to a mechanism with that budget."""
    module = block(experiment)
    x, mask = inputs(experiment, lengths=(FEW, FEW))
    budgets = [key for key in ("count", "landmarks") if experiment.attn.get(key) is not None]
    # A mechanism without a token budget only has to stay finite.
    if not budgets:
        return bool(module(x, mask)[0][mask].isfinite().all())
    smaller_attn = experiment.attn.replace(**{budgets[0]: FEW})
    smaller = block(experiment.replace(attn=smaller_attn))
    smaller.load_state_dict(module.state_dict())
    return same(module(x, mask)[0][mask], smaller(x, mask)[0][mask])


def gradient_is_the_derivative(experiment: Experiment) -> bool:
    """The gradient along a random direction is the difference quotient."""
    module = block(experiment)
    x, mask = inputs(experiment, lengths=(128, 50))
    direction = inputs(experiment, seed=5)[0][:2]
    weight = inputs(experiment, seed=6)[0][:2]

    def loss(t: Tensor | float) -> Tensor:
        out = module(x + t * direction, mask)[0]
        return (out * weight)[mask].sum()

    t = torch.zeros((), dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(loss(t), t)
    with torch.no_grad():
        quotient = (loss(STEP) - loss(-STEP)) / (2 * STEP)
    return torch.allclose(slope, quotient, rtol=1e-5, atol=1e-5)


def sequences_of_padding_stay_finite(experiment: Experiment) -> bool:
    """A sequence without real tokens has finite outputs and gradients."""
    module = block(experiment).train()
    x, mask = inputs(experiment, lengths=(LENGTH, 0, 0))
    out = module(x.requires_grad_(), mask)[0]
    # The loss reads padded positions too, so that their gradients are not zero.
    out.square().sum().backward()
    gradients = [parameter.grad for parameter in (*module.parameters(), x)]
    return all(bool(tensor.isfinite().all()) for tensor in (out, *gradients) if tensor is not None)


def bfloat16_stays_near_float32(experiment: Experiment) -> bool:
    """Under autocast to bfloat16 the result is finite and close to the float32 result."""
    module = copy.deepcopy(block(experiment)).float()
    x, mask = inputs(experiment)
    exact = module(x.float(), mask)[0][mask]
    with torch.autocast("cpu", torch.bfloat16):
        rough = module(x.float(), mask)[0][mask]
    is_close = (rough - exact).norm() < ROUGH * exact.norm()
    return bool(rough.isfinite().all()) and bool(is_close)


LAWS: tuple[Callable[[Experiment], bool], ...] = (
    padding_changes_no_real_row,
    padding_anywhere_changes_no_real_row,
    padding_gets_no_gradient,
    alone_as_in_a_batch,
    evaluation_is_repeatable,
    every_parameter_gets_a_gradient,
    what_is_declared_hole_free_is,
    no_mask_is_a_mask_of_real_tokens,
    fewer_tokens_than_kept_ones,
    gradient_is_the_derivative,
    sequences_of_padding_stay_finite,
    bfloat16_stays_near_float32,
)
