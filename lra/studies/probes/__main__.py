"""python -m lra.studies.probes run=<folder of a run>: how far its layers look, and what others make of its weights."""

from pathlib import Path

import torch
from omegaconf import DictConfig

from ...config.compose import compose
from ...config.entry import main
from ...console import log
from ...disk import atomic
from ...runs import probes, record
from ...runs.open import Run, finished
from ...runs.probes import Probes
from ...train.restore import trained
from ..transfer.graft import configs, graft
from . import confine, measure
from .show import draw, matrix

KEPT = ("count", "landmarks")  # options of the mechanisms that keep rows and columns


@main("probes")
def probe(config: DictConfig) -> None:
    """Probe every finished seed of the runs, or score them with other mechanisms.

    Raises ValueError for a folder that is no run, or weights that do not fit a mechanism.
    """
    if config.threads:
        torch.set_num_threads(config.threads)
    device = "cuda" if config.device != "cpu" and torch.cuda.is_available() else "cpu"
    if config.device == "cuda" and device == "cpu":
        raise ValueError("device=cuda, but torch sees no GPU; use device=cpu")
    runs = [run for folder in config.run for run in finished(Path(folder), config.trust)]
    for run in runs:
        if config.swaps:
            swapped(run, config, device)
        else:
            probed(run, config, device)
    for study, task in dict.fromkeys((run.record.study, run.record.task) for run in runs):
        home = Path(config.runs) / probes.FOLDER / study / task
        made = matrix(home) if config.swaps else draw(home)
        print(f"written: {', '.join(map(str, made))}")


def probed(run: Run, config: DictConfig, device: str) -> Probes:
    """Measure one seed, unless it is there already."""
    r = run.record
    home = probes.folder(Path(config.runs), r.study, r.task, r.label, r.seed)
    title = f"{r.task} {r.label} seed {r.seed}"
    if (home / probes.NAME).exists():
        before = probes.load(home / probes.NAME)
        same = (before.fingerprint, before.examples) == (r.fingerprint, min(config.examples, r.n_test))
        if same and (not config.derived or (before.derived, before.rows) == (config.derived, config.rows)):
            log(f"{title}: {told(before)}, done before")
            return before
    choices = run.configuration(config.data.root)
    model, data = trained(run, choices)
    run.check_data(data.source.provenance)
    model, reaches = model.to(device), measure.reaches(choices.task.length)
    some = measure.batches(data, config.examples, config.batch, device)
    few = measure.batches(data, config.derived, config.batch, device) if config.derived else []
    how = confine.by(model)
    made = Probes(
        study=r.study,
        task=r.task,
        label=r.label,
        seed=r.seed,
        fingerprint=r.fingerprint,
        git=record.git_commit(),
        metric=r.metric,
        examples=sum(len(batch.label) for batch in some),
        score=measure.score(model, some, r.metric),
        by=how,
        reaches=reaches,
        scores=measure.over_reach(model, some, r.metric, reaches) if how else None,
        beyond=measure.beyond(model, few, reaches, config.rows) if few else None,
        derived=config.derived,
        rows=config.rows,
    )
    probes.save(made, home)
    log(f"{title}: {told(made)}")
    return made


def told(made: Probes) -> str:
    scores = "not confined" if made.scores is None else ", ".join(map("{:.1f}".format, made.scores))
    return f"test {made.score:.2f} on {made.examples}; within {made.reaches}: {scores}"


def swapped(run: Run, config: DictConfig, device: str) -> None:
    """Score one seed with its own mechanism and each one of ``swaps`` in its place, and save the line of the matrix."""
    r = run.record
    model, data = trained(run, run.configuration(config.data.root))
    run.check_data(data.source.provenance)
    some = measure.batches(data, config.examples, config.batch, device)
    line = {"own": measure.score(model.to(device), some, r.metric)}
    for name in config.swaps:
        source, target = configs(run, _asked(run, config, name))
        try:
            grafted = graft(run, source, target)[1]
        except ValueError as error:  # it has weights that the other mechanism has no place for: an empty cell
            log(f"{r.task} {r.label} -> {name} seed {r.seed}: {error}")
            continue
        line[name] = measure.score(grafted.to(device), some, r.metric)
        log(f"{r.task} {r.label} -> {name} seed {r.seed}: {line['own']:.2f} -> {line[name]:.2f}")
    home = probes.folder(Path(config.runs), r.study, r.task, r.label, r.seed)
    home.mkdir(parents=True, exist_ok=True)
    atomic.write(
        home / probes.SWAPS, "".join(f"{name},{value}\n" for name, value in {"scored with": "score", **line}.items())
    )


def _asked(run: Run, config: DictConfig, name: str) -> DictConfig:
    """The transfer of a run to a mechanism, with ``kept`` or as many kept rows as the run has."""
    words = [f"run={run.folder}", f"attn={name}", f"data.root={config.data.root}"]
    asked, own = compose("transfer", words), run.configuration(config.data.root).attn
    number = config.kept or next((own[key] for key in KEPT if key in own), None)
    keys = [key for key in KEPT if key in asked.attn]
    return compose("transfer", [*words, f"attn.{keys[0]}={number}"]) if keys and number else asked


if __name__ == "__main__":
    probe()
