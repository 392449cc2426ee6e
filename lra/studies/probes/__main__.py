"""python -m lra.studies.probes run=<folder of a run>: how far its layers look, and what others make of its weights."""

if __name__ == "__main__":
    from lra.startup import begin

    begin()  # before torch is imported

from pathlib import Path
from typing import Annotated, ClassVar

import pandas as pd
import torch
from pydantic import Field

from ...config.compose import compose
from ...config.entry import main
from ...config.options import Options
from ...config.sections import BatchSize, Device, Root, Some, Threads, Trust
from ...console import log
from ...disk import atomic, typed_json
from ...options import Positive, Whole
from ...runs.reader import finished
from ...runs.record import git_commit
from ...runs.restore import configuration, trained
from ...runs.run_dir import RunDir
from ...train.device import select_device
from ..examples import batches
from ..graft import TransferOptions, experiments, graft
from . import confine, measure, record
from .record import Probes
from .report import draw, matrix

KEPT = ("count", "landmarks")  # options of the mechanisms that keep rows and columns


class ProbesOptions(Options):
    conf: ClassVar[str] = "probes"

    run: Annotated[Some[Path], Field(description="a finished run, or a list of them: run=runs/<study>/<task>/<label>")]
    trust: Trust
    swaps: list[str]
    filled: bool
    kept: Positive | None
    examples: Positive
    rows: Positive
    derived: Whole
    batch: BatchSize
    device: Device
    threads: Threads | None
    runs: Path
    data: Root


@main(ProbesOptions)
def probe(options: ProbesOptions) -> None:
    """Probe every finished seed of the runs, or score them with other mechanisms or over the tokens of a row.

    Raises ValueError for a folder that is no run, weights that do not fit a mechanism, or ``swaps`` with ``filled``.
    """
    if options.swaps and options.filled:
        raise ValueError("swaps and filled=true are two ways to score a run; give one of them")
    if options.threads:
        torch.set_num_threads(options.threads)
    device = select_device(options.device)
    runs = [run for folder in options.run for run in finished(folder, options.trust)]
    name = record.SWAPS if options.swaps else record.FILLED if options.filled else None
    score = {record.SWAPS: swapped, record.FILLED: over_filled, None: probed}[name]
    for run in runs:
        score(run, options, device)
    above = 2 if name else 1  # a matrix is of a study, a picture of a task
    for home in dict.fromkeys(record.folder(options.runs, run.record).parents[above] for run in runs):
        made = matrix(home, name) if name else draw(home)
        print(f"written: {', '.join(map(str, made))}")


def probed(run: RunDir, options: ProbesOptions, device: str) -> None:
    """Measure one seed, unless it is there already."""
    r = run.record
    path, title = record.folder(options.runs, r) / record.NAME, f"{r.task} {r.label} seed {r.seed}"
    if path.exists():
        before = record.load(path)
        same = (before.fingerprint, before.examples) == (r.fingerprint, min(options.examples, r.n_test))
        if same and (not options.derived or (before.derived, before.rows) == (options.derived, options.rows)):
            log(f"{title}: {told(before)}, done before")
            return
    experiment = configuration(run, options.data.root)
    model, data = trained(run, experiment)
    model, reaches = model.to(device), measure.reaches(experiment.task.length)
    some = batches(data, options.examples, options.batch, device)
    few = batches(data, options.derived, options.batch, device) if options.derived else []
    how = confine.by(model)
    made = Probes(
        **{key: getattr(r, key) for key in ("study", "task", "label", "seed", "fingerprint", "metric")},
        git=git_commit(),
        examples=sum(len(batch.label) for batch in some),
        score=measure.score(model, some, r.metric),
        by=how,
        reaches=reaches,
        scores=measure.over_reach(model, some, r.metric, reaches) if how else None,
        beyond=measure.beyond(model, few, reaches, options.rows) if few else None,
        derived=options.derived,
        rows=options.rows,
    )
    typed_json.save(made, path)
    log(f"{title}: {told(made)}")


def told(made: Probes) -> str:
    scores = "not confined" if made.scores is None else ", ".join(map("{:.1f}".format, made.scores))
    return f"test {made.score:.2f} on {made.examples}; within {made.reaches}: {scores}"


def swapped(run: RunDir, options: ProbesOptions, device: str) -> None:
    """Score one seed with its own mechanism and each one of ``swaps`` in its place, and save the line of the matrix."""
    r = run.record
    model, data = trained(run, configuration(run, options.data.root))
    some = batches(data, options.examples, options.batch, device)
    line = {"own": measure.score(model.to(device), some, r.metric)}
    for name in options.swaps:
        source, target = experiments(run, _asked(run, options, name))
        try:
            grafted = graft(run, source, target)[1]
        except ValueError as error:  # it has weights that the other mechanism has no place for: an empty cell
            log(f"{r.task} {r.label} -> {name} seed {r.seed}: {error}")
            continue
        line[name] = measure.score(grafted.to(device), some, r.metric)
        log(f"{r.task} {r.label} -> {name} seed {r.seed}: {line['own']:.2f} -> {line[name]:.2f}")
    _save(line, run, options, record.SWAPS)


def over_filled(run: RunDir, options: ProbesOptions, device: str) -> None:
    """Score one seed over the number of tokens of a row that are not filler, and save the line of the matrix.

    Raises:
        ValueError: the rows of the task have no tokens.
    """
    r, experiment = run.record, configuration(run, options.data.root)
    if experiment.task.vocab is None:
        raise ValueError(f"filled=true counts tokens, and rows of {r.task} hold numbers")
    model, data = trained(run, experiment)
    some = batches(data, options.examples, options.batch, device)
    scores = measure.over_filled(model.to(device), some, r.metric)
    log(f"{r.task} {r.label} seed {r.seed}: {', '.join(f'{n}: {score:.2f}' for n, score in scores.items())}")
    _save(scores, run, options, record.FILLED)


def _save(line: dict[str, float], run: RunDir, options: ProbesOptions, name: str) -> None:
    path = record.folder(options.runs, run.record) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic.write(path, pd.Series(line, name="score").to_csv(index_label="scored with", lineterminator="\n"))


def _asked(run: RunDir, options: ProbesOptions, name: str) -> TransferOptions:
    """The transfer of a run to a mechanism, with ``kept`` or as many kept rows as the run has."""
    words = [f"run={run.path}", f"attn={name}", f"data.root={options.data.root}"]
    asked, own = compose(TransferOptions, words), configuration(run, options.data.root).attn
    number = options.kept or next((own.options[key] for key in KEPT if key in own.options), None)
    keys = [key for key in KEPT if key in asked.attn.options]
    return compose(TransferOptions, [*words, f"attn.{keys[0]}={number}"]) if keys and number else asked


if __name__ == "__main__":
    probe()
