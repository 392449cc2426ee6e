"""The laws that every mechanism keeps, at the level of the encoder block, in float64.

A law is a function of an experiment that says whether it holds. A batch has rows of 128 tokens; 128, 97, 70 and 3 are
real. A Triton kernel computes in float32.
"""

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from ..config.experiment import Experiment
from ..ops.segments import real_first

LENGTH = 128
LENGTHS = (128, 97, 70, 3)  # real tokens of the examples of a batch: full, odd, and fewer than every default count
FEW = 16  # real tokens of a row with fewer of them than the mechanism keeps
STEP = 1e-6  # of a difference quotient
ROUGH = 0.1  # distance of bfloat16 from float32, relative to the latter's norm


def block(experiment: Experiment, length: int = LENGTH) -> nn.Module:
    """The encoder block of an experiment in evaluation, in float64; a Triton kernel's block casts what it is given."""
    torch.manual_seed(0)
    kernel = in_float32(experiment)
    model = experiment.model.replace(heads=1) if kernel else experiment.model
    made = experiment.replace(model=model, task=experiment.task.replace(length=length)).block_factory()()
    if kernel:
        made.register_forward_pre_hook(lambda _, given: (given[0].float(), *given[1:]))
        return made.eval()
    return made.double().eval()


def in_float32(experiment: Experiment) -> bool:
    """Whether the mechanism computes in float32 alone."""
    return experiment.attn.get("impl") == "triton"


def inputs(
    experiment: Experiment, *, seed: int = 1, lengths: tuple[int, ...] = LENGTHS, length: int = LENGTH
) -> tuple[Tensor, Tensor]:
    """Random token vectors (N,L,dim) and the mask (N,L) of rows with so many real tokens."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(len(lengths), length, experiment.model.dim, dtype=torch.float64, generator=generator)
    return x, torch.arange(length) < torch.tensor(lengths)[:, None]


def with_holes(mask: Tensor) -> Tensor:
    """A mask with padding anywhere, as black pixels make it; position 1 of each row stays real."""
    kept = torch.rand(mask.shape, generator=torch.Generator().manual_seed(2)) < 0.6
    return mask & kept | (torch.arange(mask.shape[1]) == 1)


def same(a: Tensor, b: Tensor) -> bool:
    """Whether two results are equal up to the rounding of their type."""
    rtol, atol = (1e-9, 1e-11) if a.dtype == torch.float64 else (1e-5, 1e-5)
    return torch.allclose(a, b, rtol=rtol, atol=atol)


def padding_changes_no_real_row(experiment: Experiment, holes: bool = False) -> bool:
    """Other values in padded positions leave the real rows as they are."""
    made, (x, mask) = block(experiment), inputs(experiment)
    mask = with_holes(mask) if holes else mask
    other = torch.where(mask[..., None], x, 7 * inputs(experiment, seed=3)[0])
    return same(made(x, mask)[0][mask], made(other, mask)[0][mask])


def padding_anywhere_changes_no_real_row(experiment: Experiment) -> bool:
    """The same with padding between real tokens."""
    return padding_changes_no_real_row(experiment, holes=True)


def padding_gets_no_gradient(experiment: Experiment) -> bool:
    """The derivative of real rows by padded ones is zero."""
    made, (x, mask) = block(experiment), inputs(experiment)
    made(x.requires_grad_(), mask)[0][mask].sum().backward()
    return bool((x.grad[~mask] == 0).all())


def alone_as_in_a_batch(experiment: Experiment) -> bool:
    """An example has the same result alone, without padding, and in a batch."""
    made, (x, mask) = block(experiment), inputs(experiment)
    together = made(x, mask)[0]
    return all(same(together[i, :n], made(x[i : i + 1, :n], None)[0][0]) for i, n in enumerate(LENGTHS))


def evaluation_is_repeatable(experiment: Experiment) -> bool:
    """Other batches and a training step in between leave no state."""
    made, (x, mask) = block(experiment), inputs(experiment)
    first = made(x, mask)[0]
    made(inputs(experiment, seed=4)[0][:2], None)
    made.train()(x, mask)
    made.eval()
    return torch.equal(first, made(x, mask)[0])


def every_parameter_gets_a_gradient(experiment: Experiment) -> bool:
    """Gradients of the parameters and of the input are finite and not zero."""
    made, (x, mask) = block(experiment).train(), inputs(experiment)
    made(x.requires_grad_(), mask)[0].square().sum().backward()
    gradients = [parameter.grad for parameter in (*made.parameters(), x)]
    return all(g is not None and bool(g.isfinite().all()) and bool(g.any()) for g in gradients)


def hole_free(experiment: Experiment, lengths: tuple[int, ...] = LENGTHS, length: int = LENGTH) -> bool:
    """Rows without their masked positions, cut to a multiple of 64, have the results of the rows with them."""
    made, (x, mask) = block(experiment, length), inputs(experiment, lengths=lengths, length=length)
    mask = with_holes(mask)
    order = real_first(mask)[:, : -(-int(mask.sum(-1).max()) // 64) * 64]
    rows = order[..., None].expand(-1, -1, x.shape[-1])
    kept = mask.gather(1, order)
    return same(made(x.gather(1, rows), kept)[0][kept], made(x, mask)[0].gather(1, rows)[kept])


def what_is_declared_hole_free_is(experiment: Experiment) -> bool:
    """A mechanism with ``hole_free = True`` depends on no masked position, not even on their number."""
    return not getattr(block(experiment), "hole_free", False) or hole_free(experiment)


def no_mask_is_a_mask_of_real_tokens(experiment: Experiment) -> bool:
    """``mask=None`` means that all tokens are real."""
    made, (x, mask) = block(experiment), inputs(experiment)
    return same(made(x, None)[0], made(x, torch.ones_like(mask))[0])


def fewer_tokens_than_kept_ones(experiment: Experiment) -> bool:
    """With fewer real tokens than ``count`` or ``landmarks`` the result is that of a mechanism which keeps as many."""
    made, (x, mask) = block(experiment), inputs(experiment, lengths=(FEW, FEW))
    option = next((key for key in ("count", "landmarks") if experiment.attn.get(key) is not None), None)
    if option is None:  # it keeps no fixed number of tokens
        return bool(made(x, mask)[0][mask].isfinite().all())
    fewer = block(experiment.replace(attn=experiment.attn.replace(**{option: FEW})))
    fewer.load_state_dict(made.state_dict())
    return same(made(x, mask)[0][mask], fewer(x, mask)[0][mask])


def gradient_is_the_derivative(experiment: Experiment) -> bool:
    """The gradient along a random direction is the difference quotient."""
    made, (x, mask) = block(experiment), inputs(experiment, lengths=(128, 50))
    direction, weight = (inputs(experiment, seed=seed)[0][:2] for seed in (5, 6))
    f = lambda t: (made(x + t * direction, mask)[0] * weight)[mask].sum()
    t = torch.zeros((), dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(f(t), t)
    with torch.no_grad():
        measured = (f(STEP) - f(-STEP)) / (2 * STEP)
    return torch.allclose(slope, measured, rtol=1e-5, atol=1e-5)


def bfloat16_stays_near_float32(experiment: Experiment) -> bool:
    """Under autocast to bfloat16 the result is finite and close to that of float32."""
    made, (x, mask) = copy.deepcopy(block(experiment)).float(), inputs(experiment)
    exact = made(x.float(), mask)[0][mask]
    with torch.autocast("cpu", torch.bfloat16):
        rough = made(x.float(), mask)[0][mask]
    return bool(rough.isfinite().all()) and bool((rough - exact).norm() < ROUGH * exact.norm())


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
    bfloat16_stays_near_float32,
)
