"""Compaction and packed sequences: the same model and gradients as with padding, and only real tokens computed."""

from functools import partial

import pytest
import torch
from conftest import config
from support.features import padded_ids

from lra.data.datamodule import TaskData
from lra.data.store import Split
from lra.model.multihead import Multihead
from lra.ops.cur import CUROptions
from lra.ops.selection import select
from lra.train.__main__ import run_seeds
from lra.train.plan import resolve
from lra.varlen import VarlenLayout

LENGTH, BLACK = 128, 5
WORDS = ("model.dropout=0", f"task.length={LENGTH}", f"task.masked_id={BLACK}")
CASES = {
    "sdpa": ["model.pool=cls"],
    "cur_abs": ["protocol=clean", "attn.count=8"],
    "cur_step": ["model.pool=flatten", "attn.count=8"],
    "psf": ["block=plain", "model.norm=batch"],
    "luna": ["attn.rows=8"],
    "reformer": ["model.positions=none"],
    "mean": ["block=glu"],
}


class Source:
    """40 sequences of 1 to 128 tokens, three of five of which are masked, and all of the first."""

    def open(self, root):
        g = torch.Generator().manual_seed(0)
        lengths = torch.randint(1, LENGTH + 1, (40,), generator=g)
        lengths[:2] = LENGTH
        ids = torch.randint(6, 16, (int(lengths.sum()),), generator=g)
        ids[torch.rand(len(ids), generator=g) < 0.6] = BLACK
        ids[:LENGTH] = BLACK
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
        split = Split(ids.to(torch.uint8), offsets, torch.randint(10, (40,), generator=g))
        return {"train": split, "test": split}


def data(pad, **options):
    sizes = {"length": LENGTH, "limit": LENGTH, "masked_id": BLACK, "batch": 40}
    task_data = TaskData(source=Source(), root="", pad=pad, **sizes, **options)
    task_data.setup()
    return task_data


def build(name, *words):
    """A classifier for evaluation in float64; random draws of evaluation are the same for all."""
    torch.manual_seed(0)
    return config(name, *words).classifier().double().eval()


def assert_same(first, second):
    """The outputs and gradients of (model, inputs) pairs whose models have the same parameters."""
    results = []
    for model, inputs in (first, second):
        out = model(*inputs)
        names = ["out", *dict(model.named_parameters())]
        results.append([out, *torch.autograd.grad(out.square().sum(), list(model.parameters()), allow_unused=True)])
    for name, one, other in zip(names, *results, strict=True):
        if one is not None:
            torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-10, msg=lambda m, name=name: f"{name}: {m}")


def planned(name, *words):
    return resolve(config(name, *words, "optim.steps=1", "optim.warmup=0", "optim.eval_every=1", "trainer.device=cpu"))


@pytest.fixture
def pair():
    """The same examples with their masked tokens and without."""
    return [next(iter(data(pad).train_dataloader())) for pad in ("batch", "compact")]


def test_real_tokens_come_first_in_order_with_their_positions(pair):
    padded, compact = pair
    longest = int(padded.mask.sum(-1).max())
    assert compact.inputs.shape[-1] == -(-longest // 64) * 64 < padded.inputs.shape[-1] and padded.positions is None
    for row in range(40):
        real = padded.mask[row, 0].nonzero()[:, 0]
        assert torch.equal(compact.positions[row, 0, : len(real)], real)
        assert torch.equal(compact.inputs[row, 0, : len(real)], padded.inputs[row, 0, real])
        assert compact.mask[row, 0].tolist() == [True] * len(real) + [False] * (compact.inputs.shape[-1] - len(real))
        assert len(compact.positions[row, 0].unique()) == compact.inputs.shape[-1]
    assert compact.mask[..., 0].all()  # a sequence of masked tokens alone keeps its first
    assert torch.equal(padded.label, compact.label)


@pytest.mark.parametrize("name", CASES)
def test_outputs_and_gradients_are_those_of_padded_sequences(name, pair):
    model = build(name, *WORDS, *CASES[name])
    padded, compact = ((model, (batch.inputs, batch.mask, batch.positions)) for batch in pair)
    assert_same(padded, compact)


@pytest.mark.parametrize("pool", ["cls", "flatten"])
def test_a_token_at_the_last_position_is_dropped_for_a_class_token_only(pool):
    model = build("sdpa", *WORDS, f"model.pool={pool}")
    last = model.length - 1
    ids = torch.randint(6, 15, (1, 1, 64))
    padded = torch.zeros(1, 1, last + 1, dtype=torch.int64)
    positions = torch.cat([torch.arange(0, 126, 2), torch.tensor([last])])[None, None]
    padded.scatter_(2, positions, ids)
    mask = torch.zeros_like(padded, dtype=torch.bool).scatter_(2, positions, True)
    out = model(ids, ids > 0, positions)
    torch.testing.assert_close(out, model(padded, mask), rtol=1e-10, atol=1e-12)
    ids[..., -1] = 3
    assert torch.equal(model(ids, ids > 0, positions), out) == (pool == "cls")


def test_evaluation_sees_every_example_once_and_sorts_by_real_tokens():
    compact, padded = (
        [n for b in data(pad, eval_batch=7).evaluation_batches("test") for n in b.mask.sum(-1).flatten().tolist()]
        for pad in ("compact", "batch")
    )
    assert compact == sorted(compact) == sorted(padded) and len(compact) == 40


@pytest.mark.parametrize("words", [("nystrom",), ("cur_abs", "model.positions=rotary"), ("mega",)])
def test_what_looks_at_positions_keeps_padded_sequences_and_says_so(words, data_root, tmp_path, capsys):
    plan = planned(*words, *WORDS, "data.pad=compact", "seeds=[0]", f"runs={tmp_path}")
    assert plan.data.pad == "batch"
    run_seeds(plan)
    warning = "sequences keep their padding, because the result depends on its positions: data.pad=batch"
    assert capsys.readouterr().err.count(warning) == 1


DEFAULTS = [(("cur_abs", *WORDS), "compact"), (("nystrom", *WORDS), "batch"), (("sdpa",), "batch")]


@pytest.mark.parametrize(("words", "pad"), [*DEFAULTS, (("sdpa", *WORDS, "data.pad=fixed"), "fixed")])
def test_the_default_is_compact_if_that_is_exact_and_shorter(words, pad, tmp_path):
    plan = planned(*words, f"runs={tmp_path}")
    assert plan.experiment.data.pad == plan.data.pad == pad


def test_begun_seeds_keep_their_padding_and_the_next_ones_have_it_too(data_root, tmp_path, capsys):
    again = partial(planned, "cur_abs", *WORDS, f"runs={tmp_path}")
    for more in (["seeds=[0]", "data.pad=batch"], ["seeds=[0,1]"]):
        run_seeds(again(*more))
    assert "seed 0: done before" in capsys.readouterr().err
    written = [path.read_text() for path in tmp_path.glob("*/listops/cur_abs/seed-*/config.yaml")]
    assert len(written) == 2 and all("data.pad: batch\n" in text for text in written)
    with pytest.raises(ValueError, match=r"was made by another configuration \(data.pad"):
        run_seeds(again("seeds=[0]", "data.pad=compact"))
    next(tmp_path.glob("*/listops/cur_abs/seed-0/config.yaml")).write_text("[")
    assert again("seeds=[2]").data.pad == "batch"  # seed 1 says so


@pytest.mark.parametrize(
    ("words", "pad", "removes_tokens"),
    [
        (("sdpa", *WORDS, "pretrain=none"), "compact", True),
        (("sdpa", *WORDS, "pretrain=masked"), "batch", False),
        (("nystrom",), "compact", False),  # a task without masked tokens
    ],
)
def test_pretraining_and_tasks_without_masked_tokens_have_nothing_to_remove(words, pad, removes_tokens):
    task_data = config(*words, "data.pad=compact").task_data()
    assert (task_data.pad, task_data.compact) == (pad, removes_tokens)


CUR_WORDS = ["attn.count=8"]
PACKED_CASES = {
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


@pytest.mark.parametrize("lengths", [[64, 9, 33, 8], [5, 64, 1, 12]], ids=["long", "shorter_than_count"])
@pytest.mark.parametrize("name", PACKED_CASES)
def test_packed_outputs_and_gradients_are_those_of_padded_sequences(name, lengths):
    words = PACKED_CASES[name]
    batch = padded_ids(lengths, towers=1 + ("task.towers=2" in words))
    assert_same(*((build(name, *words, f"data.pad={pad}"), batch) for pad in ("batch", "none")))


def test_only_real_tokens_are_computed():
    model, seen = build("cur_abs", *CUR_WORDS, "data.pad=none"), []
    for part in model.modules():
        if isinstance(part, Multihead):
            part.inputs.register_forward_hook(lambda module, args, out: seen.append(out.shape[:2]))
    model(*padded_ids([64, 9, 33, 8]))
    assert seen == [(1, 64 + 9 + 33 + 8)] * 2


@pytest.mark.parametrize("score", ["sum", "abs", "embed", "step", "random"])
@pytest.mark.parametrize("class_token", [False, True])
@pytest.mark.parametrize("sizes", [{}, {"multiple": 64}], ids=str)
def test_selection_is_that_of_padded_sequences(score, class_token, sizes):
    """As sets, in evaluation; while training, distinct tokens of each sequence. Added tokens are never selected."""
    torch.manual_seed(1)
    mask = torch.arange(20) < torch.tensor([20, 6, 11, 17])[:, None]
    mask[3, [0, 1, 4, 9]] = False
    layout, q, k = VarlenLayout(mask, **sizes), *torch.randn(2, 4, 2, 20, 4)
    rule, draw = CUROptions(count=6, score=score, class_token=class_token), torch.rand(2, 2, 20)
    padded = select(q, k, rule, mask, draw=draw)
    packed = select(layout.pack(q, 2), layout.pack(k, 2), rule, layout=layout, draw=draw)
    for one, other in zip(padded, packed, strict=True):
        assert torch.equal(one.sort(-1).values, layout.positions[other].sort(-1).values)
    drawn = select(layout.pack(q, 2), layout.pack(k, 2), rule, layout=layout)[0].sort(-1).values
    assert (drawn.diff(dim=-1) > 0).all()
    for index in (*packed, drawn):
        position = index - layout.starts[:, None, None]
        assert (position >= 0).all() and (position < layout.real[:, None, None]).all()


@pytest.mark.parametrize("name", ["psf", "luna", "mega", "s4d_lin", "nystrom"])
def test_blocks_that_compute_whole_sequences_keep_the_padding(name):
    assert config(name, "data.pad=none").classifier().packed == (name == "nystrom")
