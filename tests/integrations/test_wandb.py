"""Weights & Biases: logged and resumed runs, an unreachable service, and the published report, read from its files."""

import http.server
import json
import re
import statistics
import struct
import sys
import threading
from collections.abc import Iterator
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import assert_error, config
from PIL import Image
from support.records import TESTS, add, add_seeds, diverged
from support.training import power_cut, seed_folder, train_config

from lra.board import chapter as board
from lra.config.compose import compose
from lra.integrations.wandb import logger
from lra.report import paper_tables, wandb
from lra.report.__main__ import ReportOptions, report
from lra.results import summary
from lra.runs import checkpoint, record
from lra.train.callbacks import Checkpoints

OPTIM = ("logger=wandb", "logger.wandb.timeout=5", "seeds=[0]", "optim.steps=4", "optim.eval_every=1")
WORDS = (*OPTIM, "model.layers=1", "model.dim=16", "data.eval_batch=64", "trainer.threads=1")
KEY = "0" * 40
# Sizes of blocks and headers, and types of parts, of a LevelDB log.
BLOCK, HEADER = 1 << 15, 7
FULL, LAST = 1, 4
needs_wandb = pytest.mark.skipif(not find_spec("wandb_workspaces"), reason="pip install -e '.[wandb]'")
# A W&B thread raises when wandb.teardown stops the service process it talks to.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")


def run(runs, *words):
    """Train one seed and return its run directory."""
    train_config(config("sdpa", f"runs={runs}", *WORDS, *words))
    return seed_folder(runs, "sdpa")


def logged(contents):
    metrics = lambda row: {key: value for key, value in row.items() if key[0] != "_"}
    return [{"step": row["_step"]} | metrics(row) for row in contents.history]


def assert_complete(run_dir):
    data = read_files(run_dir)
    assert data.summary["record"] == asdict(record.load(run_dir / "record.json"))
    assert logged(data) == checkpoint.read_metrics(run_dir)


def wandb_lines(capfd):
    return [line for line in capfd.readouterr().err.splitlines() if "W&B" in line or "wandb" in line]


def test_run_has_config_history_and_summary(service, data_root, tmp_path):
    run_dir = run(tmp_path / "runs", "logger.wandb.mode=offline", "logger.wandb.tags=[mine]", "optim.lr=0.002")
    data, saved = read_files(run_dir), record.load(run_dir / "record.json")
    run_info = data.messages["run"]
    assert (run_info.project, run_info.job_type, run_info.display_name) == ("lra", "train", "listops sdpa seed 0")
    assert run_info.run_group == "paper-smoke/listops/sdpa"
    assert list(run_info.tags) == ["paper-smoke", "listops", "sdpa", "paper", "smoke", "mine"]
    assert data.config["optim"]["lr"] == 0.002 and data.config["task"]["length"] == 128
    assert data.config["attn"]["_target_"] == "lra.attention.sdpa.SDPA"
    assert (data.config["seed"], data.config["fingerprint"], data.config["git"]) == (0, saved.fingerprint, saved.git)
    assert logged(data) == checkpoint.read_metrics(run_dir) and [row["step"] for row in logged(data)] == [1, 2, 3, 4]
    assert data.summary["test"] == saved.test and data.summary["record"] == asdict(saved)
    assert data.messages["exit"].exit_code == 0
    # The logger does not change the fingerprint.
    assert config("sdpa", *WORDS).choices({}) == config("sdpa", *WORDS[2:]).choices({})


def test_resumed_offline_run_is_complete(service, data_root, tmp_path):
    """The process crashes at the evaluation of step 3."""
    with power_cut(3):
        run(tmp_path, "logger.wandb.mode=offline")
    sys.modules["wandb"].teardown(exit_code=1)
    first = read_files(seed_folder(tmp_path, "sdpa"))
    assert [row["_step"] for row in first.history] == [1, 2, 3] and first.messages["exit"].exit_code == 1
    run_dir = run(tmp_path, "logger.wandb.mode=offline")
    assert read_files(run_dir).messages["run"].run_id == first.messages["run"].run_id
    assert_complete(run_dir)


def test_resumed_online_run_sends_missing_evaluations(service, data_root, tmp_path):
    """The service has the first two evaluations of an offline run; only the other two are sent."""
    run_dir = run(tmp_path, "logger.wandb.mode=offline")
    upload, resume_args = [], []
    sent_run = SimpleNamespace(step=3, log=lambda row, step, commit: upload.append({"step": step, **row}))
    service.setattr(logger, "open_run", lambda run_info, *, resume, **_: resume_args.append(resume) or sent_run)
    result = config("sdpa", f"runs={tmp_path}", *WORDS)
    logger.WandB(folder=run_dir, first_step=4, experiment=result, seed=0, fingerprint="f")
    assert resume_args == [True] and upload == checkpoint.read_metrics(run_dir)[2:] and len(upload) == 2


def test_training_survives_killed_wandb_service(service, data_root, tmp_path, capfd):
    psutil = pytest.importorskip("psutil", reason="looks for open connections: pip install psutil")
    original = Checkpoints.on_validation_end

    def kill(self, trainer, module):
        if trainer.global_step == 2:
            for process in psutil.Process().children():
                process.kill()
                process.wait()
        original(self, trainer, module)

    service.setattr(Checkpoints, "on_validation_end", kill)
    run_dir = run(tmp_path, "logger.wandb.mode=offline")
    _, line, _ = wandb_lines(capfd)
    assert line.endswith("listops sdpa seed 0 is not logged until it ends, then sent whole")
    assert_complete(run_dir)


class Broken(http.server.BaseHTTPRequestHandler):
    """A W&B service that answers every request with an error, and logs none."""

    do_GET = do_POST = lambda self: self.send_error(500)
    log_message = lambda *_: None


@pytest.mark.parametrize(
    ("answers", "word", "message"),
    [
        (None, "logger.wandb.timeout=5", "no key (wandb login, or WANDB_API_KEY); kept offline in {at}/wandb"),
        (False, "logger.wandb.mode=online", "{url} cannot be reached ("), (True, "logger.wandb.timeout=1", ""),
    ],
)  # fmt: skip
def test_unreachable_service_falls_back_to_offline_run(service, data_root, tmp_path, capfd, answers, word, message):
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Broken) as server:
        url = f"http://127.0.0.1:{server.server_port}"
        if answers is not None:
            service.setenv("WANDB_API_KEY", KEY)
            service.setenv("WANDB_BASE_URL", url)
        if answers:
            threading.Thread(target=server.serve_forever, daemon=True).start()
        else:
            server.server_close()
        run_dir = run(tmp_path, word)
        if answers:
            server.shutdown()
    (line,) = wandb_lines(capfd)
    assert line.startswith(f"W&B: {message.format(at=run_dir, url=url)}") and line.endswith("; wandb sync uploads it")
    assert_complete(run_dir)


def test_diverged_seed_is_a_failed_run(service, data_root, tmp_path):
    data = read_files(run(tmp_path, "logger.wandb.mode=offline", "optim.lr=1e30"))
    assert data.summary["record"]["status"] == "diverged" and data.messages["exit"].exit_code == 1


def test_missing_wandb_package_raises_with_install_command(data_root, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    assert_error(r"not installed: pip install -e '\.\[wandb\]'", run, tmp_path)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Runs of several mechanisms with one diverged seed and a control, a second study, and a board."""
    folder = tmp_path_factory.mktemp("reported") / "runs"
    for seed, test in enumerate(TESTS):
        add(folder, seed=seed, test=test, step_ms=10.0 + seed, peak_bytes=(seed + 1) << 20)
    diverged(folder, 9, seed=4)
    add(folder, label="cur_step", test=35.5)
    add(folder, label="cur_step", task="text", test=60.25)
    add(folder, label="local", task="pathfinder_x", test=50.0, study="other", device="x86_64 CPU, 2 threads")
    add(folder, label="mean", test=18.0)
    task_fields = {"task": "recall", "floor": 20.0, "bag": 24.0}
    for label, test in {"none": 20.0, "mean": 22.0, "conv": 30.0, "sdpa": 95.0}.items():
        add_seeds(folder, label, [test] * 2, study="board", **task_fields)
    add(folder, study="board-rates", label="sdpa-optim.lr=0.001", seed=100, **task_fields)
    return folder


@pytest.fixture(scope="module")
def tables(runs, tmp_path_factory):
    studies = summary.collect(runs)[0]
    return wandb.tables(studies, board.chapters(studies, [], tmp_path_factory.mktemp("board")))


def lines(table):
    return {line["mechanism"]: line for line in wandb.numbers(table).to_dict("records")}


def test_table_column_has_only_numbers_or_only_texts(tables):
    for key, table in tables.items():
        assert re.fullmatch(r"[A-Za-z_]\w*", key)
        for name, column in wandb.numbers(table).items():
            assert {type(value) for value in column} - {type(None)} in ({str}, {float}, {int}, {int, float}), name
    # A published failure is text, not a number.
    assert "FAIL" in {cell.text for cell in tables["leaderboard"].cells["pathfinder_x"]}


def test_table_numbers_match_records(tables):
    assert tables["study_paper_paper"].title == "paper-paper"
    data = lines(tables["study_paper_paper"])["cur_abs"]
    assert data["listops"] == pytest.approx(statistics.fmean(TESTS)) and data["listops n"] == 4
    assert data["listops std"] == pytest.approx(statistics.stdev(TESTS)) and data["text"] is None
    gain = lines(tables["over_mean_paper_paper"])
    assert gain["cur_abs"]["listops"] == pytest.approx(statistics.fmean(TESTS) - 18) and "mean" not in gain
    step = lines(tables["curformer_table_4"])["cur_step"]
    assert (step["run"], step["text"], step["text n"], step["text std"]) == ("paper-paper", 60.25, 1, None)
    # Tables of papers without one of our runs are left out.
    papers = {table.name for table in paper_tables.tables({})}
    assert not papers <= {table.name for table in tables.values()}


@needs_wandb
def test_report_publishes_offline(service, runs, tables, capfd):
    # A picture of an earlier report does not belong to this one.
    (runs / "report" / "figures").mkdir(parents=True)
    Image.new("RGB", (8, 4), "red").save(runs / "report" / "figures" / "costs.png")
    words = [f"runs={runs}", "logger=wandb", "logger.wandb.mode=offline", "~logger.wandb.tags", "~logger.wandb.project"]
    report.__wrapped__(compose(ReportOptions, words))
    out, err = capfd.readouterr()
    figures = [path for path in (runs / "report").glob("*/*.png") if path.stem != "costs"]
    upload = f"W&B: {len(tables)} tables and {len(figures)} pictures in {runs / 'report' / 'wandb'}\n"
    upload = f"W&B: kept offline in {runs / 'report' / 'wandb'}; wandb sync uploads it\n" + upload
    assert err == upload + "W&B: the dashboard needs a login and a connection, skipped\n" and "W&B" not in out

    data = read_files(runs / "report")
    assert data.messages["run"].job_type == "report" and data.messages["exit"].exit_code == 0
    (row,) = data.history
    (files,) = (runs / "report" / "wandb").glob("offline-run-*/files")
    for path in figures:
        assert (files / row[f"figures/{path.stem}"]["path"]).read_bytes() == path.read_bytes()
    assert {"board_board", "admission_board", "paper_paper_listops"} < tables.keys()
    for key, table in tables.items():
        upload = json.loads((files / row[key]["path"]).read_text())
        assert upload["columns"] == list(wandb.numbers(table))
        assert upload["data"] == wandb.numbers(table).to_numpy(dtype=object).tolist()


@needs_wandb
def test_dashboard_shows_every_table_figure_and_curve(runs, tables):
    studies = summary.collect(runs)[0]
    result = wandb.dashboard("lra", "", "report of it's", studies, tables, ["figures/curves"])
    # The conversion to W&B's own model validates the dashboard.
    result._to_model()
    grids = [block for block in result.blocks if type(block).__name__ == "PanelGrid"]
    panels = [panel for grid in grids for panel in grid.panels]
    assert [p.table_name for p in panels if hasattr(p, "table_name")] == list(tables)
    assert [p.media_keys for p in panels if hasattr(p, "media_keys")] == [["figures/curves"]]
    curves = [grid.runsets[0].filters for grid in grids if len(grid.panels) == 2]
    expected = [(study, row.task) for study, rows in studies.items() for row in rows]
    assert len(curves) == len(set(expected))
    for study, task in expected:
        assert any(f"[{study!r}]" in text and f"[{task!r}]" in text for text in curves)
    assert "https://doi.org/10.1007/s10994-025-06768-3" in result.blocks[-1].text


def chunks(path: Path) -> Iterator[bytes]:
    """Yield the records of a LevelDB log: 32 KiB blocks, each record in parts with checksum, length and type."""
    data = path.read_bytes()
    assert data[:4] == b":W&B"
    offset, record = HEADER, b""
    while offset + HEADER <= len(data):
        if BLOCK - offset % BLOCK < HEADER:
            offset += BLOCK - offset % BLOCK
        length, kind = struct.unpack_from("<HB", data, offset + 4)
        record += data[offset + HEADER : offset + HEADER + length]
        offset += HEADER + length
        if kind in (FULL, LAST):
            yield record
            record = b""


def insert(items, tree: dict) -> dict:
    """Set the value of each item at its key, or at its nested path of keys."""
    for item in items:
        *path, key = item.nested_key or [item.key]
        node = tree
        for name in path:
            node = node.setdefault(name, {})
        node[key] = json.loads(item.value_json)
    return tree


def read_files(folder: Path) -> SimpleNamespace:
    """Read the last message of each kind, the merged config and summary, and the history of the run in folder/wandb."""
    import wandb
    from wandb.proto.wandb_internal_pb2 import Record

    # W&B's process writes the file asynchronously.
    wandb.teardown()
    (path,) = (folder / "wandb").glob("*run-*/*.wandb")
    messages, config, summary, history = {}, {}, {}, []
    for entry in map(Record.FromString, chunks(path)):
        kind = entry.WhichOneof("record_type")
        message = messages[kind] = getattr(entry, kind)
        if kind == "run":
            insert(message.config.update, config)
        elif kind == "summary":
            insert(message.update, summary)
        elif kind == "history":
            history.append(insert(message.item, {}))
    return SimpleNamespace(messages=messages, config=config, summary=summary, history=history)
