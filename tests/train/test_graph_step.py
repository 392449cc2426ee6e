"""The step that trainer=graph captures: its optimiser is torch's, it is static, and it does not wait."""

import contextlib

import numpy as np
import pytest
import torch
from test_step import NoWaiting, module_and_data
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from lra.data.datamodule import Form
from lra.train import flat_adamw, graph, graph_step, optim
from lra.train.lit_module import loss, seed_device

OPTIONS = {
    **{"lr": 0.01, "warmup": 3, "steps": 12, "warmup_power": 1, "betas": (0.9, 0.999), "eps": 1e-6},
    **{"weight_decay": 0.1, "clip_norm": 1.0, "schedule": "one_cycle"},
}


class Odd(nn.Module):
    """Parameters of sizes that no vector register divides, in three groups."""

    def __init__(self):
        super().__init__()
        self.rates, self.decayed = {"slow": 0.1, "kept": 0.5}, ("kept",)
        sizes = {"a": (7, 33), "slow": (1,), "b": (), "kept": (130,), "c": (3, 5, 11)}
        for name, size in sizes.items():
            setattr(self, name, nn.Parameter(torch.randn(size)))


@pytest.mark.parametrize("kind", ["one_cycle", "cosine", "constant"])
def test_the_flat_optimiser_is_torchs_bit_for_bit(kind):
    options = OPTIONS | {"schedule": kind}
    torch.manual_seed(0)
    one, other = Odd(), Odd()
    other.load_state_dict(one.state_dict())
    reference, held = (optim.adamw(model, options) for model in (one, other))
    schedule = optim.schedule(reference, options, cycle_momentum=True)
    table = flat_adamw.coefficients(other, options, cycle_momentum=True)
    assert table.shape == (12, 3, 4)
    groups = [flat_adamw.FlatGroup(held, group, 0) for group in held.param_groups]
    for step in range(12):
        if step == 6:  # as after resuming
            held.load_state_dict(reference.state_dict())
            groups = [flat_adamw.FlatGroup(held, group, step) for group in held.param_groups]
        for p, q in zip(one.parameters(), other.parameters(), strict=True):
            p.grad = torch.randn_like(p) * 10 ** float(torch.randn(()))
            view = next(v for g in groups for r, v in zip(g.parameters, g.gradient_views, strict=True) if r is q)
            view.copy_(p.grad)
        for group, row in zip(groups, table[step], strict=True):
            group.update(row)
            group.made.add_(1)
        reference.step()
        schedule.step()
        for p, q in zip(one.parameters(), other.parameters(), strict=True):
            assert torch.equal(p, q)
            ours, theirs = held.state[q], reference.state[p]
            assert list(ours) == list(theirs) and all(torch.equal(ours[key], theirs[key]) for key in theirs)


def static_step(name, device, data_root, *words, steps=20):
    """A model without dropout, its data, and a step of its state that needs only the form of the batch."""
    module, data, made = module_and_data(name, device, data_root, "model.dropout=0", *words)
    model, options = module.model, dict(made.optim) | OPTIONS | {"steps": steps}
    optimiser = optim.adamw(model, options)
    order = data.train_order(steps)
    table = flat_adamw.coefficients(model, options, cycle_momentum=True).to(device)
    tables = graph_step.Tables(torch.from_numpy(order).to(device), table)
    groups = [flat_adamw.FlatGroup(optimiser, group, 0) for group in optimiser.param_groups]
    state = graph_step.State(groups, torch.zeros(1, dtype=torch.int64, device=device))
    losses = torch.zeros(steps, device=device)

    def step(form):
        number = state.number.clone()
        value = graph_step.step(
            state,
            tables,
            gather=lambda index: data.gather_form("train", index, form),
            loss=lambda batch: loss(model, batch),
            clip_norm=1.0,
        )
        losses.index_copy_(0, number, value[None])

    return step, [data.form("train", examples) for examples in order], losses, state


@pytest.mark.parametrize(("name", "pad"), [("cur_abs", "batch"), ("s4d_lin", "compact")])
def test_the_whole_step_neither_waits_nor_copies(name, pad, data_root, monkeypatch):
    """On the meta device, as the step of Lightning's loop, but with the update and without its one copy of indices."""
    autocast = torch.autocast  # knows no meta device
    monkeypatch.setattr(torch, "autocast", lambda kind, **how: autocast("cpu" if kind == "meta" else kind, **how))
    step, forms, *_ = static_step(name, "meta", data_root, f"data.pad={pad}", steps=12)
    with NoWaiting() as mode:
        step(forms[0])
    assert mode.copies == 0


def test_a_parameter_without_gradient_is_refused():
    held = nn.Linear(2, 2)
    optimiser = optim.adamw(held, OPTIONS)
    state = graph_step.State(
        [flat_adamw.FlatGroup(optimiser, optimiser.param_groups[0], 0)], torch.zeros(1, dtype=torch.int64)
    )
    tables = graph_step.Tables(torch.zeros(1, 4, dtype=torch.int32), torch.zeros(1, 1, 4))
    with pytest.raises(ValueError, match="trainer=graph needs a gradient of every parameter"):
        graph_step.step(state, tables, gather=lambda i: i, loss=lambda i: held.weight.sum(), clip_norm=None)
    assert state.number.item() == 0


class Recording(TorchDispatchMode):
    """A CUDA graph on a CPU: the operations of a block of code, which has no effect itself, to be made again.

    Operations are made again on the same tensors: a number that the host computed would remain what it was.
    """

    def capture(self):
        self.calls, self.before, self.made, self.generator = [], {}, set(), torch.get_rng_state()
        return self

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        written = [i for i, a in enumerate(func._schema.arguments) if a.alias_info and a.alias_info.is_write]
        for tensor in (
            x for i in written if i < len(args) for x in (args[i] if isinstance(args[i], list) else [args[i]])
        ):
            if tensor.untyped_storage().data_ptr() not in self.made:
                self.before.setdefault(id(tensor), (tensor, tensor.clone()))
        out = func(*args, **kwargs)
        results = [x for x in (out if isinstance(out, tuple | list) else [out]) if isinstance(x, torch.Tensor)]
        own = not any(r.alias_info for r in func._schema.returns)  # neither views nor what was written
        if own:
            self.made |= {x.untyped_storage().data_ptr() for x in results}
        if own or written:
            held = tree_map_only(torch.Tensor, torch.Tensor.detach, (args, kwargs, results if own else []))
            self.calls.append((func, *held))
        return out

    def __exit__(self, *error):
        super().__exit__(*error)
        torch.set_rng_state(self.generator)
        for tensor, value in reversed(self.before.values()):
            tensor.copy_(value)

    def replay(self):
        for func, args, kwargs, results in self.calls:
            out = func(*args, **kwargs)
            for old, new in zip(results, out if isinstance(out, tuple | list) else [out], strict=False):
                old.copy_(new)


def on_a_cpu(monkeypatch):
    """Replace the parts of torch.cuda that ``Graphs`` uses, with recordings for graphs."""

    class Stream:
        def wait_stream(self, other):
            """One after the other anyway."""

    fakes = {"Stream": Stream, "current_stream": Stream, "CUDAGraph": Recording, "graph_pool_handle": lambda: None}
    fakes |= {"stream": lambda s: contextlib.nullcontext(), "graph": lambda g, pool, stream: g.capture()}
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)


def trained(name, device, data_root, graphs, *words):
    """Losses and weights of twenty steps, and what made them."""
    torch.manual_seed(0)
    step, forms, losses, state = static_step(name, device, data_root, *words)
    runner = graph.Graphs(step, graph.worthwhile(forms)) if graphs else step
    for number, form in enumerate(forms):
        seed_device(number, torch.device(device))
        runner(form)
    return losses, [group.weights for group in state.groups], runner


@pytest.mark.parametrize("name", ["cur_random", pytest.param("s4d_lin", marks=pytest.mark.slow)])
def test_replayed_steps_are_those_that_were_not(name, data_root, monkeypatch):
    on_a_cpu(monkeypatch)
    words = ("model.layers=1", "model.dim=16", "model.hidden=16", "optim.batch=8", "model.pool=mean")
    eager, weights, _ = trained(name, "cpu", data_root, False, *words)
    replayed, others, graphs = trained(name, "cpu", data_root, True, *words)
    assert graphs.graphs.keys() == graphs.forms and sum(graphs.uses.values()) < 12
    assert torch.equal(eager, replayed) and all(map(torch.equal, weights, others))


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["cur_random", "cur_abs", "sdpa", "s4d_lin", "nystrom", "luna"])
def test_captured_steps_are_the_eager_ones_on_a_gpu(name, data_root):
    """To rounding: some gradients are summed by atomic additions, in any order."""
    eager, weights, _ = trained(name, "cuda", data_root, False)
    captured, others, graphs = trained(name, "cuda", data_root, True)
    assert graphs.graphs.keys() == graphs.forms
    torch.testing.assert_close(captured, eager, rtol=1e-3, atol=1e-4)
    for one, other in zip(weights, others, strict=True):
        assert (one - other).norm() < 1e-2 * one.norm()


def test_frequent_forms_get_a_graph():
    often, seldom = Form(64, False, True), Form(128, False, False)
    assert graph.worthwhile([often, seldom] * graph.WARM_UP + [often]) == [often]
    many = [Form(64 * i, True, False) for i in range(40) for _ in range(graph.WARM_UP + 1)]
    assert len(graph.worthwhile(many)) == graph.GRAPHS


def test_the_order_is_the_loaders(data_root):
    _, data, _ = module_and_data("softmax", "cpu", data_root, "optim.batch=100")
    stream = data._stream()
    for index in data.train_order(4):  # over the end of a pass
        batch, other = next(stream), data.gather("train", index)
        assert len(np.unique(index)) > 50 and torch.equal(batch.inputs, other.inputs)
        assert torch.equal(batch.label, other.label)


def test_a_step_that_cannot_be_captured_is_one_line(monkeypatch):
    on_a_cpu(monkeypatch)
    form, calls = Form(64, False, True), []

    def step(form):
        calls.append(form)
        if len(calls) > graph.WARM_UP:
            raise RuntimeError("operation not permitted when stream is capturing\nmore")

    graphs = graph.Graphs(step, [form])
    for _ in range(graph.WARM_UP):
        graphs(form)
    with pytest.raises(ValueError, match=r"^trainer=graph cannot capture a step of this model: operation not .*ing$"):
        graphs(form)
