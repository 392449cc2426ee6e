"""trainer=graph: steps, curves and checkpoints are those of Lightning's loop, whichever goes on from the other's."""

import pytest
import torch
from conftest import config
from omegaconf import OmegaConf
from test_graph_step import on_a_cpu

from lra.runs import identity, record
from lra.train import build, graph_check
from lra.train.__main__ import train
from lra.train.callbacks import Checkpoints
from lra.train.graph import Graphs, LitGraph, worthwhile

SMALL = (
    *("seeds=[0]", "data.pad=batch", "model.layers=1", "model.dim=16", "model.hidden=16", "model.dropout=0.1"),
    *("optim.batch=4", "data.eval_batch=64", "optim.steps=50", "optim.eval_every=10", "optim.lr=0.01"),
)
# A limit above every norm: the loop's AdamW is not the fused one, and gradients are multiplied by 1.
WORDS = {
    "one_cycle": ["attn=softmax", "optim.clip_norm=0.1", "optim.weight_decay=0.1", "optim.warmup=20"],
    "rates": ["optim.clip_norm=1e9", "attn=s4d_lin", "optim.weight_decay=0.1"],
    "cosine": ["optim.clip_norm=0.1", "optim.schedule=cosine", "protocol=clean", "data.pad=fixed"],
    "compact": ["optim.clip_norm=1", "task.masked_id=5", "data.pad=compact", "optim.schedule=linear"],
    "constant": ["optim.clip_norm=1e9", "optim.schedule=constant", "optim.warmup=0", "trainer.precision=bf16"],
}


def run(runs, *words, stop=None, monkeypatch=None):
    """Train until a step's checkpoint is written; the folder of the seed."""
    saved = Checkpoints.on_validation_end

    def crash(self, trainer, module):
        saved(self, trainer, module)
        if trainer.global_step == stop:
            raise RuntimeError("power cut")

    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "on_validation_end", crash)
        try:
            train.__wrapped__(config("cur_random", f"runs={runs}", *SMALL, *words))
        except RuntimeError as error:
            assert str(error) == "power cut"
    return next(runs.rglob("last.ckpt")).parent


def differences(a, b, path=""):
    """The paths at which two checkpoints differ."""
    if isinstance(a, dict) and isinstance(b, dict) and a.keys() == b.keys():
        return [found for key in a for found in differences(a[key], b[key], f"{path}.{key}")]
    if isinstance(a, list | tuple) and len(a) == len(b):
        return [found for i in range(len(a)) for found in differences(a[i], b[i], f"{path}.{i}")]
    same = torch.equal(a, b) and a.dtype == b.dtype if isinstance(a, torch.Tensor) else a == b
    return [] if same else [path]


def checkpoint(folder, name="last.ckpt"):
    return torch.load(folder / name, weights_only=True)


@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n == "one_cycle" else pytest.mark.slow) for n in WORDS])
def test_fifty_steps_are_those_of_the_loop_bit_for_bit(name, data_root, tmp_path, monkeypatch):
    """The last checkpoint as a whole: weights, moments, schedule, counters of the loop; the curve and the best weights.

    The other run is begun by the graph trainer, carried on by the loop and ended by the graph trainer.
    """
    words = WORDS[name]
    loop = run(tmp_path / "loop", *words, monkeypatch=monkeypatch)
    for stop, trainer in ((20, "graph"), (30, "default"), (None, "graph")):
        other = run(tmp_path / "other", *words, f"trainer={trainer}", stop=stop, monkeypatch=monkeypatch)
    for name in ("last.ckpt", "best.ckpt"):
        assert differences(checkpoint(loop, name), checkpoint(other, name)) == []
    assert (loop / "metrics.csv").read_bytes() == (other / "metrics.csv").read_bytes()


def test_a_run_of_recorded_steps_is_that_of_the_loop(data_root, tmp_path, monkeypatch):
    """The module with graphs, evaluations between them, as on a GPU but for what a graph is."""
    words = ["optim.clip_norm=0.1", "optim.steps=12", "optim.eval_every=6", "model.dropout=0"]
    loop = run(tmp_path / "loop", *words, monkeypatch=monkeypatch)
    started, runners = LitGraph.on_train_start, []

    def with_graphs(self):
        started(self)
        self.graphs = Graphs(self.make_step, worthwhile(self.forms))
        runners.append(self.graphs)

    on_a_cpu(monkeypatch)
    monkeypatch.setattr(LitGraph, "on_train_start", with_graphs)
    recorded = run(tmp_path / "recorded", *words, "trainer=graph", monkeypatch=monkeypatch)
    assert differences(checkpoint(loop), checkpoint(recorded)) == []
    assert (loop / "metrics.csv").read_bytes() == (recorded / "metrics.csv").read_bytes()
    assert runners[0].graphs and sum(runners[0].uses.values()) < 10


def test_without_clipping_only_the_rounding_of_the_fused_optimiser_differs(data_root, tmp_path, monkeypatch):
    words = ["optim.steps=1", "optim.eval_every=1", "optim.schedule=constant", "optim.warmup=0"]
    unclipped = [run(tmp_path / t, *words, f"trainer={t}", monkeypatch=monkeypatch) for t in ("default", "graph")]
    clipped = run(tmp_path / "clipped", *words, "optim.clip_norm=1e9", monkeypatch=monkeypatch)
    fused, flat, steps = (checkpoint(folder, "best.ckpt") for folder in (*unclipped, clipped))
    assert differences(steps, flat) == []
    assert all(torch.allclose(fused[key], flat[key], rtol=1e-6, atol=1e-8) for key in fused)
    fused, flat = (checkpoint(folder)["optimizer_states"] for folder in unclipped)
    assert not [path for path in differences(fused, flat) if ".state." not in path]  # the same options, fused too


def test_a_run_that_diverges_ends_with_the_loop_s_step(data_root, tmp_path, monkeypatch):
    words = ["optim.lr=1e30", "optim.clip_norm=1e9", "attn=softmax"]
    made = []
    for name in ("default", "graph"):
        train.__wrapped__(config("cur_random", f"runs={tmp_path / name}", *SMALL, *words, f"trainer={name}"))
        made.append(record.load(next(tmp_path.glob(f"{name}/**/record.json"))))
    assert made[0].status == made[1].status == "diverged" and 0 < made[0].steps == made[1].steps < 10


def test_a_signal_ends_a_block_behind_its_step(data_root, tmp_path, monkeypatch):
    made, original = [], LitGraph.make_step

    def signalled(self, form):
        original(self, form)
        made.append(form)
        self.trainer._signal_connector.received_sigterm = len(made) == 13

    monkeypatch.setattr(LitGraph, "make_step", signalled)
    with pytest.raises(KeyboardInterrupt, match="stopped at step 13; the same command resumes from step 10"):
        run(tmp_path, "trainer=graph", monkeypatch=monkeypatch)


def test_a_block_ends_where_a_callback_looks(monkeypatch):
    lit = LitGraph(
        torch.nn.Identity(), metric="accuracy", loss="mse", seed=0, optim={"eval_every": 30}, cycle_momentum=0
    )
    ends = [0]
    while ends[-1] < 150:
        ends.append(lit.block_end(ends[-1]))
    assert ends == [0, 30, 50, 60, 90, 100, 120, 150]


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("trainer.devices", 2, "trainer.devices must be 1 with trainer=graph, not 2"),
        ("trainer.precision", "fp16", "trainer.precision must be fp32 or bf16 with trainer=graph"),
        ("trainer.compile", "reduce-overhead", "trainer.compile must be true or false with trainer=graph"),
        ("data.pad", "none", "data.pad must be batch, fixed or compact with trainer=graph, not none"),
        ("optim.micro_batch", 2, "optim.micro_batch must be null with trainer=graph, not 2"),
        ("model.norm", "batch", "model.norm and block.norm must be layer, rms or scale with trainer=graph, not batch"),
    ],
)
def test_what_cannot_be_captured_is_refused(option, value, message):
    made = config("softmax", "trainer=graph", "model.layers=1")
    OmegaConf.update(made, option, value)
    with pytest.raises(ValueError, match=message):
        graph_check.check(made, build.sketch(made), made.trainer.devices)
    made.trainer.graph = False
    graph_check.check(made, build.sketch(made), made.trainer.devices)


def test_refusals_come_before_anything_is_written(tmp_path):
    with pytest.raises(ValueError, match=r"block\.norm"):
        train.__wrapped__(config("s4d_lin", "trainer=graph", "block=glu", f"runs={tmp_path}"))
    assert not list(tmp_path.iterdir())


def test_the_trainer_is_no_part_of_a_result():
    plain, graph = (identity.choices(config("softmax", *words), {}) for words in ([], ["trainer=graph"]))
    assert plain == graph
