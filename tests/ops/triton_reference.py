"""The landmark product, C pinv(U) R V, in float64 and in the dtype of a kernel, and the error bound of the kernels."""

from functools import partial

import torch

from lra.ops import triton as kernels
from lra.ops.pinv import cubic
from lra.reference.cur import attention, cubic_pinv

NAMES = ("O", "dQ", "dK", "dV")


def naive(q, k, v, rows, cols, mask, copy, steps):
    """The formula, head by head, in float32 or wider. Padded keys and padded selections are left out."""
    upcast = lambda x: x.to(torch.promote_types(x.dtype, torch.float32))
    out = upcast(torch.zeros(*q.shape[:3], v.shape[-1], dtype=v.dtype, device=v.device))
    for n in range(q.shape[0]):
        real = torch.ones(q.shape[2], dtype=torch.bool, device=q.device) if mask is None else mask[n]
        for h in range(q.shape[1]):
            r, c = rows[n, h], cols[n, h]
            x, y, keys, values = (upcast(t) for t in (q[n, h, r], k[n, h, c[real[c]]], k[n, h, real], v[n, h, real]))
            product, _ = attention(upcast(q[n, h]), keys, values, x[real[r]], y, pinv=partial(cubic_pinv, steps=steps))
            exact = (x @ keys.T / q.shape[-1] ** 0.5).softmax(-1) @ values
            out[n, h] = product.index_copy(0, r, exact) if copy else product
    return out


def fused(q, k, v, rows, cols, mask, copy, steps, impl="triton"):
    pinv = partial(cubic, steps=steps)
    return kernels.landmark_product(q, k, v, pinv=pinv, rows=rows, cols=cols, mask=mask, copy_rv=copy, impl=impl)


def run(f, tensors, dout, dtype):
    """Return the output of f and the gradients of its tensors, in ``dtype``; strides are preserved."""
    tensors = [x.detach().to(dtype).requires_grad_() for x in tensors]
    out = f(*tensors).to(dtype)
    return [out.detach(), *torch.autograd.grad(out, tensors, dout.to(dtype))]


def case(
    *, n, m, d, e, dtype, masked=False, same=False, content="normal", strides="heads", N=2, H=1, seed=0, device="cpu"
):
    """Draw q, k, v, rows, cols, mask and an output gradient, in float64 but representable in ``dtype``.

    The second example has fewer real tokens than m, spread over the sequence.
    """
    g = torch.Generator().manual_seed(seed)
    draw = lambda width: torch.randn(N, n, H, width, generator=g, dtype=torch.float64).transpose(1, 2)
    q, k, v, dout = draw(d), draw(d), draw(e), draw(e)
    # Three distinct queries and keys.
    if content == "equal":
        q, k = q[:, :, torch.arange(n) % 3], k[:, :, torch.arange(n) % 3]
    if content == "large":
        q, k = 6 * q, 4 * k
    if content == "shifted":
        v, dout = v + 2, dout + 1
    if strides == "plain":
        q, k, v, dout = (x.contiguous() for x in (q, k, v, dout))
    # The features of a token are far apart in memory.
    if strides == "across":
        q, k, v, dout = (x.mT.contiguous().mT for x in (q, k, v, dout))
    order = torch.rand(2, N, H, n, generator=g)
    mask = None
    if masked:
        mask = torch.rand(N, n, generator=g) < 0.7
        mask[1::2] = torch.rand(mask[1::2].shape, generator=g).argsort(-1) < max(1, min(n, m) // 2)
        mask[:, 0] = True
        order = order.masked_fill(~mask[None, :, None], -1)
    rows, cols = order.topk(min(m, n), -1).indices
    values = [x.to(dtype).double().to(device) for x in (q, k, v, dout)]
    rows, cols = rows.to(device), (rows if same else cols).to(device)
    return values[:3], rows, cols, mask if mask is None else mask.to(device), values[3]


def errors(spec, copy=True, steps=4, impl="triton"):
    """Return for each of NAMES its norm in float64, and the errors of the naive code and the kernel in the dtype."""
    kernel = partial(fused, impl=impl)
    tensors, rows, cols, mask, dout = case(**spec)
    call = lambda f, t: run(lambda *x: f(*x, rows, cols, mask, copy, steps), tensors, dout, t)
    truth, naive_out, kernel = call(naive, torch.float64), call(naive, spec["dtype"]), call(kernel, spec["dtype"])
    assert all(x.isfinite().all() for x in kernel)
    # Among equal columns rounding decides which one is the largest, so gradients of equal keys are added up.
    if spec.get("content") == "equal":
        for results in (truth, naive_out, kernel):
            results[2] = torch.stack([results[2][:, :, i::3].double().sum(2) for i in range(3)])
    return [(x.norm(), (a - x).norm(), (b - x).norm()) for x, a, b in zip(truth, naive_out, kernel, strict=True)]


def check(spec, copy=True, steps=4, factor=2.0, floor=8.0, impl="triton"):
    """Assert that the kernel's error is at most ``factor`` times the error of the naive code in the same dtype.

    ``floor`` float32 rounding errors of the largest norm are added, because the naive error can be close to zero.
    """
    error_norms = errors(spec, copy, steps, impl)
    largest = max(norm for norm, *_ in error_norms)
    for name, (_, bound, error) in zip(NAMES, error_norms, strict=True):
        allowed = factor * bound + floor * torch.finfo(torch.float32).eps * largest
        assert error <= allowed, f"{name}: error {error / bound:.2f} times the naive code's, {error / largest:.1e}"
    return error_norms


def line(spec, error_norms, impl="triton"):
    """Format the relative errors against float64: the kernel's, and in brackets the naive code's."""
    values = ", ".join(f"{name} {b / x:.1e} ({a / x:.1e})" for name, (x, a, b) in zip(NAMES, error_norms, strict=True))
    return f"{str(spec['dtype']).removeprefix('torch.')} n={spec['n']} m={spec['m']} d={spec['d']} {impl}: {values}"
