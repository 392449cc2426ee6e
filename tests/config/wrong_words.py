"""Wrong words, drawn out of the composed configuration of an entry point, and whether each ends as it should.

python tests/config/wrong_words.py [--seed 0] [--cases 60] [train bench ...]: runs every case in this process and prints
how many were tried and held. A case holds where the entry point ends well, or with exit status 1, one line that starts
with ``lra:``, no traceback and not a file more than before; a training that goes on for ``PATIENCE`` seconds was
accepted.
"""

import argparse
import contextlib
import importlib
import io
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import hydra
from omegaconf import DictConfig, OmegaConf

PATIENCE = 20  # seconds
MEMORY = 24 * 2**30  # bytes of address space
VALUES = (
    *(
        "abc",
        "no",
        "off",
        "yes",
        "on",
        "true",
        "false",
        "null",
        "''",
        "'a b'",
        "é",
        "???",
        "2026",
        "${nope}",
        "../../x",
    ),
    *("-1", "0", "1", "-0.5", "1.5", "nan", "inf", "-inf", "1e400", "1000000000", "1000000000000000000000000000000"),
    *("[]", "[1,2]", "[[1]]", "[abc]", "{a:1}", "{}", "/proc/nowhere", "x/y"),
)
SMALL = (*("budget=smoke", "source.train=16", "source.val=8", "source.test=8"), *("data.root=data",))
TRAIN = (
    *("task=listops", *SMALL, "optim.steps=2", "optim.eval_every=1", "optim.warmup=0", "optim.batch=4", "seeds=[0]"),
    *("model.layers=1", "trainer.threads=1", "runs=runs"),
)


@dataclass(frozen=True)
class Entry:
    """function: ``module:name``. config: of ``conf``. words: what makes it quick. begun: a run of sdpa is there."""

    function: str
    config: str
    words: tuple[str, ...]
    begun: bool = False
    left: tuple[str, ...] = ()  # words that would do more than is wanted here

    def load(self) -> Callable[[], None]:
        module, _, name = self.function.partition(":")
        return getattr(importlib.import_module(module), name)


RUN = "runs/paper-smoke/listops/sdpa/seed-0"
ENTRIES = {
    "train": Entry("lra.train.__main__:train", "train", (*TRAIN, "attn=cur_abs", "attn.count=4")),
    "train soft": Entry("lra.train.__main__:train", "train", (*TRAIN, "attn=soft", "attn.count=4")),
    "train mega": Entry("lra.train.__main__:train", "train", (*TRAIN, "attn=mega", "model.heads=1")),
    "train psf": Entry(
        "lra.train.__main__:train", "train", (*TRAIN, "experiment=psf_listops", "model.dim=16", "attn=psf")
    ),
    "train reformer": Entry("lra.train.__main__:train", "train", (*TRAIN, "attn=reformer")),
    "train adding": Entry("lra.train.__main__:train", "train", (*TRAIN, "task=adding", "attn=performer")),
    "sweep": Entry(
        "lra.sweep.__main__:sweep",
        "sweep",
        ("sweep=copy_rv", "tasks=[listops]", "seeds=[0]", "budget=smoke", "plan=true", "measure=0", "runs=runs"),
        left=("plan=no", "plan=off", "plan=false", "plan=0"),
    ),
    "bench": Entry(
        "lra.bench.__main__:bench",
        "bench",
        (
            *("mechanisms=[sdpa]", "what=attention", "modes=inference", "n=[32]", "batch=1", "heads=1", "head_dim=8"),
            *("repeats=1", "warmup=0", "threads=1", "runs=runs", "device=cpu", "reference=sdpa"),
        ),
    ),
    "report": Entry("lra.report.__main__:report", "report", ("runs=runs", "out=out"), begun=True),
    "show": Entry("lra.maps.__main__:show", "maps", (f"run={RUN}", "data.root=data", "out=out"), begun=True),
    "data_prep": Entry("data_prep.__main__:prepare", "data", ("task=listops", *SMALL, "workers=1")),
    "data_prep.show": Entry("data_prep.show:show", "show", ("task=listops", *SMALL, "count=2", "out=out.png")),
    "transfer": Entry(
        "lra.studies.transfer.__main__:transfer",
        "transfer",
        (
            *(f"run={RUN}", "attn=cur_abs", "attn.count=4", "examples=4", "spectrum=1", "runs=runs", "data.root=data"),
            *("trainer.threads=1", "steps=0"),
        ),
        begun=True,
    ),
    "probes": Entry(
        "lra.studies.probes.__main__:probe",
        "probes",
        (f"run={RUN}", "examples=2", "derived=1", "rows=1", "threads=1", "runs=runs", "data.root=data"),
        begun=True,
    ),
    "lengths": Entry(
        "lra.studies.lengths.__main__:lengths",
        "lengths",
        (
            *("tasks=temporal_order", "lengths=128", "mechanisms=mean", "seeds=[0]", "budget=smoke", "plan=true"),
            *("measure=0", "runs=runs"),
        ),
        left=("plan=no", "plan=off", "plan=false", "plan=0"),
    ),
    "inverses": Entry(
        "lra.studies.inverses.__main__:inverses",
        "inverses",
        (
            *("n=1", "steps=[0,2]", "counts=[4]", "kinds=gaussian", "heads=1", "head_dim=8", "length=16", "threads=1"),
            *("runs=runs", "data.root=data"),
        ),
    ),
    "transfer.show": Entry("lra.studies.transfer.show:show", "transfer_show", ("runs=runs", "out=out"), begun=True),
    "dropin": Entry(
        "lra.studies.dropin.__main__:dropin",
        "dropin",
        (
            *("candidates=[cur_abs]", "counts=[4]", "n=2", "sources=[gaussian]", "heads=1", "head_dim=8", "length=16"),
            *("cost=0", "runs=runs", "data.root=data"),
        ),
    ),
    "factorise": Entry(
        "lra.studies.factorise.__main__:factorise", "factorise", ("kinds=[image]", "iterations=1", "runs=runs")
    ),
    "pretrained": Entry(
        "lra.studies.pretrained.__main__:pretrained",
        "pretrained",
        ("model=nowhere", "examples=nothing.tar", "out=out.json"),
    ),
}


class Stopped(BaseException):
    """Time is up."""


@dataclass(frozen=True)
class Case:
    entry: str
    word: str
    status: int | None  # None: it went on
    said: str
    why: str  # it does not hold; empty where it does


def options(entry: Entry) -> list[str]:
    """Every key of the composed configuration, sections too, and its groups."""
    from lra.config import CONF

    def keys(node: DictConfig, prefix: str = "") -> Iterator[str]:
        for key in node:
            yield f"{prefix}{key}"
            if OmegaConf.is_dict(child := node._get_node(key)):
                yield from keys(child, f"{prefix}{key}.")

    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        config = hydra.compose(entry.config, list(entry.words))
    return sorted(key for key in keys(config) if not key.startswith(("hydra", "budgets.paper", "budgets.quick")))


def drawn(name: str, seed: int, cases: int, values: tuple[str, ...] = VALUES) -> list[str]:
    """Words that replace or follow those of an entry, each once."""
    entry = ENTRIES[name]
    every = [f"{key}={value}" for key in options(entry) for value in values]
    return random.Random(f"{seed} {name}").sample(sorted(set(every) - set(entry.words) - set(entry.left)), cases)


def run(entry: Entry, words: list[str], patience: int = PATIENCE) -> tuple[int | None, str, str]:
    """Exit status, None where it went on until it was stopped; last line; all that stderr got."""

    def stop(*_):
        raise Stopped

    said, before = io.StringIO(), sys.argv
    signal.signal(signal.SIGALRM, stop)
    signal.alarm(patience)
    try:
        sys.argv = ["lra", *words]
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
            entry.load()()
        return 0, "", said.getvalue()
    except SystemExit as error:
        if isinstance(error.code, str):
            return 1, error.code, said.getvalue()
        return int(error.code or 0), "", said.getvalue()
    except Stopped:
        return None, "", said.getvalue()
    except BaseException as error:
        return 2, f"{type(error).__name__}: {' '.join(str(error).split())[:150]}", said.getvalue()
    finally:
        signal.alarm(0)
        sys.argv = before


def files(folder: Path) -> dict[Path, int]:
    return {path: path.lstat().st_mtime_ns for path in folder.rglob("*") if not path.is_dir()}


def tried(name: str, word: str, home: Path) -> Case:
    """One case in a copy of ``home``, which holds data and, where the entry needs one, a run."""
    entry, key = ENTRIES[name], word.partition("=")[0]
    with tempfile.TemporaryDirectory(dir=home.parent) as above:
        place = Path(above, "a/b/c/d")  # ../../x stays inside
        shutil.copytree(home / ("begun" if entry.begun else "data"), place)
        before = files(Path(above))
        with contextlib.chdir(place):
            status, line, printed = run(entry, [w for w in entry.words if w.partition("=")[0] != key] + [word])
        written = sorted(set(files(Path(above)).items()) - set(before.items()))
    why = ""
    if status == 1 and written:
        why = f"wrote {written[0][0].relative_to(place) if place in written[0][0].parents else written[0][0]}: {line}"
    elif status == 1 and (not line.startswith("lra: ") or "\n" in line):
        why = f"said {line!r}"
    elif status not in (None, 0, 1):
        why = line
    elif "Traceback" in printed or "Error:" in printed:
        why = f"a traceback: {line}"
    return Case(name, word, status, line, why)


def prepared(home: Path) -> None:
    """home/data: the data sets of the cases; home/begun: with a run of sdpa."""
    place = home / "data"
    place.mkdir(parents=True)
    train = ENTRIES["train"]
    with contextlib.chdir(place):
        assert run(ENTRIES["data_prep"], list(ENTRIES["data_prep"].words), 0)[0] == 0
    shutil.copytree(place, home / "begun")
    with contextlib.chdir(home / "begun"):
        words = [word for word in train.words if not word.startswith("attn")]
        status, *said = run(train, [*words, "attn=sdpa"], 0)
        assert status == 0, said


def main() -> None:
    parser = argparse.ArgumentParser(description="Wrong words over every entry point.")
    parser.add_argument("names", nargs="*", default=list(ENTRIES))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cases", type=int, default=60, help="of each entry point")
    asked = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    total = held = 0
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder, "home")
        prepared(home)
        for name in asked.names:
            try:
                ENTRIES[name].load()
            except ImportError as error:
                print(f"{name}: left out, {error}", flush=True)
                continue
            cases = [tried(name, word, home) for word in drawn(name, asked.seed, asked.cases)]
            kept = [case for case in cases if not case.why]
            refused = sum(case.status == 1 for case in kept)
            print(f"{name}: {len(cases)} tried, {len(kept)} held, {refused} of them refused", flush=True)
            for case in cases:
                if case.why:
                    print(f"  {case.word}: {case.why}", flush=True)
            total, held = total + len(cases), held + len(kept)
    print(f"seed {asked.seed}: {total} tried, {held} held")


if __name__ == "__main__":
    main()
