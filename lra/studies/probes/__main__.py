"""python -m lra.studies.probes run=<run directory>: how far a model looks, and its scores with other mechanisms."""

if __name__ == "__main__":
    from lra.config.manual import begin

    # Before torch is imported.
    begin("probes")

from pathlib import Path
from typing import Annotated, ClassVar

import pandas as pd
import torch
from pydantic import Field

from ...config.compose import compose
from ...config.entry import main
from ...config.errors import prefixed
from ...config.options import Options
from ...config.quoting import override
from ...config.schema import BatchSize, Device, Root, Some, Threads, Trust
from ...console import log
from ...evaluate.restore import load_model_and_data, restore_experiment
from ...io import atomic, typed_json
from ...options import Positive, Whole
from ...runs.reader import finished
from ...runs.record import git_commit
from ...runs.run_dir import RunDir
from ...train.device import select_device
from ..examples import gather_test_batches
from ..swap import TransferOptions, experiments, swap
from . import local_window, measure, record
from .record import Probes
from .report import draw, write_matrix

# Options that ``kept`` of a budget sets, see docs/task.md: of CUR and SOFT, Nystromformer, Skyformer.
TOKEN_BUDGETS = ("count", "landmarks", "samples")
# Names of token 0 where it is padding or filler.
FILLERS = ("", ".")


class ProbesOptions(Options):
    """The options of conf/probes.yaml."""

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
    collect: Path | None
    data: Root


@main(ProbesOptions)
def probe(options: ProbesOptions) -> None:
    """Probe every finished seed of the runs: score it within reaches, with ``swaps``, or over the number of tokens.

    Raises:
        ValueError: a path is not a run, its data, weights or records cannot be used, its task has no tokens for
            ``filled``, or options exclude each other.
    """
    if options.swaps and options.filled:
        raise ValueError("swaps and filled=true are two ways to score a run; give one of them")
    if options.collect and (options.swaps or options.filled):
        raise ValueError("collect copies records of reaches, which swaps and filled=true do not make; leave one out")
    if options.threads:
        torch.set_num_threads(options.threads)
    device = select_device(options.device)
    runs = []
    for path in options.run:
        runs.extend(finished(path, options.trust))

    # Choose the measurement; scores with other mechanisms or over the number of tokens are collected in a matrix.
    if options.swaps:
        measure_run = score_swaps
        name = record.SWAPS
    elif options.filled:
        measure_run = score_by_num_tokens
        name = record.FILLED
    else:
        measure_run = probe_seed
        name = None
    for run in runs:
        measure_run(run, options, device)

    # A matrix lies in the directory of a set of runs (<study>), a picture in the directory of a task.
    level = 2 if name else 1
    homes = dict.fromkeys(record.folder(options.runs, run.result).parents[level] for run in runs)
    for home in homes:
        files = write_matrix(home, name, _settings(options)) if name else draw(home)
        print(f"written: {', '.join(map(str, files))}")
    if options.collect:
        records = [record.load(record.folder(options.runs, run.result) / record.NAME) for run in runs]
        print(f"written: {record.collect(records, options.collect)}")


def probe_seed(run: RunDir, options: ProbesOptions, device: str) -> None:
    """Measure scores and derivatives over the reach for one seed, unless it has an up-to-date record."""
    r = run.result
    path = record.folder(options.runs, r) / record.NAME
    title = f"{r.task} {r.label} seed {r.seed}"
    if path.exists():
        before = record.load(path)
        if _is_up_to_date(before, run, options):
            log(f"{title}: {describe(before)}, already done")
            return

    experiment = restore_experiment(run, options.data.root)
    model, data = load_model_and_data(run, experiment)
    model = model.to(device)
    reaches = measure.reaches(experiment.task.length)
    test_batches = gather_test_batches(data, options.examples, options.batch, device)
    # Derivatives are expensive, so they have their own, smaller number of examples.
    derivative_batches = gather_test_batches(data, options.derived, options.batch, device) if options.derived else []
    method = local_window.confinement(model)
    scores = measure.scores_by_reach(model, test_batches, r.metric, reaches) if method else None
    shares = measure.shares_beyond(model, derivative_batches, reaches, options.rows) if derivative_batches else None
    probes = Probes(
        study=r.study,
        task=r.task,
        label=r.label,
        seed=r.seed,
        fingerprint=r.fingerprint,
        metric=r.metric,
        git=git_commit(),
        examples=sum(len(batch.label) for batch in test_batches),
        score=measure.score(model, test_batches, r.metric),
        by=method,
        reaches=reaches,
        scores=scores,
        beyond=shares,
        derived=options.derived,
        rows=options.rows,
        weights=atomic.digest(run.weights),
    )
    typed_json.save(probes, path)
    log(f"{title}: {describe(probes)}")


def _is_up_to_date(probes: Probes, run: RunDir, options: ProbesOptions) -> bool:
    """Return whether a record belongs to the run and has the examples and derivatives that the options ask for."""
    r = run.result
    # The same configuration may have been trained again. Early records do not name their weights.
    if run.weights.exists():
        with prefixed(str(run.weights)):
            weights = atomic.digest(run.weights)
        if probes.weights not in (None, weights):
            return False
    if probes.fingerprint != r.fingerprint or probes.examples != min(options.examples, r.n_test):
        return False
    return not options.derived or (probes.derived, probes.rows) == (options.derived, options.rows)


def describe(probes: Probes) -> str:
    """Summarise the scores of a record: of the whole model, and within each reach."""
    scores = "not confined"
    if probes.scores is not None:
        scores = ", ".join(f"{score:.1f}" for score in probes.scores)
    return f"test {probes.score:.2f} on {probes.examples}; within {probes.reaches}: {scores}"


def score_swaps(run: RunDir, options: ProbesOptions, device: str) -> None:
    """Score one seed with its own mechanism and with each mechanism of ``swaps``, and save the scores."""
    r = run.result
    experiment = restore_experiment(run, options.data.root)
    model, data = load_model_and_data(run, experiment)
    test_batches = gather_test_batches(data, options.examples, options.batch, device)
    own_score = measure.score(model.to(device), test_batches, r.metric)
    # The column of the run's own mechanism comes first.
    scores = {"own": own_score}
    for name in options.swaps:
        transfer = _transfer_options(run, options, name)
        try:
            if transfer.unavailable:
                raise ValueError(transfer.unavailable)
            source, target = experiments(run, transfer)
            _, other = swap(run, source, target)
            # Random weights would be scored as if they had been trained.
            trained = dict(model.named_parameters())
            untrained = [path for path, _ in other.named_parameters() if path not in trained]
            if untrained:
                raise ValueError(f"{untrained[0]} is not trained; lra study transfer sets its options or fine-tunes it")
        except ValueError as error:
            # The mechanism cannot run here, has another kind of attention weights (``attn.weights``) than the run, or
            # the trained parameters do not fit it: the cell stays empty.
            log(f"{r.task} {r.label} -> {name} seed {r.seed}: {error}")
            continue
        score = measure.score(other.to(device), test_batches, r.metric)
        scores[name] = score
        log(f"{r.task} {r.label} -> {name} seed {r.seed}: {own_score:.2f} -> {score:.2f}")
    _save(scores, run, options, record.SWAPS)


def score_by_num_tokens(run: RunDir, options: ProbesOptions, device: str) -> None:
    """Score one seed over the number of tokens that are not filler, and save the scores.

    Raises:
        ValueError: the sequences of the task have no filler.
    """
    r = run.result
    experiment = restore_experiment(run, options.data.root)
    names = experiment.data_source().alphabet
    is_pixels = experiment.task.display == "pixels"
    if experiment.task.vocab is None or is_pixels or (names and names[0] not in FILLERS):
        raise ValueError(
            f"filled=true needs token 0 as filler, but in {r.task} it is an input; name runs of another task"
        )
    model, data = load_model_and_data(run, experiment)
    test_batches = gather_test_batches(data, options.examples, options.batch, device)
    scores = measure.scores_by_num_tokens(model.to(device), test_batches, r.metric)
    summary = ", ".join(f"{count}: {score:.2f}" for count, score in scores.items())
    log(f"{r.task} {r.label} seed {r.seed}: {summary}")
    _save(scores, run, options, record.FILLED)


def _save(scores: dict[str, float], run: RunDir, options: ProbesOptions, name: str) -> None:
    """Write the scores of one seed by column of the matrix, with the settings under which they were measured."""
    path = record.folder(options.runs, run.result) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pd.DataFrame({"score": scores}).assign(**_settings(options))
    atomic.write(path, table.to_csv(index_label="scored with", lineterminator="\n"))


def _settings(options: ProbesOptions) -> dict[str, str]:
    """Return the options that all scores of a matrix share, as text."""
    # ``kept`` is the token budget of the mechanisms in ``swaps``.
    kept = options.kept if options.swaps else None
    return {"examples": str(options.examples), "kept": str(kept or "")}


def _transfer_options(run: RunDir, options: ProbesOptions, name: str) -> TransferOptions:
    """Compose the transfer of a run to a mechanism.

    A mechanism with one of ``TOKEN_BUDGETS`` gets ``kept``, else the number of the run, else its default.
    """
    overrides = [override("run", run.path), f"attn={name}", override("data.root", options.data.root)]
    # The defaults of the mechanism show the name of its token budget, if it has one.
    transfer = compose(TransferOptions, overrides)
    keys = [key for key in TOKEN_BUDGETS if key in transfer.attn.options]
    token_budget = options.kept
    if not token_budget:
        run_options = restore_experiment(run, options.data.root).attn.options
        run_budgets = [run_options[key] for key in TOKEN_BUDGETS if key in run_options]
        token_budget = run_budgets[0] if run_budgets else None
    if not keys or not token_budget:
        return transfer
    return compose(TransferOptions, [*overrides, f"attn.{keys[0]}={token_budget}"])


if __name__ == "__main__":
    probe()
