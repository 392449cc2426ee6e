"""The kernels as operators of PyTorch: opaque to torch.compile, with gradients, shapes and autocast."""

import torch
from torch import Tensor


@torch.library.custom_op("lra::three_factor", mutates_args=())
def three_factor(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_kept: Tensor | None,
    k_kept: Tensor | None,
    rows: Tensor | None,
    cols: Tensor | None,
    mask: Tensor | None,
    row_real: Tensor | None,
    col_real: Tensor | None,
    steps: int,
    copy: bool,
    split: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    from . import launch

    q, k, v, q_kept, k_kept = (rows_adjoin(x) for x in (q, k, v, q_kept, k_kept))
    near = launch.kept(q, k, q_kept, k_kept, rows, cols, mask, row_real, col_real)
    with torch.cuda.device_of(q):
        return launch.forward(q, k, v, near, mask, steps, copy, split)


@three_factor.register_fake
def _(q, k, v, q_kept, k_kept, rows, cols, mask, row_real, col_real, steps, copy, split):
    N, H = q.shape[:2]
    G, M, E = N * H, (q_kept if rows is None else rows).shape[2], v.shape[-1]
    new = lambda *shape: q.new_empty(shape, dtype=torch.float32)
    return _like(v), new(G, M, E), new(G, M, E), new(G, M), new(G, M, M)


@torch.library.custom_op("lra::three_factor_backward", mutates_args=())
def three_factor_backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_kept: Tensor | None,
    k_kept: Tensor | None,
    rows: Tensor | None,
    cols: Tensor | None,
    mask: Tensor | None,
    row_real: Tensor | None,
    col_real: Tensor | None,
    rv: Tensor,
    w: Tensor,
    lse: Tensor,
    z: Tensor,
    steps: int,
    copy: bool,
    split: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    from . import launch

    dout, q, k, v, q_kept, k_kept = (rows_adjoin(x) for x in (dout, q, k, v, q_kept, k_kept))
    near = launch.kept(q, k, q_kept, k_kept, rows, cols, mask, row_real, col_real)
    # A backward pass inside autocast would round the library's products of the inner matrix.
    with torch.cuda.device_of(q), torch.autocast(q.device.type, enabled=False):
        return launch.backward(dout, q, k, v, near, mask, rv, w, lse, z, steps, copy, split)


@three_factor_backward.register_fake
def _(dout, q, k, v, q_kept, k_kept, rows, cols, mask, row_real, col_real, rv, w, lse, z, steps, copy, split):
    kept = [q.new_empty(0), k.new_empty(0)] if rows is not None else [_like(x) for x in (q_kept, k_kept)]
    return (*(_like(x) for x in (q, k, v)), *kept)


def _setup(ctx, inputs, output):
    *tensors, ctx.steps, ctx.copy, ctx.split = inputs
    ctx.save_for_backward(*tensors, *output[1:])
    ctx.set_materialize_grads(False)  # zeros for what is only kept for the backward pass


def _backward(ctx, dout, *unused):
    if dout is None:
        return (None,) * 13
    saved = ctx.saved_tensors
    dq, dk, dv, dq_kept, dk_kept = three_factor_backward(dout, *saved, ctx.steps, ctx.copy, ctx.split)
    given = saved[3] is not None
    return (dq, dk, dv, dq_kept if given else None, dk_kept if given else None, *[None] * 8)


three_factor.register_autograd(_backward, setup_context=_setup)


@torch.library.custom_op("lra::row_scores", mutates_args=())
def row_scores(a: Tensor, b: Tensor | None, mask: Tensor | None, score: str, class_token: bool) -> Tensor:
    from . import launch

    with torch.cuda.device_of(a):
        return launch.row_scores(rows_adjoin(a), rows_adjoin(b), mask, score, class_token)


@row_scores.register_fake
def _(a, b, mask, score, class_token):
    return a.new_empty(1 if b is None else 2, *a.shape[:3], dtype=torch.float32)


def rows_adjoin(x: Tensor | None) -> Tensor | None:
    """Copy a tensor whose rows are not contiguous; the kernels support any strides of the other dimensions."""
    return x if x is None or x.stride(-1) == 1 else x.contiguous()


def _like(x: Tensor) -> Tensor:
    return torch.empty_like(rows_adjoin(x))


for _device in ("cuda", "cpu"):
    three_factor.register_autocast(_device, torch.bfloat16)
