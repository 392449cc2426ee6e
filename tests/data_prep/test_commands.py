"""The commands lra data (list, prepare, baselines) and lra data inspect (layouts, counts and damage of files)."""

import gzip
import hashlib
import pickle
import re
import shlex
from functools import partial
from itertools import islice
from unittest.mock import Mock

import numpy as np
import pytest
import server
from conftest import assert_error, config, deny_access
from server import INNER, RECORDS, cifar, image_files, imdb, nest, png, prepared, write_folder, write_release, write_tar

from data_prep import __main__ as command
from data_prep import baselines, inspect, survey
from data_prep.__main__ import PrepareOptions
from data_prep.adding import Adding
from data_prep.expressions import decode
from data_prep.image import OFFICIAL
from data_prep.listops import ListOps
from data_prep.pathfinder.listing import FOLDERS
from data_prep.retrieval import Retrieval
from data_prep.text import Text
from lra.config.compose import compose
from lra.config.quoting import override
from lra.runs import record
from lra.train.__main__ import train

show_baselines = baselines.baselines.__wrapped__
LISTOPS = {f"basic_{name}.tsv": server.HEAD + b"[MAX 2 9 ]\t9\n[MIN 2 9 ]\t2\n" for name in ("train", "val", "test")}
PAIRS = {f"new_aan_pairs.{name}.tsv": b"1.0\ta\tb\tc\tdd\n0.0\te\tf\tg\thhh\n" for name in ("train", "eval", "test")}
PYTHON_BATCH = pickle.dumps({b"data": RECORDS["test_batch"][:3, 1:], b"labels": [1, 2, 2]})
PYTHON_BATCHES = {f"cifar-10-batches-py/{name}": PYTHON_BATCH for name in RECORDS}


@pytest.fixture
def run_command(tmp_path, monkeypatch, call):
    """Run lra data in this process on an empty data folder: returns exit message (None on success), stdout, stderr."""
    monkeypatch.setenv("LRA_DATA", str(tmp_path / "data"))
    return partial(call, command.prepare)


def test_list_shows_each_task_and_how_to_prepare_it(run_command, tmp_path):
    stop, out, _ = run_command()
    sections = {part.split("\n")[0]: part for part in re.split(r"^(?=\S)", out, flags=re.M)[1:]}
    assert stop is None and list(sections) == command.TASKS and not (tmp_path / "data").exists()
    for text in sections.values():
        assert "not prepared" in text or "nothing to prepare" in text
        assert "  source  " in text and "  licence  " in text
    assert "train 200,000, val 5,000, test 5,000" in sections["adding"]
    assert "lra data task=listops" in sections["listops"]
    assert "source.dog=<path> source.donkey=<path>" in sections["genome"]


def test_list_shows_prepared_and_damaged_data(run_command, tmp_path, monkeypatch):
    monkeypatch.setattr(command, "TASKS", ["listops"])
    run_command("task=listops", "budget=smoke")
    (meta,) = (tmp_path / "data").glob("*/meta.json")
    sha = hashlib.sha256(meta.read_bytes()).hexdigest()[:12]
    line = f"train 256, val 64, test 64; 0.0 MB; sha256 {sha}; {meta.parent}"
    assert f"  prepared      {line}" in run_command("budget=smoke")[1]
    _, paper, _ = run_command()
    assert "not prepared" in paper and f"  other choices {line}" in paper
    (meta.parent / "val.tokens.bin").write_bytes(b"")
    assert "is damaged: 0 bytes instead of" in run_command("budget=smoke")[1]


def test_all_skips_user_files_and_continues_after_failure(run_command, tmp_path, monkeypatch):
    monkeypatch.setattr(command, "TASKS", ["adding", "genome", "listops", "temporal_order"])
    with monkeypatch.context() as patch:
        patch.setattr(ListOps, "splits", Mock(side_effect=OSError(28, "No space left")))
        stop, _, err = run_command("task=all", "budget=smoke")
    assert "1 of 4 tasks failed: listops" in stop and "No space left" in stop and "\n" not in stop
    assert "listops: failed" in err and "temporal_order_N128: train 256" in err
    stop, _, err = run_command("task=all", "budget=smoke")
    assert stop is None and len(list((tmp_path / "data").glob("*/"))) == 1
    assert "genome: left out" in err and "listops: train 256" in err
    assert "every checksum is correct" in run_command("task=all", "budget=smoke", "verify=true")[2]


def test_synthetic_task_stores_nothing(run_command, tmp_path):
    stop, _, err = run_command("task=adding", "task.length=16384")
    assert stop is None and "adding_N16384: train 200,000, val 5,000, test 5,000 examples, generated on the fly" in err
    assert_error("adding is generated on the fly; there is nothing to store", Adding().splits, workers=1, progress=None)
    assert not (tmp_path / "data").exists()


def test_baselines_are_cached_and_recorded_by_later_runs(data_root, tmp_path, monkeypatch, capsys):
    words = ["task=recall", "budget=smoke", f"data.root={tmp_path}"]

    def train_study(study):
        train.__wrapped__(config("none", *words, f"runs={tmp_path}", f"study={study}", "seeds=[0]"))
        return record.load(next(tmp_path.glob(f"{study}/**/record.json")))

    record_before = train_study("before")
    monkeypatch.setattr("lra.data.token_baselines.EPOCHS", 2)
    (tmp_path / "bags").touch()
    show_baselines(compose(PrepareOptions, words))
    unstored = capsys.readouterr()
    (tmp_path / "bags").unlink()
    show_baselines(compose(PrepareOptions, words))
    head, line, remark = capsys.readouterr().out.splitlines()
    assert unstored.out.splitlines() == [head, line, remark] and "the score is not stored" in unstored.err
    constant, analytic, floor, bag, first = map(float, line.split()[1:])
    assert remark.startswith("recall_N64_K4, first 1, 2, ... tokens: ") and f"{first:.2f}" in remark
    assert head.split() == list(baselines.HEAD) and analytic == 25 and floor == max(constant, 25)
    monkeypatch.setattr("lra.data.token_baselines.fit", lambda *_, **__: pytest.fail("it is fitted once"))
    show_baselines(compose(PrepareOptions, words))
    assert capsys.readouterr().out.splitlines() == [head, line, remark]
    record_after = train_study("after")
    assert record_before.floor == record_after.floor == floor
    assert record_before.bag is None and record_after.bag == pytest.approx(bag, abs=0.005)
    assert record_before.fingerprint == record_after.fingerprint and record_before.test == record_after.test
    assert record_after.constant_baseline == pytest.approx(constant, abs=0.005)


def test_baselines_of_all_tasks_skip_missing_data(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(baselines, "TASKS", ["adding", "genome", "retrieval"])
    show_baselines(compose(PrepareOptions, ["task=all", "budget=smoke", f"data.root={tmp_path}"]))
    out, err = capfd.readouterr()
    # Real values have neither an analytic nor a bag-of-tokens baseline.
    (line,) = out.splitlines()[1:]
    name, _, analytic, _, *scores = line.split()
    assert (name, analytic, scores) == ("adding_N128", "-", ["-", "-"])
    assert "genome: skipped, genome needs the cDNA of both species" in err and "retrieval: skipped" in err
    assert_error("task must be one of all, adding", show_baselines, compose(PrepareOptions, []))


def pickles(stem, record, count):
    return {f"lra-{stem}.{part}.pickle": pickle.dumps([record] * count) for part in ("train", "dev", "test")}


@pytest.fixture
def inspected(capsys):
    """Run lra data inspect on a path: returns the exit status and stdout."""
    return lambda path: (inspect.main([str(path)]), capsys.readouterr().out)


LAYOUTS = {
    "official release": ("lra_release/lra_release/listops-1000", "lra_release/tsv_data", f"lra_release/{INNER}"),
    "S4's data folder": ("listops", "aan", f"pathfinder/{INNER}"),
    "Kaggle's copy": ("listops/listops", "aan", f"pathfinder/pathfinder/{INNER}"),
    "files of several tasks": ("a", "b", f"c/{INNER}"),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", ["folder", "archive"])
def test_inspect_recognises_layout_and_counts_examples(tmp_path, inspected, layout, kind):
    listops, pairs, pathfinder = LAYOUTS[layout]
    files = nest(listops, LISTOPS) | nest(pairs, PAIRS) | nest(pathfinder, image_files())
    # Hydra needs quotes around a comma.
    root = write_release(tmp_path / "a, b", kind, files)
    status, out = inspected(root)
    assert status == 0 and f"layout: {layout}" in out and kind in out.splitlines()[0]
    assert "train         2 examples  length 4 / 4 / 4  labels 2:1 9:1" in out
    assert "val           2 examples  length 1 / 2 / 3  labels 0:1 1:1" in out
    assert "all          60 examples  length 1,024 / 1,024 / 1,024" in out
    assert f"{listops}/basic_train.tsv and {root}/{listops}/basic_test.tsv have the same content" in out
    assert "train has 2 examples, but the official data has 96,000" in out and "official data has 200,000" in out
    assert "cifar-10-binary.tar.gz: lra data task=image" in out
    commands = [shlex.split(line.partition("it: ")[2])[2:] for line in out.splitlines() if "to prepare it: " in line]
    folders = {"listops": listops, "retrieval": pairs, "pathfinder": pathfinder}
    release = lambda task: override("source.release", f"{root}/{folders[task]}")
    assert sorted(commands) == sorted([f"task={task}", release(task)] for task in folders)


HTML = b"<!DOCTYPE html>\n<title>403</title>"
SMALL = png(np.eye(16, dtype=np.uint8))
IMAGE = f"{INNER}/imgs/8/sample_3.png"
BATCH = "cifar-10-batches-bin/data_batch_1.bin"
CUT = gzip.compress(LISTOPS["basic_val.tsv"])[:-9]
REVIEWS = dict.fromkeys([f"aclImdb/{folder}/0_5.txt" for folder in ("train/pos", "test/neg", "test/pos")], b"good")
# The expected output, and the files to change.
DAMAGED_FILES = {
    "basic_val.tsv.gz is damaged": {"l/basic_val.tsv": None, "l/basic_val.tsv.gz": CUT},
    "basic_val.tsv, line 3: 1 columns instead of 2": {"l/basic_val.tsv": server.HEAD + b"[MAX 1 2 ]\t2\n[MIN 3"},
    "basic_val.tsv, line 2: the answer is 2, not 3": {"l/basic_val.tsv": server.HEAD + b"[MAX 1 2 ]\t3\n"},
    "basic_val.tsv is a web page (HTML)": {"l/basic_val.tsv": HTML},
    "new_aan_pairs.eval.tsv: is empty": {"r/new_aan_pairs.eval.tsv": b""},
    "l/basic_test.tsv: is missing": {"l/basic_test.tsv": None},
    "test.tsv, line 1: the label is '2.0', not 0.0": {"r/new_aan_pairs.test.tsv": b"2.0\ta\tb\tc\td\n"},
    "basic_train.tsv, line 2: unknown token '[SUM'": {"l/basic_train.tsv": server.HEAD + b"[SUM 1 2 ]\t3\n"},
    "basic_train.tsv, line 2: is blank": {"l/basic_train.tsv": server.HEAD + b"\n[SM 1 2 ]\t3\n"},
    "basic_train.tsv: 45 more faults": {"l/basic_train.tsv": server.HEAD + b"1\n" * 50},
    f"{INNER}: 5 more faults": dict.fromkeys([f"{INNER}/imgs/8/sample_{i}.png" for i in range(10)]),
    "imgs/8/sample_3.png: is empty": {IMAGE: b""},
    "sample_3.png: is not a readable image of 32 x 32": {IMAGE: SMALL},
    "imgs/8/sample_3.png: is missing": {IMAGE: None},
    "sample_3.png: cannot be read: Is a directory": {IMAGE: None, f"{IMAGE}/x": b""},
    "only 21 of 60 images are different": nest(INNER, server.EQUAL_IMAGES),
    "has no metadata/*.npy": nest(INNER, server.NO_METADATA),
    "data_batch_1.bin: has 18,437 bytes, not records of 3,073": {BATCH: RECORDS["test_batch"].tobytes()[:-1]},
    "it lacks data_batch_3": {name: PYTHON_BATCH for name in PYTHON_BATCHES if name[-1] != "3"},
    "test_batch.bin: is missing": {BATCH: RECORDS["test_batch"].tobytes()},
    "aclImdb/train/neg: is missing": REVIEWS,
    "q lacks test-1-of-2.arrow": {"q/test-0-of-2.arrow": b""},
    "tolerated: l/basic_val.tsv, line 2: no line end": {"l/basic_val.tsv": server.HEAD + b"[MAX 1 2 ]\t2"},
}


@pytest.mark.parametrize("message", DAMAGED_FILES)
def test_inspect_names_damaged_file_and_line(tmp_path, inspected, message):
    files = nest("l", LISTOPS) | nest("r", PAIRS) | nest(INNER, image_files()) | DAMAGED_FILES[message]
    root = write_folder(tmp_path / "root", {name: data for name, data in files.items() if data is not None})
    status, out = inspected(root)
    assert message in out.replace(f"{root}/", "") and status == ("tolerated" not in message)
    assert ("damaged: " in out) == (status == 1) and "source.archive=" not in out
    assert "val.tsv: is missing" not in out


def test_inspect_recognises_official_archives_and_other_formats(tmp_path, inspected):
    imdb(tmp_path / "aclImdb_v1.tar.gz", 5)
    cifar(tmp_path / "cifar.tar.gz")
    write_tar(tmp_path / "python.tar.gz", PYTHON_BATCHES)
    counts = {"aclImdb_v1.tar.gz": "test         10", "cifar.tar.gz": "train        30", "python.tar.gz": "labels 1:5"}
    for name, line in counts.items():
        status, out = inspected(tmp_path / name)
        assert status == 0 and line in out and f"source.archive={tmp_path / name}" in out
        # The command accepts the checksum of an archive that is not the official one; python.tar.gz has none.
        digest = hashlib.sha256((tmp_path / name).read_bytes()).hexdigest()
        assert (f" source.sha256={digest}" in out) == (name != "python.tar.gz")
    ListOps(min_length=5, max_length=20, train=5, val=5, test=5).prepare(tmp_path / "data")
    write_folder(tmp_path, {"hub/train/a.parquet": b"", "hub/test/a.parquet": b"", "my mega/input/train.src": b""})
    write_folder(tmp_path / "s4", {"tokenizer.pkl": b"", "train/data-0-of-1.arrow": b""})
    write_folder(tmp_path / "unpacked", REVIEWS | {"aclImdb/train/neg/0_5.txt": b"good"})
    status, out = inspected(tmp_path)
    for line in (
        "archive: ",
        "prepared data: ",
        f"parquet files: {tmp_path}/hub (2 files",
        f"aclImdb/train and {tmp_path}/unpacked/aclImdb/test have the same content",
        "MEGA's lines",
        "not read: a cache of S4 with ids of another vocabulary (tokenizer.pkl)",
        f"'source.release={tmp_path}/my mega'",
        "test          2 examples  length 4 / 4 / 4  labels 0:1 1:1",
    ):
        assert status == 0 and line in out


def test_inspect_takes_relative_paths_and_the_empty_image_of_the_release(tmp_path, inspected, monkeypatch):
    folder = f"pathfinder32/{FOLDERS[6]}"
    write_folder(tmp_path / folder, image_files(contour=6, **{"imgs/0/sample_172.png": b""}))
    for place in ("pathfinder32", folder):
        monkeypatch.chdir(tmp_path / place)
        status, out = inspected(".")
        assert status == 0 and "tolerated: " in out and "sample_172.png: is empty, as in the official release" in out
        assert "all has 60 examples, but the official data has 199,999" in out


def test_zip_archive_is_rejected_at_once(tmp_path, capsys):
    path = write_folder(tmp_path, {"a.zip": b"PK\3\4..."}) / "a.zip"
    message = "a.zip: zip archives are not read; unpack it"
    for make in (Text, Retrieval, lambda archive: ListOps(release=archive)):
        assert_error(message, make, archive=path)
    assert inspect.main([str(path)]) == 1 and message in capsys.readouterr().err


def test_inspect_reads_pickles_without_executing_them(tmp_path, inspected):
    expression = {"input_ids_0": np.array([11, 4, 9, 15, 0, 0]), "label": 3}
    image = {"input_ids_0": np.zeros(4096, np.int32), "label": 0}
    review = {"input_ids_0": np.ones(1000, np.int32), "label": 1}
    files = pickles("listops", expression, 2) | pickles("pathfinder64-curv_baseline", image, 1)
    files |= pickles("text", review, 7)
    root = write_folder(tmp_path / "copies", files | PYTHON_BATCHES)
    status, out = inspected(root)
    for line in (
        "train         2 examples  length 4 / 4 / 4  labels 3:2",
        f"lra data task=listops source.release={root}",
        "train         7 examples  length 1,000 / 1,000 / 1,000  labels 1:7",
        "21 texts have 1,000 tokens and none has more: longer ones were cut",
        f"lra data task=text_1k source.archive={root}",
        "all splits have 3 images, but the official data has 200,000",
        f"task=pathfinder source.size=64 task.length=4096 source.contour=6 source.release={root}",
        "train        15 examples  length 1,024 / 1,024 / 1,024  labels 1:5 2:10",
        f"task=image source.archive={root}/cifar-10-batches-py",
    ):
        assert status == 0 and line in out
    hostile = b"cos\nsystem\n(S'touch hacked'\ntR."
    write_folder(root, {"lra-listops.dev.pickle": hostile, "cifar-10-batches-py/data_batch_2": hostile})
    status, out = inspected(root)
    damaged = [line for line in out.splitlines() if "nothing in it was executed" in line]
    assert status == 1 and len(damaged) == 2
    assert "lra-listops.dev.pickle" in damaged[0] and "data_batch_2" in damaged[1]
    root = write_folder(tmp_path / "images", pickles("image", {"input_ids_0": np.zeros(1024, np.int32), "label": 0}, 4))
    assert "train and val have 8 examples, but the official data has 50,000" in inspected(root)[1]


def test_inspect_compares_copies(tmp_path, inspected):
    other_content = LISTOPS | {"basic_val.tsv": server.HEAD + b"1\t1\n"}
    for second_copy, verdict in ((LISTOPS, "2 copies, equal"), (other_content, "2 copies, different; choose one")):
        root = write_folder(tmp_path / "root", nest("a", LISTOPS) | nest("a/b", second_copy))
        assert f"listops: {verdict}" in inspected(root)[1]


def listops_differences(lines):
    """How ListOps with these lines in each file differs from the official data."""
    collector = survey.ListOpsCollector("here")
    for name in collector.files.values():
        collector.add(name, [server.HEAD, *lines])
    return "\n".join(collector.differences(collector.splits))


def test_survey_accepts_generated_listops_and_rejects_other_answers():
    trees = islice(ListOps().examples(workers=2), 1200)
    generated = listops_differences([f"{decode(ids)}\t{answer}\n".encode() for ids, answer in trees])
    assert "histogram" not in generated and "tokens" not in generated
    lines = listops_differences([b"[MAX %d ]\t%d\n" % (i % 10, i % 10) for i in range(1200)])
    assert "histogram of the answers is not the official one" in lines and "1,200 expressions do not have 501" in lines
    # Both bounds of the official lengths are exclusive.
    bounds = [survey.SplitSummary("train", lengths=[500, 501, 1_999, 2_000])]
    assert "train: 2 expressions do not have 501 to 1,999 tokens" in survey.ListOpsCollector("here").differences(bounds)


INVALID = {"": "usage", "a b": "usage", "/nowhere": "/nowhere does not exist", "a.tsv": "inspect its folder, "}


@pytest.mark.parametrize("words", INVALID)
def test_inspect_prints_usage_or_reason_for_invalid_arguments(words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(write_folder(tmp_path, {"a.tsv": server.HEAD}))
    assert inspect.main(words.split()) == 1 and INVALID[words] in "".join(capsys.readouterr())


def test_folders_without_permission_are_skipped(tmp_path, inspected, monkeypatch):
    root = write_folder(tmp_path / "disk", nest("listops", LISTOPS) | {"lost+found/x": b""})
    deny_access(monkeypatch, "lost+found")
    status, out = inspected(root)
    assert status == 0 and "listops: " in out
    assert len(prepared(ListOps(release=root), tmp_path / "data")["train"]) == 2
    assert OFFICIAL.prefer_copy_in(root) == OFFICIAL


def test_unknown_data_command_error_names_command(capsys):
    with pytest.raises(SystemExit, match=r"lra: data inspekt: no such command; it is one of inspect PATH, export"):
        command.command(["inspekt", "x"])


@pytest.mark.parametrize(("error", "said"), [(KeyboardInterrupt, "lra: interrupted\n"), (BrokenPipeError, "")])
def test_interrupt_and_broken_pipe_exit_without_traceback(error, said, tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(inspect, "layout", Mock(side_effect=error))
    assert inspect.main([str(tmp_path)]) == 1 and capfd.readouterr().err == said
