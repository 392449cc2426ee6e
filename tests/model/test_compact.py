"""Compaction and packed sequences: same outputs and gradients as with padding, computed for real tokens only."""

from functools import partial

import pytest
import torch
from conftest import assert_error, config, set_up
from support.features import build, padded_ids

from lra.data.datamodule import TaskData
from lra.data.store import Split
from lra.model.multihead import Multihead
from lra.ops.selection import SelectionOptions, select
from lra.train.plan import make_plan
from lra.train.run import run_seeds
from lra.varlen import GROUP_SIZE, VarlenLayout

LENGTH, BLACK = 128, 5
OVERRIDES = ("model.dropout=0", f"task.length={LENGTH}", f"task.masked_id={BLACK}")
CASES = {
    "sdpa": ["model.pool=cls"],
    "cur_abs": ["protocol=clean", "attn.count=8"],
    "cur_step": ["model.pool=flatten", "attn.count=8"],
    "psf": ["block=plain", "model.norm=batch"],
    "luna": ["attn.rows=8"],
    "reformer": ["model.positions=none"],
    "mean": ["block=glu"],
}
DEFAULTS = [(("cur_abs", *OVERRIDES), "compact"), (("nystrom", *OVERRIDES), "batch"), (("sdpa",), "batch")]
PRETRAINING = [(("sdpa", *OVERRIDES, "pretrain=none"), "compact", True)]
PRETRAINING.append((("sdpa", *OVERRIDES, "pretrain=masked"), "batch", False))
PACKED_CASES = [
    "cur_abs attn.count=8",
    "cur_sum attn.count=8 attn.pairing=swapped task.towers=2",
    "cur_embed attn.count=8 attn.class_token=true model.pool=cls attn.copy_rv=false",
    "cur_step attn.count=8 protocol=clean",
    "cur_random attn.count=8 model.pool=flatten",
    "sdpa block=plain model.norm=batch",
]
# These use the default ``Attention.varlen``, which pads the packed sequences.
PACKED_CASES += ["cur_plus attn.count=8", "nystrom"]
GROUPED_CASES = ["psf", "luna attn.rows=8", "mega", "s4d_lin model.pool=last", "gla model.pool=flatten", "mamba2"]


class Source:
    """40 sequences of 1 to 128 tokens, with three of five tokens masked, and all tokens of the first sequence."""

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
    return set_up(TaskData(source=Source(), root="", pad=pad, **sizes, **options))


def assert_same(first, second):
    """Compare outputs and gradients of two (model, inputs) pairs whose models have the same parameters."""
    results = []
    for model, inputs in (first, second):
        out = model(*inputs)
        names = ["out", *dict(model.named_parameters())]
        results.append([out, *torch.autograd.grad(out.square().sum(), list(model.parameters()), allow_unused=True)])
    for name, expected, actual in zip(names, *results, strict=True):
        assert (expected is None) == (actual is None), name
        if expected is not None:
            torch.testing.assert_close(expected, actual, rtol=1e-8, atol=1e-10, msg=lambda m, name=name: f"{name}: {m}")


def resolve_plan(name, *words):
    return make_plan(
        config(name, *words, "optim.steps=1", "optim.warmup=0", "optim.eval_every=1", "trainer.device=cpu")
    )


@pytest.fixture
def pair():
    """One batch of the same examples, padded and compacted."""
    return [next(iter(data(pad).train_dataloader())) for pad in ("batch", "compact")]


def test_compact_batch_orders_real_tokens_first(pair):
    padded, compact = pair
    longest = int(padded.mask.sum(-1).max())
    assert compact.inputs.shape[-1] == -(-longest // 64) * 64 < padded.inputs.shape[-1] and padded.positions is None
    for i in range(40):
        real = padded.mask[i, 0].nonzero()[:, 0]
        assert torch.equal(compact.positions[i, 0, : len(real)], real)
        assert len(compact.positions[i, 0].unique()) == compact.inputs.shape[-1]
    # A sequence that consists of masked tokens keeps its first token.
    assert compact.mask[..., 0].all() and torch.equal(padded.label, compact.label)


@pytest.mark.parametrize("name", CASES)
def test_compact_outputs_and_gradients_match_padded(name, pair):
    model = build(name, *OVERRIDES, *CASES[name])
    padded, compact = ((model, (batch.inputs, batch.mask, batch.positions)) for batch in pair)
    assert_same(padded, compact)


@pytest.mark.parametrize("pool", ["cls", "flatten"])
def test_only_cls_pooling_drops_token_at_last_position(pool):
    model = build("sdpa", *OVERRIDES, f"model.pool={pool}")
    last_position = model.length - 1
    ids = torch.randint(6, 15, (1, 1, 64))
    padded = torch.zeros(1, 1, last_position + 1, dtype=torch.int64)
    positions = torch.cat([torch.arange(0, 126, 2), torch.tensor([last_position])])[None, None]
    padded.scatter_(2, positions, ids)
    mask = torch.zeros_like(padded, dtype=torch.bool).scatter_(2, positions, True)
    out = model(ids, ids > 0, positions)
    torch.testing.assert_close(out, model(padded, mask), rtol=1e-10, atol=1e-12)
    ids[..., -1] = 3
    assert torch.equal(model(ids, ids > 0, positions), out) == (pool == "cls")


@pytest.mark.parametrize("words", [("nystrom",), ("cur_abs", "model.positions=rotary"), ("mega",)])
def test_position_dependent_model_keeps_padding_with_warning(words, data_root):
    plan = resolve_plan(*words, *OVERRIDES, "data.pad=compact")
    assert plan.data.pad == "batch"
    plan.data.setup()
    warning = "masked pixels are kept, because the result depends on where they are: data.pad=batch"
    assert plan.messages()[1:] == [warning]


@pytest.mark.parametrize(("words", "pad"), [*DEFAULTS, (("sdpa", *OVERRIDES, "data.pad=fixed"), "fixed")])
def test_default_pad_is_compact_if_exact_and_shorter(words, pad, tmp_path):
    plan = resolve_plan(*words, f"runs={tmp_path}")
    assert plan.experiment.data.pad == plan.data.pad == pad


def test_started_and_later_seeds_use_the_same_padding(data_root, tmp_path, capsys):
    replan = partial(resolve_plan, "cur_abs", *OVERRIDES, f"runs={tmp_path}")
    for overrides in (["seeds=[0]", "data.pad=batch"], ["seeds=[0,1]"]):
        run_seeds(replan(*overrides))
    assert "seed 0: skipped, already done" in capsys.readouterr().err
    saved_configs = [path.read_text() for path in tmp_path.glob("*/listops/cur_abs/seed-*/config.yaml")]
    assert len(saved_configs) == 2 and all("data.pad: batch\n" in text for text in saved_configs)
    assert_error(r"was made by another configuration \(data.pad", run_seeds, replan("seeds=[0]", "data.pad=compact"))


# The last task has no masked tokens.
@pytest.mark.parametrize("words, pad, removes_tokens", [*PRETRAINING, (("nystrom",), "compact", False)])
def test_compaction_is_off_in_pretraining_and_without_masked_tokens(words, pad, removes_tokens):
    task_data = config(*words, "data.pad=compact").task_data()
    assert (task_data.pad, task_data.compact) == (pad, removes_tokens)


@pytest.mark.parametrize("lengths", [[64, 9, 33, 8], [5, 64, 1, 12]], ids=["long", "shorter_than_count"])
@pytest.mark.parametrize("words", [*PACKED_CASES, "mean", "none"])
def test_packed_outputs_and_gradients_match_padded(words, lengths):
    batch = padded_ids(lengths, towers=2 if "task.towers=2" in words else 1)
    assert_same(*((build(*words.split(), f"data.pad={pad}"), batch) for pad in ("batch", "none")))


def test_packed_model_projects_only_real_tokens():
    model, shapes = build("cur_abs", "attn.count=8", "data.pad=none"), []
    for part in model.modules():
        if isinstance(part, Multihead):
            part.inputs.register_forward_hook(lambda module, args, out: shapes.append(out.shape[:2]))
    model(*padded_ids([64, 9, 33, 8]))
    assert shapes == [(1, 64 + 9 + 33 + 8)] * 2


@pytest.mark.parametrize("score", ["sum", "abs", "embed", "step", "random"])
def test_packed_selection_is_distinct_and_inside_each_sequence(score):
    """The copies of tokens that fill the layout up to a multiple are never selected."""
    torch.manual_seed(1)
    layout = VarlenLayout(torch.arange(20) < torch.tensor([20, 6, 11, 17])[:, None], multiple=64)
    q, k = torch.randn(2, 4, 2, 20, 4)
    packed_q, packed_k = layout.pack(q, 2), layout.pack(k, 2)
    for index in select(packed_q, packed_k, SelectionOptions(count=6, score=score), layout=layout, fused=True):
        position = index - layout.starts[:, None, None]
        assert (position >= 0).all() and (position < layout.num_real[:, None, None]).all()
        assert (index.sort(-1).values.diff(dim=-1) > 0).all()


@pytest.mark.parametrize("words", [*GROUPED_CASES, "delta_net task.towers=2", "psf model.pool=class"])
def test_grouped_outputs_and_gradients_match_padded(words):
    # Eight of the ten sequences are padded to 64 tokens, the others to 128.
    batch = padded_ids([128, 9, 33, 8, 5, 60, 1, 12, 100, 64], towers=2 if "task.towers=2" in words else 1)
    padded, grouped = (build(*words.split(), "task.length=128", f"data.pad={pad}") for pad in ("batch", "none"))
    shapes = []
    grouped.blocks[0].register_forward_pre_hook(lambda module, args: shapes.append(args[0].shape[:2]))
    assert_same((padded, batch), (grouped, batch))
    assert shapes[0][0] == GROUP_SIZE and shapes[0][1] < shapes[-1][1]


@pytest.mark.parametrize("words", ["psf model.norm=batch", "psf_original"])
def test_results_that_depend_on_the_batch_keep_padded_batches_with_a_message(words, data_root):
    plan = resolve_plan(*words.split(), "data.pad=none")
    plan.data.setup()
    assert plan.messages()[1:] == ["sequences keep their padding, because results depend on the batch: data.pad=batch"]
