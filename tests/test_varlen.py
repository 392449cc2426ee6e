"""Rows side by side: the same model as padded ones, and nothing but real tokens computed."""

import pytest
import torch
from conftest import config

from lra.model.multihead import Multihead
from lra.ops.cur import CUROptions
from lra.ops.selection import select
from lra.varlen import VarlenLayout

CUR_WORDS = ["attn.count=8"]
CASES = {
    "cur_abs": CUR_WORDS,
    "cur_sum": [*CUR_WORDS, "attn.pairing=swapped", "task.towers=2"],
    "cur_embed": [*CUR_WORDS, "attn.class_token=true", "model.pool=cls", "attn.copy_rv=false"],
    "cur_step": [*CUR_WORDS, "protocol=clean"],
    "cur_random": [*CUR_WORDS, "model.pool=flatten"],
    "cur_plus": CUR_WORDS,  # has no varlen of its own
    "mean": [],
    "none": [],
    "sdpa": ["block=plain", "model.norm=batch"],
    "nystrom": [],  # has no varlen of its own
}


def batch(lengths, towers=1, L=64):
    g = torch.Generator().manual_seed(0)
    mask = torch.arange(L).expand(len(lengths), towers, L) < torch.tensor(lengths)[:, None, None]
    return torch.randint(1, 15, mask.shape, generator=g) * mask, mask


def both(name, *words):
    models = []
    for pad in ("batch", "none"):
        torch.manual_seed(0)
        models.append(config(name, *words, f"data.pad={pad}").classifier().double().eval())
    return models


@pytest.mark.parametrize("lengths", [[64, 9, 33, 8], [5, 64, 1, 12]], ids=["long", "shorter_than_count"])
@pytest.mark.parametrize("name", CASES)
def test_outputs_and_gradients_are_those_of_padded_rows(name, lengths):
    padded, packed = both(name, *CASES[name])
    ids, mask = batch(lengths, towers=1 + ("task.towers=2" in CASES[name]))
    results = []
    for model in (padded, packed):
        out = model(ids, mask)
        out.square().sum().backward()
        results.append((out, [p.grad for p in model.parameters()]))
    (out, grads), (other, others) = results
    torch.testing.assert_close(other, out, rtol=1e-9, atol=1e-11)
    for name, grad, found in zip(dict(padded.named_parameters()), grads, others, strict=True):
        torch.testing.assert_close(found, grad, rtol=1e-8, atol=1e-10, msg=lambda m, name=name: f"{name}: {m}")


def test_only_real_tokens_are_computed():
    (_, packed), (ids, mask) = both("cur_abs", *CUR_WORDS), batch([64, 9, 33, 8])
    seen = []
    for part in packed.modules():
        if isinstance(part, Multihead):
            part.inputs.register_forward_hook(lambda module, given, out: seen.append(out.shape[:2]))
    packed(ids, mask)
    assert seen == [(1, 64 + 9 + 33 + 8)] * 2


def test_rows_with_holes_and_back():
    mask = torch.tensor([[True, False, True, True], [False, True, False, False], [True] * 4])
    rows, x = VarlenLayout(mask), torch.randn(3, 2, 4, 5)
    flat = rows.pack(x, 2)
    assert flat.shape == (1, 2, 8, 5) and rows.lengths == [3, 1, 4]
    assert torch.equal(flat[0].transpose(0, 1), x.transpose(1, 2)[mask])
    assert torch.equal(rows.unpack(flat, 2), x * mask[:, None, :, None])
    assert rows.positions.tolist() == [0, 2, 3, 1, 0, 1, 2, 3] and rows.starts.tolist() == [0, 3, 4]
    assert torch.equal(rows.sum(flat[:, 0]), (x * mask[:, None, :, None]).sum(2)[:, 0])


@pytest.mark.parametrize("score", ["sum", "abs", "embed", "step", "random"])
@pytest.mark.parametrize("class_token", [False, True])
@pytest.mark.parametrize("sizes", [{}, {"multiple": 64}], ids=str)
def test_selection_is_that_of_padded_rows(score, class_token, sizes):
    """As sets, in evaluation; while training, distinct tokens of their own row. What fills a row is never selected."""
    torch.manual_seed(1)
    mask = torch.arange(20) < torch.tensor([20, 6, 11, 17])[:, None]
    mask[3, [0, 1, 4, 9]] = False
    rows, q, k = VarlenLayout(mask, **sizes), *torch.randn(2, 4, 2, 20, 4)
    rule = CUROptions(count=6, score=score, class_token=class_token)
    padded = select(q, k, rule, mask, draw=(draw := torch.rand(2, 2, 20)))
    packed = select(rows.pack(q, 2), rows.pack(k, 2), rule, layout=rows, draw=draw)
    for one, other in zip(padded, packed, strict=True):
        assert torch.equal(one.sort(-1).values, rows.positions[other].sort(-1).values)
    drawn = select(rows.pack(q, 2), rows.pack(k, 2), rule, layout=rows)[0].sort(-1).values
    assert (drawn.diff(dim=-1) > 0).all()
    for found in (*packed, drawn):
        place = found - rows.starts[:, None, None]
        assert (place >= 0).all() and (place < rows.real[:, None, None]).all()


@pytest.mark.parametrize("name", ["psf", "luna", "mega", "s4d_lin"])
def test_blocks_that_compute_whole_rows_keep_the_padding(name):
    assert not config(name, "data.pad=none").classifier().packed
    assert config("nystrom", "data.pad=none").classifier().packed
