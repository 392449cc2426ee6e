"""Synthetic records of runs, benchmarks and sweeps, and the cells of the report's tables."""

import dataclasses
import json
from dataclasses import asdict

from lra.config.compose import compose
from lra.report import details
from lra.report.__main__ import ReportOptions, report
from lra.report.export import export
from lra.results import summary
from lra.results.bench_record import BenchRecord, BenchRow, Machine
from lra.runs import record
from lra.sweep import __main__ as leader
from lra.sweep import job, launcher, plan
from lra.sweep.options import SweepOptions

NAMED = {"study": "paper-paper", "task": "listops", "protocol": "paper", "budget": "paper", "label": "cur_abs"}
SCORED = {"metric": "accuracy", "val": 38.0, "test": 37.0, "constant_baseline": 17.35, "n_val": 2000, "n_test": 2000}
TRAINED = {"params": 214410, "best_step": 100, "steps": 5000, "step_ms": 10.0, "peak_bytes": 1, "device": "NVIDIA H200"}
RECORD = record.RunRecord(**NAMED, **SCORED, **TRAINED, seed=0, fingerprint="f", git="0123456789ab", status="done")
PHASE = record.Pretraining(
    objective="masked", fingerprint="0e1", loss=0.1, best_step=1, steps=2, tokens=3, step_ms=None, status="done"
)
LOST = ["lost/record.json is no record"]
TESTS = (37.1, 38.4, 39.95, 36.6)
SMOKE = ["budget=smoke", "tasks=[listops]", "measure=0"]
# Two mechanisms with two seeds each.
GRID = ["seeds=[0,1]", "sweep.grids.methods.attn=[cur_sum,cur_abs]"]
MB = 2**20
SOFTWARE = {"python": "3.11", "torch": "2.13", "triton": None, "allocator": {"MALLOC_MMAP_MAX_": "0"}}
RATES = {"copy": 1e10, "matmul": {"fp32": 1e12}}
MACHINE = Machine(hardware="A machine", device="cpu", threads=2, load=0.5, **SOFTWARE, **RATES)


def unseal(path, *keys):
    """Remove the checksums and further keys from a record, so that a test can change the record and its files."""
    tree = json.loads(path.read_text())
    path.write_text(json.dumps({key: value for key, value in tree.items() if key not in ("files", "sha256", *keys)}))


def flip(path, share=0.4, bit=64):
    """Flip a bit of a file at a fraction of its length."""
    data = bytearray(path.read_bytes())
    data[int(share * len(data))] ^= bit
    path.write_bytes(data)


def replace_text(path, old, new):
    """Replace the first occurrence of a text in a file."""
    path.write_text(path.read_text().replace(old, new, 1))


def add(runs, **changes):
    run = dataclasses.replace(RECORD, **changes)
    folder = runs / run.study / run.task / run.label / f"seed-{run.seed}"
    folder.mkdir(parents=True)
    record.save(run, folder)
    return folder / "record.json"


def add_seeds(runs, label, tests, **changes):
    for seed, test in enumerate(tests):
        add(runs, label=label, seed=seed, test=test, **changes)


def diverged(runs, step, **changes):
    return add(runs, status="diverged", test=None, val=None, best_step=None, steps=step, **changes)


def of_study(runs, study="paper-paper"):
    return summary.collect(runs, study)[0][study]


def rows(runs, study="paper-paper"):
    return {(row.task, row.label): row for row in of_study(runs, study)}


def table(runs, study="paper-paper"):
    return {table.title: table for table in details.details(of_study(runs, study))}


def cells(table):
    """Map the text of each row's first cell to its cells by column."""
    return {items[0].text: dict(zip(table.head, items, strict=True)) for _, items in table.rows()}


def texts(table):
    """Map the text of each row's first cell to the texts of its cells by column."""
    return {label: {name: cell.text for name, cell in line.items()} for label, line in cells(table).items()}


def metrics(path, values, every=10):
    """Write the evaluations of a run next to its record."""
    lines = [f"{every * (i + 1)},1.0,{value},1e-4" for i, value in enumerate(values)]
    (path.parent / "metrics.csv").write_text("\n".join(["step,train_loss,val,lr", *lines]) + "\n")


def write_runs(runs):
    """Write runs of two studies, one with HTML in a name and one with a damaged metrics.csv."""
    for label, gain in (("cur_abs", 1.0), ("softmax", 0.0), ("cur_abs-note=<script>alert(1)<script>", 0.5)):
        for seed in range(3):
            path = add(runs, label=label, seed=seed, test=37 + gain + seed, step_ms=10 + gain, peak_bytes=2**30)
            metrics(path, [20.0, 30.0 + seed, 35.0 + gain])
            (path.parent / "config.yaml").write_text("optim.lr: 0.0001\n")
    (add(runs, study="other", budget="quick", label="cur_abs").parent / "metrics.csv").write_text("step,val\nten,1\n")


def written(runs):
    """Write the report of ``write_runs``, with a damaged record; returns the folder and the unreadable files."""
    write_runs(runs)
    return runs, export(runs / "report", summary.collect(runs)[0], LOST)[0]


def write_report(*words):
    """Run the report command with overrides in this process, without the command line."""
    report.__wrapped__(compose(ReportOptions, words))


def row(mechanism, n, ms, **changes):
    """A benchmark row with samples ms / 2, ms and 2 ms, n MB of memory, and throughputs of 1 GB/s and 2 TFLOP/s."""
    fields = {} if ms is None else {"samples": (ms / 2, ms, 2 * ms), "peak_bytes": n * MB, "roofline_ms": ms / 4}
    fields |= {} if ms is None else {"roofline_bytes": int(ms * 1e6), "flops": int(ms * 2e9)}
    base = dict.fromkeys([field.name for field in dataclasses.fields(BenchRow)])
    base |= {"what": "attention", "mode": "training", "mechanism": mechanism, "n": n, "dtype": "fp32", "status": "ok"}
    base |= {"batch": 4, "heads": 2, "head_dim": 32, "samples": (), "calls": 1, "claimed": 1.0}
    return BenchRow(**base | fields | changes)


def made(rows, **changes):
    fields = {"name": "bench", "fingerprint": "0123456789ab", "git": "abc", "choices": {"reference": "naive"}}
    return dataclasses.replace(BenchRecord(**fields, machine=MACHINE, seconds=1.0, rows=rows), **changes)


def config(name, *words):
    return compose(SweepOptions, [f"sweep={name}", *words])


def expand(name, *words, runs="unused"):
    return plan.expand(config(name, f"runs={runs}", *SMOKE, *words), threads=None)[0]


def finish(run, **changes):
    run.folder.mkdir(parents=True, exist_ok=True)
    values = asdict(RECORD) | {"task": run.task, "label": run.label, "seed": run.seed, "steps": run.steps}
    (run.folder / record.NAME).write_text(json.dumps({"form": 2} | values | changes))


def finish_each(note=lambda run: None, **changes):
    """Return a launcher that passes each run to ``note`` and writes its finished record."""

    def launch(runs, *_):
        for run in runs:
            note(run)
            finish(run, **changes)

    return launch


def fail(run, reason):
    run.folder.mkdir(parents=True, exist_ok=True)
    job.fail(run.folder, reason)


def sweep(monkeypatch, call, launch, *words):
    """Run a small sweep with the given launcher; returns its exit message and stderr."""
    monkeypatch.setattr(launcher.Launcher, "launch", lambda self, runs: launch(runs, self))
    monkeypatch.setattr(launcher, "POLL_SECONDS", 0.01)
    return call(leader.sweep, "sweep=selection", *SMOKE, *GRID, *words)[::2]
