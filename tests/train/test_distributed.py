"""Two processes that share every batch, against one process; what they tell each other; what they refuse."""

import multiprocessing
import os
import shutil
import signal
import socket
from functools import partial
from types import SimpleNamespace

import pandas as pd
import pytest
import torch
from conftest import config
from support.training import result, seed_folder, smoke, start, train_config, trained, wait

from lra import ranks
from lra.data.datamodule import Batch
from lra.io.lock import holder
from lra.model.norm import make_norm
from lra.ops import metrics
from lra.runs import record
from lra.train import distributed, pretrain, trainer
from lra.train.callbacks import Checkpoints
from lra.train.lit import LitClassifier

CURVE = ["model.dropout=0", "optim.steps=8", "optim.eval_every=1", "trainer.device=cpu"]
TWO = ["trainer=ddp_multinode"]


def member(rank, world, port, function):
    """The environment that torchrun sets for one of its processes."""
    os.environ |= {"TORCHELASTIC_RUN_ID": "test", "MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
    os.environ |= {key: str(world) for key in ("WORLD_SIZE", "LOCAL_WORLD_SIZE")}
    os.environ |= {key: str(rank) for key in ("RANK", "LOCAL_RANK")}
    function()


def together(function, world=2):
    """Exit codes of ``world`` forked processes that run function()."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    fork = multiprocessing.get_context("fork")
    ranks = [fork.Process(target=member, args=(rank, world, port, function)) for rank in range(world)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(120)
        process.kill()
    return [process.exitcode for process in ranks]


def curve(folder):
    found = pd.read_csv(folder / "metrics.csv", float_precision="round_trip")
    return torch.from_numpy(found.train_loss.to_numpy(copy=True))


@pytest.mark.first
@pytest.mark.parametrize("attn, block", [("cur_abs", "prenorm"), ("s4d_lin", "glu")])  # glu has a batch norm
def test_two_processes_give_the_loss_curve_of_one(data_root, tmp_path, monkeypatch, attn, block):
    """Both are sums of the same terms in another order: against float64, two may err 4 times as much as one does."""
    words = [*CURVE, "optim.micro_batch=4", "data.eval_batch=7", f"block={block}"]
    trained(tmp_path / "one", *words, attn=attn)
    monkeypatch.setitem(trainer.PRECISIONS, "fp64", "64-true")
    wide = smoke(tmp_path / "exact", *words, attn=attn)
    wide = wide.replace(trainer=wide.trainer.replace(precision="fp64"))  # none of the words of a command line
    train_config(wide)

    saved = record.save

    def save(result, folder):
        (tmp_path / f"saved by {ranks.rank()}").touch()
        saved(result, folder)

    monkeypatch.setattr(record, "save", save)
    assert together(lambda: trained(tmp_path / "two", *words, *TWO, attn=attn)) == [0, 0]
    assert [path.name for path in tmp_path.glob("saved by *")] == ["saved by 0"]

    folders = [seed_folder(tmp_path / name, attn) for name in ("one", "two", "exact")]
    one, two, exact = map(curve, folders)
    assert len(one) == 8 and not torch.equal(one, two)  # a bit-equal curve would not have been shared
    rounding = torch.finfo(torch.float32).eps * exact.abs().max()
    assert (two - exact).abs().max() <= 4 * (one - exact).abs().max() + rounding
    assert (folders[0] / "config.yaml").read_bytes() == (folders[1] / "config.yaml").read_bytes()
    a, b = map(result, folders[:2])
    for key in ("train_loss", "val_loss", "output_std"):  # sums in another order, as the curve
        assert b.pop(key) == pytest.approx(a.pop(key), rel=1e-3)
    assert b.pop("device") == f"2 x {a.pop('device')}" and a == b
    names = [sorted(path.name for path in folder.iterdir()) for folder in folders[:2]]
    assert names[0] == names[1]


@pytest.mark.slow
def test_two_processes_resume_bit_for_bit_what_they_would_have_done(data_root, tmp_path, monkeypatch):
    words = ["optim.steps=12", "optim.eval_every=3", "optim.lr=0.01", "trainer.device=cpu", *TWO]
    assert together(lambda: trained(tmp_path / "whole", *words)) == [0, 0]
    saved = Checkpoints.on_validation_end

    def crash(self, trainer, module):
        saved(self, trainer, module)
        if trainer.global_step == 6:
            os._exit(9)

    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "on_validation_end", crash)
        assert together(lambda: trained(tmp_path / "cut", *words)) == [9, 9]
    cut, whole = seed_folder(tmp_path / "cut"), seed_folder(tmp_path / "whole")
    assert not (cut / "record.json").exists() and (cut / ".owner").exists()
    shutil.copytree(tmp_path / "cut", tmp_path / "alone")
    assert together(lambda: trained(tmp_path / "cut", *words)) == [0, 0]
    assert result(cut) == result(whole)
    assert (cut / "metrics.csv").read_bytes() == (whole / "metrics.csv").read_bytes()
    assert not (cut / ".owner").exists()
    alone = trained(tmp_path / "alone", *words[:-1])  # one process resumes what two began
    assert result(alone)["status"] == "done" and torch.equal(curve(alone)[:2], curve(whole)[:2])
    assert curve(alone).shape == curve(whole).shape


def test_an_infinite_loss_ends_the_seed_in_both(data_root, tmp_path):
    words = ["optim.lr=1e30", "seeds=[0,1]", "trainer.device=cpu", *TWO]
    assert together(lambda: trained(tmp_path, *words, attn="softmax")) == [0, 0]
    for seed in (0, 1):
        assert result(seed_folder(tmp_path, "softmax", seed))["status"] == "diverged"


def in_this_group(function):
    """function(rank) in one rank of a process group."""
    with distributed.group(distributed.processes(smoke("unused", "trainer.device=cpu", *TWO).trainer)):
        function(ranks.rank())


def in_group(world, function):
    """Exit codes of function(rank) on all ranks; not 0 after an AssertionError."""
    return together(partial(in_this_group, function), world)


@pytest.mark.parametrize("masked, shares", [(True, ([0, 1], [2, 3])), (False, ([0], [1, 2, 3]))])
def test_batch_norm_is_over_the_real_tokens_of_all_processes(masked, shares):
    """Outputs, gradients and running statistics equal those of one process; shares have different sizes."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(4, 5, 3, generator=g, dtype=torch.float64)
    mask, weights = torch.arange(5) < torch.tensor([5, 1, 3, 2])[:, None], torch.randn(4, 5, 3, generator=g).double()

    def run(rows):
        module = make_norm("batch", 3).double()
        torch.nn.init.normal_(module.weight, generator=torch.Generator().manual_seed(1))
        own = x[rows].requires_grad_()
        out = module(own, mask[rows] if masked else None)
        (out * weights[rows]).sum().backward()
        return out, own.grad, module.weight.grad, [*module.buffers()]

    out, grad, of_weight, buffers = run([0, 1, 2, 3])

    def share(rank):
        mine = shares[rank]
        got = run(mine)
        torch.testing.assert_close(got[:2], (out[mine], grad[mine]))
        torch.testing.assert_close(sum(ranks.gather(got[2])), of_weight)
        torch.testing.assert_close(got[3], buffers)

    assert in_group(2, share) == [0, 0]


def test_phase_one_has_the_gradient_of_one_process():
    """Shares have different numbers of tokens, and the mean is over all of them."""
    words = ("attn.causal=true", "pretrain=next", "model.dropout=0")
    ids, mask = torch.randint(1, 16, (4, 1, 128)), torch.arange(128) < torch.tensor([128, 3, 60, 2])[:, None, None]

    def gradient(rows):
        torch.manual_seed(0)
        made = config("linear", *words)
        module = pretrain.LitPretrainer.of(made, made.pretrainer().double(), 0)
        value = module.batch_loss(Batch(ids[rows], mask[rows], torch.zeros(len(rows))))
        value.backward()
        return value.item(), torch.cat([p.grad.flatten() for p in module.parameters() if p.grad is not None])

    value, expected = gradient([0, 1, 2, 3])

    def share(rank):
        mine = gradient([[0, 2], [1, 3]][rank])
        shares = ranks.gather(mine)
        torch.testing.assert_close(sum(grad for _, grad in shares) / 2, expected)
        assert sum(loss for loss, _ in shares) / 2 == pytest.approx(value)

    assert in_group(2, share) == [0, 0]


@pytest.mark.parametrize("world", [2, 3])
def test_roc_auc_is_over_the_scores_of_all_processes_each_once(world):
    g = torch.Generator().manual_seed(0)
    outputs, labels = torch.randn(23, 2, generator=g), torch.randint(2, (23,), generator=g)
    batches = list(zip(outputs.split(12), labels.split(12), strict=True))  # two: the third process has none

    def score(rank):
        module = LitClassifier.of(config("mean"), torch.nn.Linear(1, 1), seed=0)
        module.metric = metrics.roc_auc
        module.on_validation_epoch_start()
        module._evaluated += batches[rank::world]
        module.on_validation_epoch_end()
        assert module.score == metrics.roc_auc(outputs, labels) and len(module.labels) == 23

    assert in_group(world, score) == [0] * world


def test_an_error_of_the_first_process_ends_the_others_silently(tmp_path, capfd):
    def decide():
        raise ValueError("no such thing")

    def work(rank):
        assert ranks.gather(rank) == [0, 1]
        assert ranks.on_rank_zero(lambda: rank + 5) == 5
        with pytest.raises(SystemExit if rank else ValueError) as error:
            ranks.on_rank_zero(decide)
        assert error.value.args == ((1,) if rank else ("no such thing",))
        # The block runs on rank 0 first: its file is there when rank 1 looks.
        with ranks.rank_zero_first():
            assert rank == 0 or (tmp_path / "0").exists()
            (tmp_path / str(rank)).touch()
        with pytest.raises(SystemExit if rank else ValueError), ranks.rank_zero_first():
            assert rank == 0
            decide()

    assert in_group(2, work) == [0, 0] and len(list(tmp_path.iterdir())) == 2
    assert capfd.readouterr().err == ""


def test_a_process_that_is_gone_is_an_error_in_the_other():
    def work(rank):
        ranks.gather(rank)
        if rank == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        ranks.gather(rank)

    def run():
        line = r"^another process of the run does not answer; the same command resumes: [^\n]*\Z"
        with pytest.raises(ValueError, match=line):
            in_this_group(work)

    assert together(run) == [-signal.SIGKILL, 0]


@pytest.mark.parametrize("world", [2, 3])
def test_shares_are_the_whole_batches(data_root, world):
    """Micro-batches are as wide as in one process; one rank evaluates each validation example."""
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
    rows = [b.label for part in parts for b in part.evaluation_batches("val")]
    assert sorted(torch.cat(rows).tolist()) == sorted(whole.splits["val"].labels.tolist())
    assert sum(map(len, rows)) == 64


def test_another_number_of_launched_processes_is_an_error(data_root, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "test")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match=r"2 processes were launched, trainer\.devices is 1;"):
        trained(tmp_path)


def test_slurm_says_how_many_where_it_is_asked(monkeypatch):
    for key, value in {"NTASKS": "8", "NNODES": "2", "JOB_NAME": "job", "PROCID": "0"}.items():
        monkeypatch.setenv(f"SLURM_{key}", value)
    with pytest.raises(ValueError, match="--ntasks-per-node=8"):
        distributed.processes(smoke("unused", *TWO).trainer)
    monkeypatch.setenv("SLURM_NTASKS_PER_NODE", "4")
    one, launched = (distributed.processes(smoke("unused", *words).trainer) for words in ((), TWO))
    assert one.count == 1 and not one.to_launch
    assert (launched.count, launched.local) == (8, 4) and not launched.to_launch
    assert distributed.processes(smoke("unused", "trainer=ddp", "trainer.devices=2").trainer).to_launch


@pytest.mark.slow
@pytest.mark.parametrize("kill", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_the_command_starts_the_processes_and_resumes_after_a_kill(data_root, tmp_path, kill):
    two = (tmp_path, "trainer=ddp", "trainer.devices=2", "trainer.device=cpu")
    first, folder = start(*two), seed_folder(tmp_path, "cur_abs")
    wait(first, (folder / "last.ckpt").exists)
    os.kill(holder(folder / ".owner").pid if kill == signal.SIGKILL else first.pid, kill)
    _, err = first.communicate(timeout=60)
    assert first.returncode != 0 and "Traceback" not in err and not (folder / "record.json").exists()
    assert holder(folder / ".owner") is None
    again = start(*two)
    _, err = again.communicate(timeout=240)
    assert again.returncode == 0 and err.count("seed 0: test") == 1, err
    assert result(folder)["status"] == "done" and result(folder)["device"].startswith("2 x ")
    wrong = start(*two, "optim.lr=7")
    _, err = wrong.communicate(timeout=120)
    assert wrong.returncode == 1 and "Traceback" not in err
    assert err.count("was made by another configuration") == 1
