"""Runs of Weights & Biases: what is in them, killed and resumed, and every way in which the service can be missing."""

import csv
import http.server
import importlib.util
import socket
import threading
from dataclasses import asdict

import pytest
import wandb_files
from conftest import config

from lra import record
from lra.callbacks import Checkpoints
from lra.train import train

train_config = train.__wrapped__
needs_wandb = pytest.mark.skipif(
    importlib.util.find_spec("wandb") is None, reason="needs wandb: pip install '.[wandb]'"
)
WORDS = ("logger=wandb", "logger.wandb.timeout=2", "optim.steps=12", "optim.eval_every=3", "seeds=[0]")


@pytest.fixture
def service(tmp_path, monkeypatch):
    """No key, no settings, an empty working directory, and a session of wandb that begins and ends with the test."""
    import wandb

    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_PROJECT", "NETRC"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    wandb.teardown()
    yield monkeypatch
    wandb.teardown()
    assert not list((tmp_path / "cwd").iterdir())


def run(runs, *words):
    """Train one seed; its folder."""
    cfg = config("cur_random", f"runs={runs}", *WORDS, *words)
    train_config(cfg)
    return folder(runs)


def folder(runs):
    return runs / "paper-smoke" / "listops" / "cur_random" / "seed-0"


def rows(at):
    with open(at / "metrics.csv", newline="") as file:
        return [{key: float(value) for key, value in row.items()} for row in csv.DictReader(file)]


def logged(contents):
    return [{"step": row.pop("_step")} | {k: v for k, v in row.items() if k[0] != "_"} for row in contents.history]


@needs_wandb
def test_what_a_run_holds(service, data_root, tmp_path):
    at = run(tmp_path / "runs", "logger.wandb.mode=offline", "logger.wandb.tags=[mine]", "optim.lr=0.002")
    found, saved = wandb_files.read(at), record.load(at / "record.json")
    about = found.messages["run"]
    assert (about.project, about.job_type) == ("lra", "train")
    assert about.run_group == "paper-smoke/listops/cur_random"
    assert list(about.tags) == ["listops", "cur_random", "paper", "smoke", "mine"]
    assert found.config["optim"]["lr"] == 0.002 and found.config["attn"]["score"] == "random"
    assert found.config["task"]["length"] == 128 and found.config["seed"] == 0
    assert (found.config["fingerprint"], found.config["git"]) == (saved.fingerprint, saved.git)
    assert found.messages["environment"].cpu_count > 0
    assert logged(found) == rows(at) and len(rows(at)) == 4
    assert found.summary["test"] == saved.test and found.summary["record"] == asdict(saved)
    assert found.messages["exit"].exit_code == 0


@needs_wandb
@pytest.mark.parametrize("where", ["after the checkpoint", "before the checkpoint"])
def test_a_resumed_run_is_one_run_with_every_step_once(service, data_root, tmp_path, where):
    import wandb

    runs, original = tmp_path / "runs", Checkpoints.on_validation_end

    def crash(self, trainer, module):
        if where == "before the checkpoint" and trainer.global_step == 9:
            patch.setattr(type(trainer), "save_checkpoint", lambda *_: 1 / 0)
        original(self, trainer, module)
        if trainer.global_step == 9:
            raise ZeroDivisionError

    with service.context() as patch, pytest.raises(ZeroDivisionError):
        patch.setattr(Checkpoints, "on_validation_end", crash)
        run(runs, "logger.wandb.mode=offline")
    wandb.teardown(exit_code=1)
    first = wandb_files.read(folder(runs))
    assert [row["_step"] for row in first.history] == [3, 6, 9] and first.messages["exit"].exit_code == 1

    at = run(runs, "logger.wandb.mode=offline")
    second = wandb_files.read(at)
    assert second.messages["run"].run_id == first.messages["run"].run_id
    assert [row["_step"] for row in second.history] == [3, 6, 9, 12]
    assert logged(second) == rows(at)
    assert second.summary["record"]["status"] == "done"


def closed_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@pytest.fixture
def broken_server():
    """Answers every request with status 500."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def answer(self):
            self.send_error(500)

        do_GET = do_POST = do_HEAD = answer

        def log_message(self, *_):
            """Nothing on stderr."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_address[1]
    server.shutdown()


def lines(capfd):
    return [line for line in capfd.readouterr().err.splitlines() if "W&B" in line or "wandb" in line]


def assert_complete(at):
    found = wandb_files.read(at)
    assert found.summary["test"] == record.load(at / "record.json").test and logged(found) == rows(at)


@needs_wandb
def test_no_key_is_an_offline_run_with_a_hint(service, data_root, tmp_path, capfd):
    at = run(tmp_path / "runs")
    (line,) = lines(capfd)
    assert line == f"W&B: no key (wandb login, or WANDB_API_KEY); kept offline in {at}/wandb; wandb sync brings it up"
    assert_complete(at)


@needs_wandb
def test_no_connection_is_an_offline_run(service, data_root, tmp_path, capfd):
    url = f"http://127.0.0.1:{closed_port()}"
    service.setenv("WANDB_API_KEY", "0" * 40)
    service.setenv("WANDB_BASE_URL", url)
    at = run(tmp_path / "runs", "logger.wandb.mode=online")
    (line,) = lines(capfd)
    assert line.startswith(f"W&B: {url} cannot be reached (") and "Connection refused" in line
    assert_complete(at)


@needs_wandb
def test_service_that_fails_is_an_offline_run(service, broken_server, data_root, tmp_path, capfd):
    service.setenv("WANDB_API_KEY", "0" * 40)
    service.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{broken_server}")
    at = run(tmp_path / "runs")
    (line,) = lines(capfd)
    assert line.startswith("W&B: ") and line.endswith("wandb sync brings it up")
    assert_complete(at)
