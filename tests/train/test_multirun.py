"""Several runs with -m."""

from test_config import run

from lra.train.__main__ import train


def test_a_failing_run_of_several_stops_no_other_and_is_listed(data_root, tmp_path, monkeypatch, capfd):
    ended = []

    def seed(plan, seed, choices):
        if plan.config.label == "linear":
            raise RuntimeError("out of\nmemory")
        ended.append(plan.config.label)

    monkeypatch.setattr("lra.train.__main__.run_seed", seed)
    words = ["task=listops", "budget=smoke", "seeds=[0]", f"runs={tmp_path}"]
    several = ["model.heads=3,2", "attn=sdpa,linear,luna"]
    stop, error = run(train, "-m", *words, *several, patch=monkeypatch, capfd=capfd)
    assert ended == ["sdpa", "luna"]
    first, *lines = stop.splitlines()
    assert first == "lra: 4 failed, the others ended well"
    job = lambda heads, attn: f"  {' '.join(words)} model.heads={heads} attn={attn}: "
    assert lines[:3] == [
        job(3, name) + "model.heads must divide model.dim 64, not 3; or set model.head_dim"
        for name in ("sdpa", "linear", "luna")
    ]
    assert lines[3:] == [job(2, "linear") + "out of memory"]
    assert error.count("lra: failed: ") == 4 and error.count("Traceback") == 1
