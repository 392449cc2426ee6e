"""lra data inspect: layouts, counts, differences from the official data, and damage with file and line."""

import gzip
import pickle
import shlex
import subprocess
import sys

import numpy as np
import pytest
from conftest import printed
from server import cifar, imdb, png, records, write_folder, write_tar

from data_prep import __main__ as command
from data_prep import inspect, survey
from data_prep.listops import ListOps, decode
from data_prep.pathfinder import generate
from lra.config import CONF

LISTOPS = {f"basic_{name}.tsv": b"Source\tTarget\n[MAX 2 9 ]\t9\n[MIN 2 9 ]\t2\n" for name in ("train", "val", "test")}
PAIRS = {f"new_aan_pairs.{name}.tsv": b"1.0\ta\tb\tc\tdd\n0.0\te\tf\tg\thhh\n" for name in ("train", "eval", "test")}


def images(count=6, size=32):
    drawn, labels = generate(size=size, count=count, seed=1)
    lines = [f"imgs/0 sample_{i}.png {i} {label} 1.8\n" for i, label in enumerate(labels)]
    files = {f"imgs/0/sample_{i}.png": png(image) for i, image in enumerate(drawn)}
    return files | {"metadata/0.npy": "".join(lines).encode()}


def below(folder, files):
    return {f"{folder}/{name}": data for name, data in files.items()}


INNER = "pathfinder32/curv_contour_length_14"
LAYOUTS = {
    "official release": (
        "lra_release/lra_release/listops-1000",
        "lra_release/lra_release/tsv_data",
        f"lra_release/{INNER}",
    ),
    "S4's data folder": ("listops", "aan", f"pathfinder/{INNER}"),
    "Kaggle's copy": ("listops/listops", "aan", f"pathfinder/pathfinder/{INNER}"),
    "files of several tasks": ("a", "b", f"c/{INNER}"),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("packed", [False, True])
def test_layouts_and_what_they_hold(tmp_path, capsys, layout, packed):
    listops, pairs, pathfinder = LAYOUTS[layout]
    files = below(listops, LISTOPS) | below(pairs, PAIRS) | below(pathfinder, images())
    root = tmp_path / ("release.tar" if packed else "root")
    if packed:
        write_tar(root, files)
    else:
        write_folder(root, files)
    assert inspect.main([str(root)]) == 0
    out = capsys.readouterr().out
    assert f"layout: {layout}" in out and ("archive" if packed else "folder") in out.splitlines()[0]
    assert "train         2 examples  length 4 / 4 / 4  labels 2:1 9:1" in out
    assert "val           2 examples  length 1 / 2 / 3  labels 0:1 1:1" in out
    assert "all           6 examples  length 1,024 / 1,024 / 1,024" in out
    assert "train has 2 examples, the official data 96,000" in out and "the official data 200,000" in out
    assert "cifar-10-binary.tar.gz: lra data task=image" in out
    commands = [shlex.split(line.partition("it: ")[2])[2:] for line in out.splitlines() if "to prepare it: " in line]
    places = {"listops": listops, "retrieval": pairs, "pathfinder": pathfinder}
    assert sorted(commands) == sorted([f"task={task}", f"source.release={root}/{places[task]}"] for task in places)


def test_the_command_that_is_printed_works(tmp_path, monkeypatch, capfd):
    root = write_folder(tmp_path / "root", below("x/listops-1000", LISTOPS))
    inspect.main([str(root)])
    out = capfd.readouterr().out
    words = shlex.split(next(line for line in out.splitlines() if "to prepare it" in line).partition("it: ")[2])[2:]
    stop, _, said = printed(command.prepare, *words, f"data.root={tmp_path}/data", patch=monkeypatch, capfd=capfd)
    assert stop is None and "train 2, val 2, test 2 examples ready" in said


HTML = b"<!DOCTYPE html>\n<title>403</title>"
HEAD = b"Source\tTarget\n"
EYE, SMALL = (png(np.eye(size, dtype=np.uint8)) for size in (32, 16))
IMAGE = f"{INNER}/imgs/0/sample_3.png"
BATCH = "cifar-10-batches-bin/data_batch_1.bin"
CUT = gzip.compress(LISTOPS["basic_val.tsv"])[:-9]
DAMAGE = {  # what is said, and the files that are changed
    "basic_val.tsv.gz is damaged": {"l/basic_val.tsv": None, "l/basic_val.tsv.gz": CUT},
    "basic_val.tsv, line 3: 1 columns instead of 2": {"l/basic_val.tsv": HEAD + b"[MAX 1 2 ]\t2\n[MIN 3"},
    "basic_val.tsv is a web page (HTML)": {"l/basic_val.tsv": HTML},
    "new_aan_pairs.eval.tsv: is empty": {"r/new_aan_pairs.eval.tsv": b""},
    "l/basic_test.tsv: is missing": {"l/basic_test.tsv": None},
    "test.tsv, line 2: 3 columns instead of 5": {"r/new_aan_pairs.test.tsv": b"1.0\ta\tb\tc\td\n1.0\ta\tb\n"},
    "test.tsv, line 1: the label is '2.0', not 0.0": {"r/new_aan_pairs.test.tsv": b"2.0\ta\tb\tc\td\n"},
    "basic_train.tsv, line 2: unknown token '[SUM'": {"l/basic_train.tsv": HEAD + b"[SUM 1 2 ]\t3\n"},
    "basic_train.tsv, line 2: is blank": {"l/basic_train.tsv": HEAD + b"\n[SM 1 2 ]\t3\n"},
    "basic_train.tsv: 45 more faults": {"l/basic_train.tsv": HEAD + b"1\n" * 50},
    "imgs/0/sample_3.png: is empty": {IMAGE: b""},
    "sample_3.png: is no readable image of 32 x 32": {IMAGE: SMALL},
    "imgs/0/sample_3.png: is missing": {IMAGE: None},
    "sample_3.png: is a web page": {IMAGE: HTML},
    "only 2 of 6 images are different": {f"{INNER}/imgs/0/sample_{i}.png": EYE for i in range(5)},
    "has no metadata/*.npy": {f"{INNER}/metadata/0.npy": None},
    "data_batch_1.bin: has 9,218 bytes, not records of 3,073": {BATCH: records(3, 0).tobytes()[:-1]},
    "test_batch.bin: is missing": {BATCH: records(3, 0).tobytes()},
    "tolerated: l/basic_val.tsv: mixed line ends": {"l/basic_val.tsv": b"Source\tTarget\r\n[MAX 1 2 ]\t2\n"},
    "tolerated: l/basic_val.tsv, line 1: starts with a byte order mark": {
        "l/basic_val.tsv": b"\xef\xbb\xbf" + HEAD + b"[MAX 1 2 ]\t2\n"
    },
    "tolerated: l/basic_val.tsv, line 2: no line end": {"l/basic_val.tsv": HEAD + b"[MAX 1 2 ]\t2"},
}


@pytest.mark.parametrize("message", DAMAGE)
def test_damage_is_named_with_file_and_line(tmp_path, capsys, message):
    files = below("l", LISTOPS) | below("r", PAIRS) | below(INNER, images()) | DAMAGE[message]
    root = write_folder(tmp_path / "root", {name: data for name, data in files.items() if data is not None})
    status = inspect.main([str(root)])
    out = capsys.readouterr().out.replace(f"{root}/", "")
    assert message in out and status == ("tolerated" not in message)
    assert ("damaged: " in out) == (status == 1)


def test_archives_of_reviews_and_pictures_and_other_copies(tmp_path, capsys):
    imdb(tmp_path / "aclImdb_v1.tar.gz", 5)
    cifar(tmp_path / "cifar.tar.gz", 4)
    for name, line in (("aclImdb_v1.tar.gz", "test         10 examples"), ("cifar.tar.gz", "train        20 examples")):
        assert inspect.main([str(tmp_path / name)]) == 0
        out = capsys.readouterr().out
        assert line in out and f"source.archive={tmp_path / name}" in out
    ListOps(min_length=5, max_length=20, train=5, val=5, test=5).prepare(tmp_path / "data")
    write_folder(tmp_path, {"hub/train.parquet": b"", "mega/input/train.src": b""})
    assert inspect.main([str(tmp_path)]) == 0
    out = capsys.readouterr().out
    for line in ("archive: ", "prepared data: ", "parquet files: ", "MEGA's lines", f"source.release={tmp_path}/mega"):
        assert line in out


def test_copies_in_pickles_are_read_and_nothing_is_executed(tmp_path, capsys):
    record = {"input_ids_0": np.array([11, 4, 9, 15, 0, 0]), "label": 3}
    batch = {b"data": records(3, 0)[:, 1:], b"labels": [1, 2, 2]}
    names = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]
    files = {f"cifar-10-batches-py/{name}": pickle.dumps(batch) for name in names}
    files |= {f"lra-listops.{part}.pickle": pickle.dumps([record] * 2) for part in ("train", "dev", "test")}
    pixels = {"input_ids_0": np.zeros(4096, np.int32), "label": 0}
    stem = "pathfinder64-curv_baseline"
    files |= {f"lra-{stem}.{part}.pickle": pickle.dumps([pixels]) for part in ("train", "dev", "test")}
    root = write_folder(tmp_path / "copies", files)
    assert inspect.main([str(root)]) == 0
    out = capsys.readouterr().out
    for line in (
        "train         2 examples  length 4 / 4 / 4  labels 3:2",
        f"lra data task=listops source.release={root}",
        "all splits have 3 images, the official data 200,000",
        f"task=pathfinder source.size=64 task.length=4096 source.contour=6 source.release={root}",
        "train        15 examples  length 1,024 / 1,024 / 1,024  labels 1:5 2:10",
        f"task=image source.archive={root}/cifar-10-batches-py",
    ):
        assert line in out
    write_tar(tmp_path / "cifar-10-python.tar.gz", {name: files[name] for name in files if "batch" in name})
    assert inspect.main([str(tmp_path / "cifar-10-python.tar.gz")]) == 0
    assert f"task=image source.archive={tmp_path}/cifar-10-python.tar.gz" in capsys.readouterr().out
    hostile = b"cos\nsystem\n(S'touch hacked'\ntR."
    write_folder(root, {"lra-listops.dev.pickle": hostile, "cifar-10-batches-py/data_batch_2": hostile})
    assert inspect.main([str(root)]) == 1
    damaged = [line for line in capsys.readouterr().out.splitlines() if "nothing in it was executed" in line]
    assert len(damaged) == 2 and "lra-listops.dev.pickle" in damaged[0] and "data_batch_2" in damaged[1]


def test_two_copies_are_compared(tmp_path, capsys):
    other = LISTOPS | {"basic_val.tsv": b"Source\tTarget\n1\t1\n"}
    for second, verdict in ((LISTOPS, "2 copies, equal"), (other, "2 copies, different; choose one")):
        root = write_folder(tmp_path / "root", below("a", LISTOPS) | below("a/b", second))
        inspect.main([str(root)])
        assert f"listops: {verdict}" in capsys.readouterr().out


def test_the_histogram_of_generated_answers_is_the_official_one():
    collector = survey.ListOpsCollector("here")
    trees = ListOps().examples(workers=2)
    rows = [f"{decode(ids)}\t{answer}\n".encode() for ids, answer in (next(trees) for _ in range(1200))]
    for name in collector.files.values():
        collector.add(name, [b"Source\tTarget\n", *rows])
    assert not [line for line in collector.differences(collector.splits) if "histogram" in line or "tokens" in line]
    wrong = survey.ListOpsCollector("here")
    for name in wrong.files.values():
        wrong.add(name, [b"Source\tTarget\n", *(b"[MAX %d ]\t%d\n" % (i % 10, i % 10) for i in range(1200))])
    lines = "\n".join(wrong.differences(wrong.splits))
    assert "histogram of the answers is not the official one" in lines and "1,200 expressions are not of 501" in lines


@pytest.mark.parametrize("words", [[], ["a", "b"], ["/nowhere"]])
def test_wrong_arguments_end_with_a_line(words, capsys):
    assert inspect.main(words) == 1
    said = "".join(capsys.readouterr())
    assert "usage" in said or "/nowhere does not exist" in said


def test_another_word_than_a_command_is_named(capsys):
    with pytest.raises(SystemExit, match=r"lra: data inspekt: no such command; it is one of inspect PATH, export"):
        command.command(["inspekt", "x"])


@pytest.mark.parametrize(("error", "said"), [(KeyboardInterrupt, "lra: interrupted\n"), (BrokenPipeError, "")])
def test_an_interrupt_and_a_reader_that_is_gone_end_without_a_traceback(error, said, tmp_path):
    program = "import sys; from data_prep import inspect\ndef fail(*_): raise {0}\ninspect.layout = fail"
    program += f"\nsys.exit(inspect.main([{str(tmp_path)!r}]))"
    process = subprocess.run(
        [sys.executable, "-c", program.format(error.__name__)], cwd=CONF.parent, capture_output=True, text=True
    )
    assert process.returncode == 1 and process.stderr == said
