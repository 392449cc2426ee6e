"""Tests of training on two or three ranks: agreement with a single rank, collective operations, and errors."""

import os
import shutil
import signal
import socket
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from conftest import config, error_message, slow
from server import start as start_fork
from support.training import power_cut, result, seed_folder, smoke, start, train_config, trained, wait

from lra import ranks
from lra.console import OtherRankFailed
from lra.data.datamodule import Batch
from lra.io.lock import holder
from lra.model.norm import make_norm
from lra.ops import metrics
from lra.runs import checkpoint, record
from lra.train import distributed, pretrain, trainer
from lra.train.lit import LitClassifier

CURVE = ["model.dropout=0", "optim.steps=8", "optim.eval_every=1", "trainer.device=cpu"]
MULTINODE = ["trainer=ddp_multinode"]


def together(function, world=2):
    """Return the exit codes of ``world`` forked processes that run function() as ranks of torchrun."""
    with socket.socket() as free_socket:
        free_socket.bind(("localhost", 0))
        port = free_socket.getsockname()[1]

    def run_as_rank(rank):
        os.environ |= {"TORCHELASTIC_RUN_ID": "test", "MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
        os.environ |= {"WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world)}
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        function()

    processes = [start_fork(run_as_rank, rank) for rank in range(world)]
    for process in processes:
        process.join(120)
        process.kill()
    return [process.exitcode for process in processes]


def curve(folder):
    return torch.tensor([row["train_loss"] for row in checkpoint.read_metrics(folder)], dtype=torch.float64)


@pytest.mark.first
@pytest.mark.parametrize("attn, block", [("cur_abs", "prenorm"), slow("s4d_lin", "glu"), ("mean", "mega")])
def test_two_ranks_match_loss_curve_of_one(data_root, tmp_path, monkeypatch, attn, block):
    """Both sum the same terms in another order: against float64, two ranks may err 4 times as much as one does."""
    words = [*CURVE, "optim.micro_batch=4", "data.eval_batch=21", f"block={block}"]
    words += ["block.bias=false"] * (block == "mega")
    trained(tmp_path / "one", *words, attn=attn)
    monkeypatch.setitem(trainer.PRECISIONS, "fp64", "64-true")
    fp64_config = smoke(tmp_path / "exact", *words, attn=attn)
    # The option does not accept fp64, so it is set after composition.
    train_config(fp64_config.replace(trainer=fp64_config.trainer.replace(precision="fp64")))

    original = record.save
    save = lambda *run: (tmp_path / f"saved by {ranks.rank()}").touch() or original(*run)
    monkeypatch.setattr(record, "save", save)
    assert together(lambda: trained(tmp_path / "two", *words, *MULTINODE, attn=attn)) == [0, 0]
    assert [path.name for path in tmp_path.glob("saved by *")] == ["saved by 0"]

    folders = [seed_folder(tmp_path / name, attn) for name in ("one", "two", "exact")]
    one, two, exact = map(curve, folders)
    # Equal bits would mean that the ranks did not share the batches.
    assert len(one) == 8 and not torch.equal(one, two)
    rounding = torch.finfo(torch.float32).eps * exact.abs().max()
    assert (two - exact).abs().max() <= 4 * (one - exact).abs().max() + rounding
    assert (folders[0] / "config.yaml").read_bytes() == (folders[1] / "config.yaml").read_bytes()
    a, b = map(result, folders[:2])
    for key in ("train_loss", "val_loss", "output_std"):
        assert b.pop(key) == pytest.approx(a.pop(key), rel=1e-3)
    assert b.pop("device") == f"2 x {a.pop('device')}" and a == b
    names = [sorted(path.name for path in folder.iterdir()) for folder in folders[:2]]
    assert names[0] == names[1]


@pytest.mark.slow
def test_resume_on_two_ranks_is_bit_exact(data_root, tmp_path):
    words = ["optim.steps=12", "optim.eval_every=3", "optim.lr=0.01", "trainer.device=cpu", *MULTINODE]
    assert together(lambda: trained(tmp_path / "whole", *words)) == [0, 0]

    def crash():
        with power_cut(6):
            trained(tmp_path / "cut", *words)

    assert together(crash) == [0, 0]
    crashed_dir, whole = seed_folder(tmp_path / "cut"), seed_folder(tmp_path / "whole")
    assert not (crashed_dir / "record.json").exists()
    shutil.copytree(tmp_path / "cut", tmp_path / "alone")
    assert together(lambda: trained(tmp_path / "cut", *words)) == [0, 0]
    assert result(crashed_dir) == result(whole)
    assert (crashed_dir / "metrics.csv").read_bytes() == (whole / "metrics.csv").read_bytes()
    single_rank_dir = trained(tmp_path / "alone", *words[:-1])
    assert result(single_rank_dir)["status"] == "done" and torch.equal(curve(single_rank_dir)[:2], curve(whole)[:2])
    assert curve(single_rank_dir).shape == curve(whole).shape


def test_nonfinite_loss_ends_seed_on_both_ranks(data_root, tmp_path):
    words = ["optim.lr=1e30", "seeds=[0,1]", "trainer.device=cpu", *MULTINODE]
    assert together(lambda: trained(tmp_path, *words, attn="softmax")) == [0, 0]
    for seed in (0, 1):
        assert result(seed_folder(tmp_path, "softmax", seed))["status"] == "diverged"


def run_in_group(function):
    with distributed.group(distributed.find_processes(smoke("unused", "trainer.device=cpu", *MULTINODE).trainer)):
        function(ranks.rank())


def run_on_ranks(world, function):
    """Return the exit codes of function(rank) on all ranks; not 0 after an AssertionError."""
    return together(partial(run_in_group, function), world)


@pytest.mark.parametrize("masked, shares", [(True, ([0, 1], [2, 3])), (False, ([0], [1, 2, 3]))])
def test_batch_norm_uses_valid_tokens_of_all_ranks(masked, shares):
    """Outputs, gradients and running statistics equal those of one rank; shares have different sizes."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(4, 5, 3, generator=g, dtype=torch.float64)
    mask, weights = torch.arange(5) < torch.tensor([5, 1, 3, 2])[:, None], torch.randn(4, 5, 3, generator=g).double()

    def run(examples):
        module = make_norm("batch", 3).double()
        torch.nn.init.normal_(module.weight, generator=torch.Generator().manual_seed(1))
        leaf = x[examples].requires_grad_()
        out = module(leaf, mask[examples] if masked else None)
        (out * weights[examples]).sum().backward()
        return out, leaf.grad, module.weight.grad, [*module.buffers()]

    out, grad, weight_grad, buffers = run([0, 1, 2, 3])

    def share(rank):
        rank_share = shares[rank]
        actual = run(rank_share)
        torch.testing.assert_close(actual[:2], (out[rank_share], grad[rank_share]))
        torch.testing.assert_close(sum(ranks.gather(actual[2])), weight_grad)
        torch.testing.assert_close(actual[3], buffers)

    assert run_on_ranks(2, share) == [0, 0]


def test_pretraining_gradient_matches_single_rank():
    """The ranks have different numbers of tokens, and the loss is the mean over all tokens."""
    words = ("attn.causal=true", "pretrain=next", "model.dropout=0")
    ids, mask = torch.randint(1, 16, (4, 1, 128)), torch.arange(128) < torch.tensor([128, 3, 60, 2])[:, None, None]

    def gradient(examples):
        torch.manual_seed(0)
        experiment = config("linear", *words)
        module = pretrain.LitPretrainer.of(experiment, experiment.pretrainer().double(), 0)
        value = module.batch_loss(Batch(ids[examples], mask[examples], torch.zeros(len(examples))))
        value.backward()
        return value.item(), torch.cat([p.grad.flatten() for p in module.parameters() if p.grad is not None])

    value, expected = gradient([0, 1, 2, 3])

    def share(rank):
        shares = ranks.gather(gradient([[0, 2], [1, 3]][rank]))
        torch.testing.assert_close(sum(grad for _, grad in shares) / 2, expected)
        assert sum(loss for loss, _ in shares) / 2 == pytest.approx(value)

    assert run_on_ranks(2, share) == [0, 0]


@pytest.mark.parametrize("world", [2, 3])
def test_roc_auc_uses_scores_of_all_ranks_once(world):
    g = torch.Generator().manual_seed(0)
    outputs, labels = torch.randn(23, 2, generator=g), torch.randint(2, (23,), generator=g)
    # Two batches: a third rank has none.
    batches = list(zip(outputs.split(12), labels.split(12), strict=True))

    def score(rank):
        module = LitClassifier.of(config("mean"), torch.nn.Linear(1, 1), seed=0)
        module.metric = metrics.roc_auc
        module.on_validation_epoch_start()
        module._evaluated += batches[rank::world]
        module.on_validation_epoch_end()
        assert module.score == metrics.roc_auc(outputs, labels) and len(module.labels) == 23

    assert run_on_ranks(world, score) == [0] * world


def test_error_on_rank_zero_ends_other_ranks_silently(tmp_path, capfd):
    def decide():
        raise ValueError("no such thing")

    def work(rank):
        assert ranks.gather(rank) == [0, 1] and ranks.on_rank_zero(lambda: rank + 5) == 5
        with pytest.raises(OtherRankFailed if rank else ValueError) as error:
            ranks.on_rank_zero(decide)
        assert error.value.args == ("rank 0 failed" if rank else "no such thing",)
        # The block runs on rank 0 first: its file exists when rank 1 looks.
        with ranks.rank_zero_first():
            assert rank == 0 or (tmp_path / "0").exists()
            (tmp_path / str(rank)).touch()
        with pytest.raises(OtherRankFailed if rank else ValueError), ranks.rank_zero_first():
            assert rank == 0
            decide()

    assert run_on_ranks(2, work) == [0, 0] and len(list(tmp_path.iterdir())) == 2
    assert capfd.readouterr().err == ""


def test_killed_rank_raises_error_on_other_rank():
    def work(rank):
        ranks.gather(rank)
        if rank == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        ranks.gather(rank)

    def run():
        message = error_message(run_in_group, work)
        assert message.startswith("another process of the run does not answer; the same command resumes: ")

    assert together(run) == [-signal.SIGKILL, 0]


@pytest.mark.parametrize("world", [2, 3])
def test_rank_batches_add_up_to_single_rank_batches(data_root, world):
    """Micro-batches are as wide as on one rank; each validation example is evaluated on one rank."""
    strategy = SimpleNamespace(root_device=torch.device("cpu"))
    words = ["optim.batch=12", "data.eval_batch=7"]
    whole, *parts = (smoke("unused", *words).task_data(seed=1) for _ in range(world + 1))
    for rank, part in enumerate(parts):
        part.trainer = SimpleNamespace(global_rank=rank, world_size=world, strategy=strategy)
        part.setup()
    whole.setup()
    streams = [iter(part.train_dataloader()) for part in parts]
    for _, batch in zip(range(5), whole.train_dataloader(), strict=False):
        shares = [next(stream) for stream in streams]
        for key in ("inputs", "mask", "label"):
            together = torch.stack([getattr(share, key) for share in shares], 1).flatten(0, 1)
            assert torch.equal(together, getattr(batch, key))
    examples = [b.label for part in parts for b in part.evaluation_batches("val")]
    assert sorted(torch.cat(examples).tolist()) == sorted(whole.splits["val"].labels.tolist())
    assert sum(map(len, examples)) == 64


def test_launched_process_count_must_match_trainer_devices(data_root, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "test")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert "2 processes were launched, trainer.devices is 1;" in error_message(trained, tmp_path)


def test_slurm_environment_sets_process_count_of_multinode_trainer(monkeypatch):
    for key, value in {"NTASKS": "8", "NNODES": "2", "JOB_NAME": "job", "PROCID": "0"}.items():
        monkeypatch.setenv(f"SLURM_{key}", value)
    processes = lambda *words: distributed.find_processes(smoke("unused", *words).trainer)
    assert "--ntasks-per-node=8" in error_message(processes, *MULTINODE)
    monkeypatch.setenv("SLURM_NTASKS_PER_NODE", "4")
    one, launched = processes(), processes(*MULTINODE)
    assert one.count == 1 and not one.to_launch
    assert (launched.count, launched.local) == (8, 4) and not launched.to_launch
    assert processes("trainer=ddp", "trainer.devices=2").to_launch


@pytest.mark.slow
@pytest.mark.parametrize("kill", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_ddp_command_starts_ranks_and_resumes_after_kill(data_root, tmp_path, kill):
    two = (tmp_path, "trainer=ddp", "trainer.devices=2", "trainer.device=cpu")
    first, folder = start(*two), seed_folder(tmp_path, "cur_abs")
    wait(first, (folder / "last.ckpt").exists)
    os.kill(holder(folder / ".owner").pid if kill == signal.SIGKILL else first.pid, kill)
    _, err = first.communicate(timeout=60)
    assert first.returncode != 0 and "Traceback" not in err and not (folder / "record.json").exists()
    assert holder(folder / ".owner") is None
    resumed = start(*two)
    _, err = resumed.communicate(timeout=240)
    assert resumed.returncode == 0 and err.count("seed 0: test") == 1 and "step 5/60" not in err, err
    assert result(folder)["status"] == "done" and result(folder)["device"].startswith("2 x ")
