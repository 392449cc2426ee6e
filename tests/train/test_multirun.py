"""Several runs with -m."""

from conftest import run
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

from lra.train import distributed
from lra.train.__main__ import train


def test_a_failing_run_of_several_stops_no_other_and_is_listed(data_root, tmp_path, monkeypatch, capfd):
    ended = []

    def seed(plan, seed, choices):
        if plan.experiment.label == "linear":
            raise RuntimeError("out of\nmemory")
        ended.append(plan.experiment.label)

    monkeypatch.setattr("lra.train.__main__.run_seed", seed)
    words = ["task=listops", "budget=smoke", "seeds=[0]", f"runs={tmp_path}"]
    several = ["model.heads=3,2", "attn=sdpa,linear,luna"]
    stop, error = run(train, "-m", *words, *several, patch=monkeypatch, capfd=capfd)
    assert ended == ["sdpa", "luna"]
    first, *lines = stop.splitlines()
    assert first == "lra: 4 failed, the others ended well"
    job = lambda heads, attn, why: f"  {' '.join(words)} model.heads={heads} attn={attn}: {why}"
    refused = "model.heads must divide model.dim 64, not 3; or set model.head_dim"
    expected = [job(3, name, refused) for name in ("sdpa", "linear", "luna")]
    assert lines == [*expected, job(2, "linear", "out of memory")]
    assert error.count("lra: failed: ") == 4 and error.count("Traceback") == 1


def test_a_run_on_several_devices_that_fails_stops_no_other_and_says_nothing_itself(tmp_path, monkeypatch, capfd):
    started = []

    def launch(arguments):
        started.append(arguments.training_script_args)
        raise ChildFailedError.__new__(ChildFailedError)

    monkeypatch.setattr(distributed.torchrun, "run", launch)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    words = ["task=listops", "budget=smoke", f"runs={tmp_path}"]
    words += ["trainer=ddp", "trainer.devices=2", "trainer.device=cpu"]
    stop, _ = run(train, "-m", *words, "attn=mean,sdpa", patch=monkeypatch, capfd=capfd)
    assert len(started) == 2 and stop.startswith("lra: 2 failed") and "attn=sdpa: one of its processes failed" in stop
    stop, error = run(train, *words, "attn=mean", patch=monkeypatch, capfd=capfd)
    assert (stop, error) == (1, "") and "OMP_NUM_THREADS" not in distributed.os.environ
