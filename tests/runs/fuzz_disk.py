"""Damage to every file that runs and data sets leave on disk, and what each command makes of it.

    python tests/runs/fuzz_disk.py 200 7        number of trials, and the seed that they are drawn from

A trial copies a folder, harms one file of it and gives a command. It holds if the command does what it does without the
harm, or says one line with the name of the file: as it ends with exit status 1, or as it skips the file. A traceback, a
wait without end and another number without a word do not hold.
"""

import contextlib
import io
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import torch

from data_prep.__main__ import prepare
from lra.maps.__main__ import show
from lra.report.__main__ import report
from lra.runs import bench_record as bench
from lra.studies.transfer.__main__ import transfer
from lra.studies.transfer.show import show as transfer_show
from lra.train.__main__ import train
from lra.train.callbacks import Checkpoints

PATIENCE = 40  # seconds
MEASURED = ("step_ms", "peak_bytes", "git", "date", "command")  # differ from run to run
SMOKE = ["task=listops", "budget=smoke", "attn=sdpa", "trainer.device=cpu"]


class Hang(BaseException):
    """No end within PATIENCE; not an Exception, which a command might take for its own."""


# ---------------------------------------------------------------------------------------------------------- damage


def flip(path: Path, sibling: Path, draw: random.Random) -> None:
    data = bytearray(path.read_bytes())
    data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    path.write_bytes(data)


def truncate(path: Path, sibling: Path, draw: random.Random) -> None:
    os.truncate(path, draw.randrange(path.stat().st_size))


def empty(path: Path, sibling: Path, draw: random.Random) -> None:
    path.write_bytes(b"")


def missing(path: Path, sibling: Path, draw: random.Random) -> None:
    path.unlink()


def folder(path: Path, sibling: Path, draw: random.Random) -> None:
    path.unlink()
    path.mkdir()


def fifo(path: Path, sibling: Path, draw: random.Random) -> None:
    path.unlink()
    os.mkfifo(path)


def garbage(path: Path, sibling: Path, draw: random.Random) -> None:
    path.write_bytes(draw.randbytes(path.stat().st_size))


def nan(path: Path, sibling: Path, draw: random.Random) -> None:
    """One number is none any more: a NaN in text, all of a tensor in weights, eight bytes of ones in binary files."""
    if path.suffix == ".ckpt":
        state = torch.load(path, weights_only=True)
        weights = state.get("state_dict", state)
        weights[draw.choice(sorted(weights))].fill_(float("nan"))
        torch.save(state, path)
    elif path.suffix == ".bin":
        at = 8 * draw.randrange(path.stat().st_size // 8)
        data = path.read_bytes()
        path.write_bytes(data[:at] + b"\xff" * 8 + data[at + 8 :])
    else:
        text = path.read_text()
        number = draw.choice([*re.finditer(r"(?<![\w.\-])-?\d+(\.\d+)?", text)])
        word = {".yaml": ".nan", ".csv": "nan"}.get(path.suffix, "NaN")
        path.write_text(text[: number.start()] + word + text[number.end() :])


def foreign(path: Path, sibling: Path, draw: random.Random) -> None:
    """The file of the same name from a folder of the same kind, or a file of another kind."""
    others = [sibling / path.name, *sorted(other for other in path.parent.iterdir() if other.is_file())]
    shutil.copy(draw.choice([other for other in others if other.is_file() and other != path]), path)


DAMAGE = (flip, truncate, empty, missing, folder, fifo, garbage, nan, foreign)


# -------------------------------------------------------------------------------------------------------- commands


class Case(NamedTuple):
    """A command over files below ``place``; ``sibling``: where files of the same name and kind are. ``result``: what is
    compared, of the folder that the command worked in and of what it printed."""

    name: str
    place: str
    sibling: str
    entry: Callable
    words: list[str]
    result: Callable[[Path, str], object]


def scores(file: str) -> Callable[[Path, str], object]:
    def read(home: Path, _: str) -> object:
        return {
            path.relative_to(home): {k: v for k, v in json.loads(path.read_text()).items() if k not in MEASURED}
            for path in sorted(home.rglob(file))
            if path.is_file()
        }

    return read


def contents(*patterns: str) -> Callable[[Path, str], object]:
    # The ids in matplotlib's SVG are drawn by chance, and a page has links to those checkpoints that are there.
    plain = lambda data: re.sub(rb"\b[a-z][0-9a-f]{10}\b|<a href=[^>]*>\w+\.ckpt</a>", b"", data)
    return lambda home, _: {
        path: plain(path.read_bytes()) for pattern in patterns for path in sorted(home.glob(pattern)) if path.is_file()
    }


def printed(_: Path, text: str) -> object:
    return text


RUN = "runs/paper-smoke/listops/sdpa"
MOVED = "runs/transfer/paper-smoke/listops/sdpa/mean"
TABLES = contents("report/tables/*.csv", "report/report.md", "report/index.html")
GRAFT = ["attn=mean", "examples=4", "spectrum=0", "trainer.device=cpu"]
SEED, OTHER = f"{RUN}/seed-0", f"{RUN}/seed-1"
CUT = lambda home, _: (scores("record.json")(home, _), contents("cut/**/metrics.csv")(home, _))
SHORT = ["seeds=[9]", "optim.steps=4", "optim.eval_every=4"]
CASES = [
    Case("resume", f"cut/{SEED}", OTHER, train, [*SMOKE, "seeds=[0]", "runs=cut/runs"], CUT),
    Case("again", SEED, OTHER, train, [*SMOKE, "seeds=[0]"], scores("record.json")),
    Case("report", SEED, OTHER, report, ["out=report"], TABLES),
    Case("bench", "runs/bench/fuzz/f", "runs/bench/other/f", report, ["out=report"], TABLES),
    Case("show", SEED, OTHER, show, [f"run={SEED}", "out=maps"], contents("maps/*.png")),
    Case("transfer", SEED, OTHER, transfer, [f"run={SEED}", "runs=new", *GRAFT], scores("transfer.json")),
    Case("moved", f"{MOVED}/seed-0", f"{MOVED}/seed-1", transfer, [f"run={SEED}", *GRAFT], scores("transfer.json")),
    Case("tables", f"{MOVED}/seed-0", f"{MOVED}/seed-1", transfer_show, ["out=moved"], contents("moved/transfer.md")),
    Case("data", "data/listops-*", "other/listops-*", train, [*SMOKE, *SHORT], scores("record.json")),
    Case("verify", "data/listops-*", "other/listops-*", prepare, [*SMOKE[:2], "verify=true"], printed),
]
QUICK = ("again", "verify", "moved", "tables")  # which neither train nor draw


def command(entry: Callable, words: list[str]) -> tuple[object, str]:
    """The failure of an entry point in this process, None if there is none, and what it printed on stderr."""
    told, argv = io.StringIO(), sys.argv
    sys.argv = ["lra", *words]
    try:
        with contextlib.redirect_stderr(told), contextlib.redirect_stdout(io.StringIO()):
            entry()
        return None, told.getvalue()
    except SystemExit as stop:
        return stop.code, told.getvalue()
    except (Exception, Hang) as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        return error, f"{told.getvalue()}{type(error).__name__} in {Path(frame.filename).name}:{frame.lineno}: {error}"
    finally:
        sys.argv = argv


def bench_record(name: str, ms: float) -> None:
    row = bench.Row(
        what="step",
        mode="training",
        mechanism="sdpa",
        task="listops",
        pad="fixed",
        n=128,
        batch=8,
        heads=2,
        head_dim=32,
        dtype="float32",
        samples=(ms, ms + 1),
        calls=1,
        peak_bytes=10**6,
        roofline_bytes=10**5,
        flops=10**6,
        roofline_ms=0.1,
        claimed=2.0,
        status="ok",
    )
    machine = bench.Machine(
        hardware="a CPU",
        device="cpu",
        threads=1,
        python="3",
        torch="2",
        triton=None,
        allocator={},
        load=0.1,
        copy=1e9,
        matmul={"float32": 1e10},
    )
    made = bench.BenchRecord(name=name, fingerprint="f", git=None, choices={}, machine=machine, seconds=1.5, rows=[row])
    bench.save(made, Path("runs"))


def make() -> None:
    """Everything undamaged, below the working directory."""
    for root, words in (("other", ["source.seed=1"]), ("data", [])):
        assert command(prepare, ["task=listops", "budget=smoke", f"data.root={root}", *words])[0] is None
    assert command(train, [*SMOKE, "seeds=[0,1,2]"])[0] is None
    for seed in (0, 1):
        assert command(transfer, [f"run={RUN}/seed-{seed}", *GRAFT])[0] is None
    for name, ms in (("fuzz", 3.0), ("other", 4.0)):
        bench_record(name, ms)
    saved = Checkpoints.on_validation_end

    def cut(self, trainer, module):
        saved(self, trainer, module)
        raise RuntimeError("power cut")

    Checkpoints.on_validation_end = cut
    try:
        assert "power cut" in command(train, [*SMOKE, "seeds=[0]", "runs=cut/runs"])[1]
    finally:
        Checkpoints.on_validation_end = saved


@contextlib.contextmanager
def inside(place: Path) -> Iterator[None]:
    before, root = Path.cwd(), os.environ.get("LRA_DATA")
    os.chdir(place)
    os.environ["LRA_DATA"] = "data"
    try:
        yield
    finally:
        os.chdir(before)
        os.environ.pop("LRA_DATA")
        if root is not None:
            os.environ["LRA_DATA"] = root


@contextlib.contextmanager
def patience() -> Iterator[None]:
    def stop(*_):
        raise Hang(f"no end after {PATIENCE} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(PATIENCE)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def outcome(case: Case) -> tuple[object, str, object]:
    """The outcome of a command in the working directory, its message and its result."""
    with patience():
        stop, told = command(case.entry, case.words)
    try:
        return stop, told, case.result(Path(), told)
    except (OSError, ValueError) as error:  # of a file that was harmed and is left so
        return stop, told, error


def verdict(stop: object, told: str, result: object, expected: object, name: str) -> str | None:
    """Why a trial does not hold, None where it does."""
    if isinstance(stop, BaseException) or "Traceback" in told:
        return told.strip().splitlines()[-1]
    if stop is not None:
        clear = isinstance(stop, str) and stop.startswith("lra: ") and "\n" not in stop and name in stop
        return None if clear else f"exit: {stop}"
    if result == expected or any(name in line for line in told.splitlines()):
        return None
    return "another result without a word"


def only(pattern: str) -> Path:
    (found,) = (path for path in Path().glob(pattern) if path.is_dir())
    return found


def files(case: Case) -> list[Path]:
    home = only(case.place)
    return sorted(path for path in home.iterdir() if path.is_file() and not path.name.startswith("."))


def fuzz(trials: int, seed: int, home: Path, cases: list[Case] = CASES) -> tuple[int, list[str]]:
    """Numbers of trials, and a line for each that does not hold."""
    draw, failed = random.Random(seed), []
    whole = home / "whole"
    whole.mkdir()
    with inside(whole):
        make()
        drawn = [(case, path, damage) for case in cases for path in files(case) for damage in DAMAGE]
    draw.shuffle(drawn)
    expected = {}
    for case in cases:
        with inside(shutil.copytree(whole, home / "trial")):
            stop, told, expected[case.name] = outcome(case)
            assert stop is None, told
        shutil.rmtree(home / "trial")
    chosen = (drawn * -(-trials // len(drawn)))[:trials]
    for case, path, damage in chosen:
        with inside(shutil.copytree(whole, home / "trial")):
            damage(path, only(case.sibling), draw)
            if why := verdict(*outcome(case), expected[case.name], path.name):
                failed.append(f"{case.name}, {damage.__name__} of {path}: {why}")
        shutil.rmtree(home / "trial")
    return len(chosen), failed


if __name__ == "__main__":
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    torch.set_num_threads(1)
    count, seed = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else random.randrange(2**32)
    with tempfile.TemporaryDirectory() as temporary:
        tried, failed = fuzz(count, seed, Path(temporary).resolve())
    print(*failed, sep="\n")
    print(f"seed {seed}: {tried} tried, {tried - len(failed)} held; ", end="")
    print(dict(Counter(line.partition(",")[0] for line in failed)))
