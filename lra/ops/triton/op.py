"""The kernels as operators of PyTorch: opaque to torch.compile, with gradients, shapes and autocast."""

import torch
from torch import Tensor

# The arguments q_landmarks to col_real are the fields of ``launch.Selected``.
TENSORS = """Tensor q, Tensor k, Tensor v, Tensor q_landmarks, Tensor k_landmarks, Tensor? rows, Tensor? cols,
    Tensor? row_real, Tensor? col_real, Tensor? mask"""
SAVED = "Tensor rv, Tensor w, Tensor lse, Tensor z"
OPTIONS = "int steps, bool copy, bool split"
FIVE = "(Tensor, Tensor, Tensor, Tensor, Tensor)"
# rows, cols, row_real, col_real, mask, steps, copy and split have no gradients.
NO_GRADIENTS = (None,) * 8


@torch.library.custom_op("lra::landmark_product", mutates_args=(), schema=f"({TENSORS}, {OPTIONS}) -> {FIVE}")
def landmark_product(q, *arguments):
    from . import launch

    *tensors, steps, copy, split = arguments
    q, k, v, *fields, mask = [ready(x) for x in (q, *tensors)]
    selected = launch.Selected(*fields)
    with torch.cuda.device_of(q):
        return launch.forward(q, k, v, selected, mask, steps, copy, split)


@landmark_product.register_fake
def _(q, k, v, q_landmarks, k_landmarks, rows, *unused):
    # Shapes of the output, R V, W, the log-sum-exp and Z.
    G = q.shape[0] * q.shape[1]
    selected = q_landmarks if rows is None else rows
    M = selected.shape[2]
    E = v.shape[-1]
    rv = q.new_empty(G, M, E, dtype=torch.float32)
    w = q.new_empty(G, M, E, dtype=torch.float32)
    lse = q.new_empty(G, M, dtype=torch.float32)
    z = q.new_empty(G, M, M, dtype=torch.float32)
    return _like(v), rv, w, lse, z


@torch.library.custom_op(
    "lra::landmark_product_backward", mutates_args=(), schema=f"(Tensor dout, {TENSORS}, {SAVED}, {OPTIONS}) -> {FIVE}"
)
def landmark_product_backward(dout, *arguments):
    from . import launch

    *tensors, rv, w, lse, z, steps, copy, split = arguments
    dout, q, k, v, *fields, mask = [ready(x) for x in (dout, *tensors)]
    selected = launch.Selected(*fields)
    # A backward pass inside autocast would round the library's products of the inner matrix.
    with torch.cuda.device_of(q), torch.autocast(q.device.type, enabled=False):
        return launch.backward(dout, q, k, v, selected, mask, rv, w, lse, z, steps, copy, split)


@landmark_product_backward.register_fake
def _(dout, q, k, v, q_landmarks, k_landmarks, rows, *unused):
    # Gradients of landmarks; selected positions have none.
    if rows is None:
        dq_landmarks = _like(q_landmarks)
        dk_landmarks = _like(k_landmarks)
    else:
        dq_landmarks = q.new_empty(0)
        dk_landmarks = k.new_empty(0)
    return _like(q), _like(k), _like(v), dq_landmarks, dk_landmarks


def _setup(ctx, inputs, output):
    *tensors, ctx.steps, ctx.copy, ctx.split = inputs
    ctx.save_for_backward(*tensors, *output[1:])
    # Do not materialise zero gradients for outputs that are only saved for the backward pass.
    ctx.set_materialize_grads(False)


def _backward(ctx, dout, *unused):
    if dout is None:
        return None, None, None, None, None, *NO_GRADIENTS
    saved = ctx.saved_tensors
    dq, dk, dv, dq_landmarks, dk_landmarks = landmark_product_backward(dout, *saved, ctx.steps, ctx.copy, ctx.split)
    # Landmarks have gradients; selected positions do not.
    _, _, _, _, _, rows, *_ = saved
    if rows is not None:
        dq_landmarks = None
        dk_landmarks = None
    return dq, dk, dv, dq_landmarks, dk_landmarks, *NO_GRADIENTS


landmark_product.register_autograd(_backward, setup_context=_setup)


@torch.library.custom_op("lra::token_scores", mutates_args=())
def token_scores(a: Tensor, b: Tensor | None, mask: Tensor | None, score: str, class_token: bool) -> Tensor:
    from .selection_scores import launch_scores

    a, b, mask = (ready(x) for x in (a, b, mask))
    with torch.cuda.device_of(a):
        return launch_scores(a, b, mask, score, class_token)


@token_scores.register_fake
def _(a, b, mask, score, class_token):
    num_tensors = 1 if b is None else 2
    return a.new_empty(num_tensors, *a.shape[:3], dtype=torch.float32)


def ready(x: Tensor | None) -> Tensor | None:
    """View a mask as bytes, and copy a tensor whose last stride is not 1; kernels support any other strides."""
    if x is None:
        return None
    if x.dtype == torch.bool:
        x = x.view(torch.uint8)
    if x.stride(-1) == 1:
        return x
    return x.contiguous()


def _like(x: Tensor) -> Tensor:
    return torch.empty_like(ready(x))


for _device in ("cuda", "cpu"):
    landmark_product.register_autocast(_device, torch.bfloat16)
