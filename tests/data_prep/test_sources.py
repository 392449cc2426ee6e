"""Files of data sets: downloads from a local server, and releases, which their content identifies, not their path."""

import base64
import hashlib
import http.server
import importlib.util
import os
import shutil
import signal
import threading
import time
from functools import partial
from pathlib import Path

import hydra
import pytest
from conftest import assert_error, slow, small_disk, until
from server import DATA, SHA256, assert_rejected, files_in, imdb, refused, silent, start, write_folder, write_tar

from data_prep import __main__ as command
from data_prep import download
from data_prep.archive import file_identity
from data_prep.download import Download
from data_prep.genome import Genome
from data_prep.image import OFFICIAL as CIFAR
from data_prep.listops import ListOps
from data_prep.pathfinder.generator import Pathfinder
from data_prep.release import OFFICIAL as RELEASE
from data_prep.retrieval import Retrieval
from data_prep.text import OFFICIAL as IMDB
from data_prep.text import Text
from lra.config import CONF
from lra.config.compose import compose
from lra.config.experiment import Experiment
from lra.data.store import StoreError
from lra.evaluate import restore
from lra.runs.run_dir import RunDir, check_choices
from lra.train.__main__ import train


class Handler(http.server.SimpleHTTPRequestHandler):
    """Serve files; at /cut and /stall half of DATA, after which the connection breaks off or nothing comes.

    The attribute login of the server is the header Authorization that each request must send, or None.
    """

    def do_GET(self):
        self.server.asked.append(self.path)
        if self.server.login not in (None, self.headers["Authorization"]):
            return self.send_error(401)
        if self.path not in ("/cut", "/stall"):
            return super().do_GET()
        self.send_response(200)
        self.send_header("Content-Length", str(len(DATA)))
        self.end_headers()
        self.wfile.write(DATA[: len(DATA) // 2])
        if self.path == "/stall":
            time.sleep(60)


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A local HTTP server of tmp_path/served, which contains file.tar.gz with the content DATA."""
    if importlib.util.find_spec("tensorflow_datasets") is None:
        pytest.skip("pip install -e '.[tfds]'")
    monkeypatch.setenv("NO_PROXY", "*")
    folder = write_folder(tmp_path / "served", {"file.tar.gz": DATA})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=folder)) as running:
        running.asked = []
        running.login = None
        running.url = lambda name: f"http://127.0.0.1:{running.server_port}/{name}"
        threading.Thread(target=running.serve_forever, args=(0.02,), daemon=True).start()
        yield running
        running.shutdown()


def test_download_is_verified_and_cached(server, tmp_path, capsys):
    request = Download(url=server.url("file.tar.gz"), sha256=SHA256, size=len(DATA))
    path = request.fetch(tmp_path / "downloads", silent)
    assert path.read_bytes() == DATA and files_in(tmp_path / "downloads") == [f"{SHA256[:8]}-file.tar.gz"]
    assert request.fetch(tmp_path / "downloads", silent) == path and len(server.asked) == 1
    path.write_bytes(DATA[:-1])
    assert request.fetch(tmp_path / "downloads", silent).read_bytes() == DATA and len(server.asked) == 2
    assert "has changed since it was downloaded" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("file.tar.gz", rf"200,000 bytes with sha256 {SHA256} instead of {'0' * 64}"),
        slow("cut", "the connection was interrupted"),
        slow("none", ": HTTP code 404; try another way: source.archive="),
        ("stall", "no data arrived for 1 s after"), ("http://127.0.0.1:1/closed", "no connection to 127.0.0.1:1"),
    ],
)  # fmt: skip
def test_failed_download_error_names_reason_and_leaves_no_file(server, tmp_path, monkeypatch, name, reason):
    if name == "stall":
        monkeypatch.setattr(download, "STALL", 1)
    url = name if "://" in name else server.url(name)
    message = refused(Download(url=url, sha256="0" * 64), tmp_path / "downloads")
    assert message.startswith(f"cannot download {Path(name).name} from {url}: ") and reason in message
    assert message.endswith("copied from elsewhere>; source.url=<address of a mirror>")


def test_download_uses_netrc_credentials(server, tmp_path, monkeypatch):
    server.login = f"Basic {base64.b64encode(b'me:secret').decode()}"
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password secret")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    request = Download(url=server.url("file.tar.gz"), sha256=SHA256)
    assert request.fetch(tmp_path / "downloads", silent).read_bytes() == DATA


def test_download_to_full_disk_raises(server, tmp_path):
    request = Download(url=server.url("file.tar.gz"), sha256=SHA256)
    with small_disk():
        assert "cannot be written (File too large); make room or" in refused(request, tmp_path / "downloads")
    huge = Download(url=server.url("file.tar.gz"), sha256=SHA256, size=10**18)
    num_requests = len(server.asked)
    assert "it has 1,000,000,000,000 MB" in refused(huge, tmp_path / "downloads") and len(server.asked) == num_requests


def test_interrupted_download_leaves_no_file(server, tmp_path):
    folder = tmp_path / "downloads"
    process = start(Download(url=server.url("stall")).fetch, folder, silent)
    until(lambda: [*folder.glob("*.tmp-*/*.tmp.*/stall")])
    os.kill(process.pid, signal.SIGINT)
    process.join(20)
    assert process.exitcode and files_in(folder) == []


def test_download_without_tfds_error_names_alternatives(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    message = refused(IMDB, tmp_path / "downloads")
    assert "tensorflow-datasets is not installed: pip install -e '.[tfds]'" in message
    assert "source.archive=<path of aclImdb_v1.tar.gz" in message and "stanfordnlp/imdb" in message
    assert "source.release=<a copy of the release" in refused(RELEASE, tmp_path / "downloads")


def test_local_archive_is_verified_and_used(tmp_path):
    path = tmp_path / "mine.gz"
    path.write_bytes(DATA)
    local = IMDB.replace(archive=path, sha256=SHA256)
    assert local.fetch(tmp_path / "downloads", silent) == path
    assert (local.substitute, IMDB.replace(sha256=IMDB.sha256).substitute) == (f"sha256 {SHA256[:12]}", None)
    message = refused(IMDB.replace(archive=path), tmp_path / "downloads")
    assert f"{path} has sha256 {SHA256} instead of {IMDB.sha256}: get aclImdb_v1.tar.gz from http://ai." in message
    assert f"lra data inspect {tmp_path} describes" in refused(IMDB.replace(archive=tmp_path), tmp_path / "downloads")
    unchecked = Download(url="http://127.0.0.1/file", archive=path)
    assert unchecked.fetch(tmp_path, silent) == path
    assert unchecked.identity == {"archive": {"bytes": 200_000, "sha256": SHA256}}


@pytest.mark.parametrize("wrong", ["c0ffee", "ftp://host/f", "https://me:secret@host/f"])
def test_invalid_url_or_checksum_error_hides_password(wrong):
    key = "url" if "/" in wrong else "sha256"
    assert "cret" not in assert_error(rf"source\.{key} must", IMDB.replace, **{key: wrong})


def test_official_urls_and_checksums_match_tfds():
    checksums = pytest.importorskip("tensorflow_datasets.core.download.checksums", reason="pip install -e '.[tfds]'")
    home = Path(checksums.__file__).parents[2]
    for official, table in ((IMDB, "datasets/imdb_reviews/checksums.tsv"), (CIFAR, "url_checksums/cifar10.txt")):
        info = checksums.load_url_infos(home / table)[official.url]
        assert (official.sha256, official.size) == (info.checksum, int(info.size))


def test_concurrent_processes_download_once(server, tmp_path):
    sha256 = imdb(tmp_path / "served" / "aclImdb_v1.tar.gz")["sha256"]
    # Two data sets from one file: each has its own lock, so only the lock of the download prevents a second one.
    sources = [Text(url=server.url("aclImdb_v1.tar.gz"), sha256=sha256, hold_out=n) for n in (0, 5)]
    processes = [start(source.prepare, tmp_path / "data") for source in sources]
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0] and server.asked == ["/aclImdb_v1.tar.gz"]
    assert [len(source.load(tmp_path / "data")["train"]) for source in sources] == [40, 35]


def test_file_fingerprint_detects_change_in_place(tmp_path, monkeypatch):
    monkeypatch.setattr("data_prep.archive.LARGE", 150)
    path = tmp_path / "file"
    for data in (b"", DATA[:50], b"x" + DATA[1:50], DATA):
        path.write_bytes(data)
        assert file_identity(path) == {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    assert_error("nothing cannot be read: No such file", file_identity, tmp_path / "nothing")


LISTOPS = {f"basic_{name}.tsv": b"Source\tTarget\n" + b"[MAX 2 9 ]\t9\n" * 8 for name in ("train", "val", "test")}
PAIRS = {f"new_aan_pairs.{name}.tsv": b"1.0\ta\tb\tc\td\n" * 9 for name in ("train", "eval", "test")}
FASTA = {"dog.fa": b">a\nACGTACGTACGT\n" * 9, "donkey.fa": b">b\n" + b"GATC" * 9}
REVIEWS = {f"aclImdb/{part}/{kind}/0_5.txt": b"good film" for part in ("train", "test") for kind in ("neg", "pos")}
# Overrides of each task; FOLDER is replaced by the folder of its files.
OPTIONS = {
    "listops": "task=listops source.release='FOLDER'",
    "retrieval": "task=retrieval source.release='FOLDER' source.train=null source.val=null source.test=null",
    "text": "task=text source.archive='FOLDER' source.train=null source.test=null source.val=null",
    "genome": "task=genome source.longer_than=1 source.dog='FOLDER/dog.fa' source.donkey='FOLDER/donkey.fa'",
}
# How the second run names the folder of the first run, which is a; HERE is the working directory.
PLACES = {"absolute": "HERE/a", "home": "~/a", "moved": "b", "gone": "a"}


def experiment(task, folder):
    """Compose an experiment of two training steps on the files in a folder."""
    arguments = [*OPTIONS[task].replace("FOLDER", folder).split(), "attn=mean", "budget=smoke", "seeds=[0]"]
    arguments += ["runs=runs", "data.root=data", "optim.steps=2", "optim.eval_every=1", "optim.warmup=0"]
    return compose(Experiment, [*arguments, "optim.batch=2", "data.pad=batch"])


@pytest.fixture
def home(tmp_path, monkeypatch):
    """The home directory, which is also the working directory; its folder a contains a release."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    write_folder(tmp_path / "a", LISTOPS | PAIRS | FASTA | REVIEWS)
    return tmp_path


def run_identity(experiment):
    return experiment.choices(experiment.data_source().provenance)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("task", OPTIONS)
def test_run_identity_does_not_depend_on_path_of_files(home, task, place):
    first = experiment(task, "a")
    first.data_source().prepare("data")
    choices = run_identity(first)
    if place == "moved":
        (home / "a").rename("b")
    if place == "gone":
        shutil.rmtree(home / "a")
    second = experiment(task, PLACES[place].replace("HERE", str(home)))
    assert run_identity(second) == choices and len(second.data_source().open("data")["test"]) > 0
    paths = [value for key, value in choices.items() if key.startswith("source.") and "_" not in key]
    assert not [value for value in paths if str(value).startswith(("/", "~", "a", "."))]


def test_finished_run_needs_no_source_files(home, call):
    train.__wrapped__(experiment("listops", "a"))
    (folder,) = (home / "runs").glob("**/seed-0")
    assert str(home) not in (folder / "config.yaml").read_text()
    shutil.rmtree(home / "a")
    # The run is finished, so this returns without training.
    train.__wrapped__(experiment("listops", "a"))
    run = RunDir.read(folder)
    _, data = restore.load_model_and_data(run, restore.restore_experiment(run, "data"))
    assert len(data.splits["test"]) == 8
    check_choices(folder, run_identity(experiment("listops", "a")))
    exit_message, _, log = call(command.prepare, "task=listops", "source.release=a", "data.root=data", "verify=true")
    assert exit_message is None and "does not exist; using the data prepared at" in log
    with pytest.raises(ValueError, match=r"data of this run are not in .*other; to make .*source.release=<path>"):
        restore.load_model_and_data(run, restore.restore_experiment(run, str(home / "other")))


def test_run_on_copy_is_restored_without_its_files(home):
    experiment("text", "a").data_source().prepare("data")
    train.__wrapped__(experiment("text", "a"))
    (folder,) = (home / "runs").glob("**/seed-0")
    check_choices(folder, run_identity(experiment("text", "a")))
    # Contents count, not only names and sizes.
    (home / "a/aclImdb/train/neg/0_5.txt").write_bytes(b"poor film")
    assert_error(r"provenance\.file\.sha256", check_choices, folder, run_identity(experiment("text", "a")))
    shutil.rmtree(home / "a")
    run = RunDir.read(folder)
    _, data = restore.load_model_and_data(run, restore.restore_experiment(run, "data"))
    assert len(data.splits["test"]) == 2
    with pytest.raises(ValueError, match=r"data of this run are not in .*other; to make .*source.archive=<path>"):
        restore.load_model_and_data(run, restore.restore_experiment(run, str(home / "other")))


def test_missing_folder_uses_data_prepared_from_same_path(home):
    write_folder(home / "b", LISTOPS | {"basic_val.tsv": b"Source\tTarget\n[MAX 2 8 ]\t8\n"})
    folders = {name: ListOps(release=name).prepare("data") for name in ("a", "b")}
    assert str(home) not in (folders["a"] / "SHA256SUMS").read_text()
    for name in folders:
        shutil.rmtree(home / name)
    assert {name: ListOps(release=name).folder("data") for name in folders} == folders
    with pytest.raises(StoreError, match="does not exist, and several data sets may have been prepared from it"):
        ListOps(release="c").folder("data")


def test_unchanged_files_are_not_hashed_again(home, monkeypatch):
    folder = ListOps(release="a").prepare("data")
    monkeypatch.setattr("data_prep.release.file_identity", lambda path: pytest.fail("the stamp is enough"))
    assert ListOps(release="a").folder("data") == folder
    os.utime(home / "a" / "basic_val.tsv")
    with pytest.raises(pytest.fail.Exception, match="the stamp is enough"):
        ListOps(release="a").folder("data")


def test_files_that_change_before_they_are_read_are_rejected(home):
    options = {"dog": home / "a" / "dog.fa", "donkey": home / "a" / "donkey.fa", "longer_than": 1}
    source = Genome(**options)
    source.folder(home / "data")
    options["dog"].write_bytes(b">a\nTTTT\n" * 9)
    assert_rejected(source, home / "data", "dog.fa, .*donkey.fa: the files have changed since")
    Genome(**options).prepare(home / "data")


def test_checksum_of_download_selects_its_data(home):
    archive = write_tar(home / "release.gz", PAIRS)["archive"]
    assert Retrieval(archive=archive).prepare("data") == Retrieval(archive=archive).folder("data")
    with pytest.raises(StoreError, match=r"has release .* instead of .*sha256.*aaaa"):
        Retrieval(archive=archive, sha256="a" * 64).load("data")


def make_source(words, release):
    overrides = [*f"task={words}".split(), f"data.release={release}", "attn=mean", "data.root=data"]
    return compose(Experiment, overrides).data_source()


def test_release_option_serves_each_task_it_contains(home):
    release = home / "a"
    write_tar(release / "aclImdb_v1.tar.gz", {})
    write_folder(release / "pathfinder128/curv_contour_length_14", {"metadata/0.npy": b""})
    for task in ("listops", "retrieval", "pathfinder_x"):
        assert make_source(task, release).location() == str(release)
    assert make_source("text", release).download.archive == release / "aclImdb_v1.tar.gz"
    assert make_source("image", release).download.archive is None
    # Smaller budgets, other sizes and other options are generated; source.release takes precedence over data.release.
    for words in ("listops source.seed=3", "listops budget=quick", "pathfinder", "pathfinder_x source.void=false"):
        assert make_source(words, release).release is None
    assert make_source("listops source.release=b", release).release.path.name == "b"
    # If only some files of a task exist, the error names the missing one.
    (release / "new_aan_pairs.eval.tsv").unlink()
    assert_error("a/new_aan_pairs.eval.tsv is missing", lambda: make_source("retrieval", release).provenance)


def test_tilde_is_expanded_in_each_path_option(home, monkeypatch):
    monkeypatch.setenv("LRA_DATA", "~/x")
    monkeypatch.setenv("LRA_RELEASE", "~/a")
    cfg = compose(Experiment, ["task=listops", "attn=mean", "runs='~/r'", "pretrain=masked", "pretrain.from='~/p'"])
    assert cfg.data.root == home / "x" and cfg.data.release == home / "a"
    assert cfg.runs == home / "r" and cfg.pretrain.from_ == home / "p"
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        hydra_config = hydra.compose("train", ["task=listops", "attn=mean", "runs='~/r'"], return_hydra_config=True)
    assert hydra_config.hydra.sweep.dir == str(home / "r") and ListOps(release="~/a").release.path == home / "a"
    assert Retrieval(archive="~/a.gz").download.archive == home / "a.gz"
    assert Pathfinder(release="~/a").path == home / "a"
    ListOps(min_length=5, max_length=20, train=5, val=5, test=5).prepare("~/x")
    assert not (home / "~").exists() and list((home / "x").glob("listops-*/"))
