"""Runs of Weights & Biases: what is in them, killed and resumed, and every way in which the service can be missing."""

import csv
import http.server
import sys
import threading
from dataclasses import asdict
from types import SimpleNamespace

import pytest
import wandb_files
from conftest import config
from support.training import power_cut, seed_folder, train_config

from lra.integrations.wandb import logger
from lra.runs import record
from lra.train.callbacks import Checkpoints

WORDS = (
    *("logger=wandb", "logger.wandb.timeout=5", "seeds=[0]", "optim.steps=4", "optim.eval_every=1"),
    *("model.layers=1", "model.dim=16", "data.eval_batch=64", "trainer.threads=1"),
)
KEY = "0" * 40
# A thread of W&B's notices that wandb.teardown has ended the service below it.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")


def run(runs, *words):
    """Train one seed; its folder."""
    train_config(config("sdpa", f"runs={runs}", *WORDS, *words))
    return seed_folder(runs, "sdpa")


def rows(at):
    with open(at / "metrics.csv", newline="") as file:
        return [{key: float(value) for key, value in row.items()} for row in csv.DictReader(file)]


def logged(contents):
    return [{"step": row["_step"]} | {k: v for k, v in row.items() if k[0] != "_"} for row in contents.history]


def assert_complete(at):
    found = wandb_files.read(at)
    assert found.summary["record"] == asdict(record.load(at / "record.json"))
    assert logged(found) == rows(at)


def lines(capfd):
    return [line for line in capfd.readouterr().err.splitlines() if "W&B" in line or "wandb" in line]


def test_what_a_run_holds(service, data_root, tmp_path):
    at = run(tmp_path / "runs", "logger.wandb.mode=offline", "logger.wandb.tags=[mine]", "optim.lr=0.002")
    found, saved = wandb_files.read(at), record.load(at / "record.json")
    about = found.messages["run"]
    assert (about.project, about.job_type, about.display_name) == ("lra", "train", "listops sdpa seed 0")
    assert about.run_group == "paper-smoke/listops/sdpa"
    assert list(about.tags) == ["paper-smoke", "listops", "sdpa", "paper", "smoke", "mine"]
    assert found.config["optim"]["lr"] == 0.002 and found.config["task"]["length"] == 128
    assert found.config["attn"]["_target_"] == "lra.attention.sdpa.SDPA"
    assert (found.config["seed"], found.config["fingerprint"], found.config["git"]) == (0, saved.fingerprint, saved.git)
    assert found.messages["environment"].cpu_count > 0
    assert logged(found) == rows(at) and [row["step"] for row in rows(at)] == [1, 2, 3, 4]
    assert found.summary["test"] == saved.test and found.summary["record"] == asdict(saved)
    assert found.messages["exit"].exit_code == 0


def test_the_logger_is_no_part_of_the_fingerprint():
    assert config("sdpa", *WORDS).choices({}) == config("sdpa", *WORDS[2:]).choices({})


@pytest.mark.parametrize("before_checkpoint", [False, True])
def test_a_resumed_offline_run_is_whole(service, data_root, tmp_path, before_checkpoint):
    """The process ends at the evaluation of step 3, before or after its checkpoint."""
    import wandb
    from lightning import Trainer

    save = Trainer.save_checkpoint

    def saved(self, path):
        if before_checkpoint and self.global_step == 3:
            raise RuntimeError("power cut")
        save(self, path)

    with service.context() as only, power_cut(3):
        only.setattr(Trainer, "save_checkpoint", saved)
        run(tmp_path, "logger.wandb.mode=offline")
    wandb.teardown(exit_code=1)
    first = wandb_files.read(seed_folder(tmp_path, "sdpa"))
    assert [row["_step"] for row in first.history] == [1, 2, 3] and first.messages["exit"].exit_code == 1
    at = run(tmp_path, "logger.wandb.mode=offline")
    assert wandb_files.read(at).messages["run"].run_id == first.messages["run"].run_id
    assert_complete(at)


def test_a_resumed_online_run_is_sent_the_rows_that_it_lacks(service, data_root, tmp_path):
    """The rows of an offline run, sent to a service that has the first two."""
    at = run(tmp_path, "logger.wandb.mode=offline")
    sent, opened = [], []

    def open_run(about, *, resume, **_):
        opened.append(resume)
        return SimpleNamespace(step=3, log=lambda row, step, commit: sent.append({"step": step, **row}))

    service.setattr(logger, "open_run", open_run)
    made = config("sdpa", f"runs={tmp_path}", *WORDS)
    logger.WandB(folder=at, first_step=4, experiment=made, seed=0, fingerprint="f", project="lra")
    assert opened == [True] and sent == [row for row in rows(at) if row["step"] >= 3] and len(sent) == 2


def test_a_service_that_ends_halfway_does_not_end_the_training(service, data_root, tmp_path, capfd):
    psutil = pytest.importorskip("psutil", reason="looks for open connections: pip install psutil")
    original = Checkpoints.on_validation_end

    def kill(self, trainer, module):
        if trainer.global_step == 2:
            for process in psutil.Process().children():
                process.kill()
                process.wait()
        original(self, trainer, module)

    service.setattr(Checkpoints, "on_validation_end", kill)
    at = run(tmp_path, "logger.wandb.mode=offline")
    (line,) = lines(capfd)
    assert line.endswith("listops sdpa seed 0 is not logged until it ends, then sent whole")
    assert_complete(at)


class Broken(http.server.BaseHTTPRequestHandler):
    """A service that only fails."""

    def do_GET(self):
        self.send_error(500)

    do_POST = do_GET

    def log_message(self, *_):
        """Nothing on stderr."""


@pytest.mark.parametrize(
    ("answers", "word", "told"),
    [
        (None, "logger.wandb.timeout=5", "no key (wandb login, or WANDB_API_KEY); kept offline in {at}/wandb"),
        (False, "logger.wandb.mode=online", "{url} cannot be reached ("),
        (True, "logger.wandb.timeout=1", ""),
    ],
    ids=["no key", "no connection", "only failures"],
)
def test_without_the_service_the_run_is_an_offline_one(service, data_root, tmp_path, capfd, answers, word, told):
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Broken) as server:
        url = f"http://127.0.0.1:{server.server_port}"
        if answers is not None:
            service.setenv("WANDB_API_KEY", KEY)
            service.setenv("WANDB_BASE_URL", url)
        if answers:
            threading.Thread(target=server.serve_forever, daemon=True).start()
        else:
            server.server_close()
        at = run(tmp_path, word)
        if answers:
            server.shutdown()
    (line,) = lines(capfd)
    assert line.startswith(f"W&B: {told.format(at=at, url=url)}") and line.endswith("; wandb sync uploads it")
    assert_complete(at)


def test_a_diverged_seed_is_a_failed_run(service, data_root, tmp_path):
    at = run(tmp_path, "logger.wandb.mode=offline", "optim.lr=1e30")
    found = wandb_files.read(at)
    assert found.summary["record"]["status"] == "diverged" and found.messages["exit"].exit_code == 1


@pytest.mark.parametrize("there", ["nothing", "a folder that other programs left"])
def test_a_missing_package_is_named(data_root, tmp_path, monkeypatch, there):
    if there == "nothing":
        monkeypatch.setitem(sys.modules, "wandb", None)
    else:
        (tmp_path / "wandb").mkdir()
        monkeypatch.delitem(sys.modules, "wandb", raising=False)
        monkeypatch.setattr(sys, "path", [str(tmp_path)])
        monkeypatch.setattr(sys, "path_importer_cache", {})
    with pytest.raises(ValueError, match=r"not installed: pip install '\.\[wandb\]'"):
        run(tmp_path)
    with pytest.raises(ValueError, match="mode must be one of online, offline, disabled, or null, not 'live'"):
        run(tmp_path, "logger.wandb.mode=live")
