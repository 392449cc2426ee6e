"""Full precision inside autocast: what a decorated function is handed and what it computes in."""

import pytest
import torch

from lra.ops.precision import full_precision


@full_precision
def product(a, b, *, mask=None, times=1):
    return a @ b, a.dtype, b.dtype, mask, times


@pytest.mark.parametrize("dtype, wide", [(torch.bfloat16, torch.float32), (torch.float64, torch.float64)])
def test_tensors_arrive_in_float32_at_least_and_autocast_is_off(dtype, wide):
    a, b = torch.randn(2, 3, 3).to(dtype)
    mask = torch.ones(3, dtype=torch.bool)
    with torch.autocast("cpu", torch.bfloat16):
        out, *dtypes, kept, times = product(a, b=b, mask=mask, times=2)
        assert torch.is_autocast_enabled("cpu")
    assert dtypes == [wide, wide] and out.dtype == wide and kept is mask and times == 2
    assert torch.equal(out, a.to(wide) @ b.to(wide))


def test_float32_is_handed_over_as_it_is_and_gradients_flow_in_the_dtype_of_the_input():
    a = torch.randn(3, 3, dtype=torch.bfloat16, requires_grad=True)
    b = torch.randn(3, 3)
    product(a, b)[0].sum().backward()
    assert a.grad.dtype == torch.bfloat16
    handed = full_precision(lambda x: x)
    assert handed(b) is b


def test_it_compiles_without_a_break():
    a, b = torch.randn(2, 4, 4)
    compiled = torch.compile(lambda a, b: product(a, b)[0], fullgraph=True, backend="eager")
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(compiled(a, b), a @ b) is False and torch.equal(compiled(a, b), product(a, b)[0])
