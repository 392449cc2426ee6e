"""The order of real tokens."""

import torch

from lra.ops.segments import real_first


def test_real_tokens_come_first_in_their_order():
    mask = torch.rand(50, 17, generator=torch.Generator().manual_seed(0)) < torch.linspace(0, 1, 50)[:, None]
    expected = (~mask).to(torch.uint8).argsort(dim=-1, stable=True)
    assert mask.any() and not mask[0].any() and torch.equal(real_first(mask), expected)


def test_no_sort_is_part_of_it():
    """The exporter to ONNX has none that is stable."""

    class Order(torch.nn.Module):
        forward = staticmethod(real_first)

    graph = torch.export.export(Order(), (torch.ones(2, 5, dtype=torch.bool),)).graph
    assert not [node for node in graph.nodes if "sort" in str(node.target)]
