"""python -m lra.evaluate runs=<runs> examples=20000: score best checkpoints on fresh examples of their task."""

if __name__ == "__main__":
    from lra.config.manual import begin

    begin("evaluate")  # before torch is imported

import sys
import time
from pathlib import Path
from typing import Annotated, ClassVar

import torch
from pydantic import Field

from ..config.entry import main, name_positional
from ..config.errors import explain, is_user_error, prefixed
from ..config.options import Options
from ..config.schema import BatchSize, Device, Root, Threads, Trust
from ..console import log, plural
from ..io import atomic, typed_json
from ..options import Positive
from ..results.outcome_statistics import binomial_error
from ..runs import checkpoint, published
from ..runs.reader import scan, unreadable
from ..runs.record import RunRecord, git_commit
from ..runs.run_dir import RunDir
from ..train import device as devices
from . import record, restore
from .fresh import FRESH_SEED, ExampleHashes, fresh_data, mean_metric, outcomes, restore_experiments
from .record import FreshTest


class EvaluateOptions(Options):
    conf: ClassVar[str] = "evaluate"

    runs: Annotated[Path, Field(description="a folder of finished runs: runs=runs/<study>")]
    examples: Positive
    batch: BatchSize | None
    device: Device
    threads: Threads | None
    trust: Trust
    collect: Path | None
    data: Root


@main(EvaluateOptions)
def evaluate(options: EvaluateOptions) -> None:
    """Score the best checkpoint of every finished run below a folder and write the results.

    A run that has a result of the same weights and examples is skipped, so that the same command resumes after an
    interruption. The other runs are scored even if one cannot be.

    Raises:
        ValueError: there is no run, ``collect`` lacks the study or a run, or some runs could not be scored; the message
            names each with its reason.
    """
    # Read the commit now, and so cache it: the checkout may change while the runs are scored.
    git_commit()
    device = devices.select_device(options.device)
    devices.prepare_process(device, options.threads)
    records, messages = scan(options.runs)
    if not records:
        # A task, a label or a seed of a published study.
        records = {path: run.record for path, run in published.below(options.runs).items()}
    if not records:
        reasons = f" ({'; '.join(messages)})" if messages else ""
        raise ValueError(f"runs={options.runs} has no finished run{reasons}; train one with lra train")
    for message in messages:
        log(f"skipped: {message}")

    if options.collect:
        for study in sorted({run_record.study for run_record in records.values()}):
            if not (options.collect / study).is_dir():
                raise ValueError(f"{options.collect / study} is not a published study; first: lra publish runs=<runs>")

    # Score one run after the other; the hashes of the examples are shared.
    hashes = ExampleHashes()
    results = []
    # A finished run whose record cannot be read is not scored either.
    failures = [f"{path} cannot be read" for path in unreadable(options.runs, records)]
    for folder in sorted(records):
        if records[folder].status != "done":
            log(f"skipped: {folder} diverged and has no final score")
            continue
        # One damaged run does not stop the others.
        try:
            result = evaluate_run(RunDir.read(folder, options.trust), options, device, hashes)
            results.append((records[folder], result))
        except Exception as error:
            if not is_user_error(error):
                raise
            reason = explain(error)
            log(f"not scored: {reason}")
            failures.append(reason)
    if options.collect:
        collect(results, options.collect)
    if failures:
        num_finished = len(results) + len(failures)
        raise ValueError(f"{len(failures)} of {num_finished} finished runs were not scored: {'; '.join(failures)}")


def evaluate_run(run: RunDir, options: EvaluateOptions, device: str, hashes: ExampleHashes) -> FreshTest:
    """Score one run and write its result, unless it is there already.

    Args:
        run: a finished run.
        options: options of the command.
        device: cpu or cuda.
        hashes: hashes of the examples, kept between runs.

    Returns:
        The result.

    Raises:
        ValueError: weights are missing or damaged, the task has no generator, the mechanism cannot run here, or the
            data of the run differ.
    """
    r = run.result
    title = f"{r.study} {r.task} {r.label} seed {run.seed}"
    if not run.weights.exists():
        raise ValueError(f"{run.path} has no {checkpoint.BEST}; copy the weights of the run there, or train it again")
    trained, fresh_experiment = restore_experiments(run, options.data.root, options.examples)
    # For example a mechanism of Triton kernels without a GPU.
    if trained.unavailable:
        raise ValueError(f"{run.path}: {trained.unavailable}")
    precision = trained.trainer.precision
    if precision == "fp16" and device == "cpu":
        raise ValueError(f"{run.path} was trained in fp16, which needs device=cuda")

    # A result of the same weights and examples stays valid.
    fresh = fresh_data(run, trained, fresh_experiment, hashes)
    with prefixed(str(run.weights)):
        weights = atomic.digest(run.weights)
    previous = find_result(run)
    if previous and (previous.weights, previous.data) == (weights, fresh.digest):
        log(f"{title}: {summary(previous)}, already scored")
        return previous

    # Score with the precision, the padding and the batch size of the training; batch= overrides the last one.
    start = time.perf_counter()
    model = restore.load_best_model(run, trained).to(device)
    metric = mean_metric(run, trained)
    batch = options.batch or trained.optim.batch
    correct = outcomes(model, fresh, metric=metric, batch=batch, precision=precision, device=device)

    # The score and its binomial standard error.
    share = float(correct.mean())
    result = FreshTest(
        study=r.study,
        task=r.task,
        label=r.label,
        seed=run.seed,
        fingerprint=run.fingerprint,
        metric=metric,
        weights=weights,
        data=fresh.digest,
        data_seed=FRESH_SEED,
        examples=len(correct),
        seen=fresh.seen,
        fresh_test=100 * share,
        standard_error=binomial_error(share, len(correct)),
        precision=precision,
        device=torch.cuda.get_device_name() if device == "cuda" else "cpu",
        git=git_commit(),
        outcomes=record.pack(correct),
    )
    # The directory of a published run holds at most its weights; results go to the table of its study.
    if run.is_published:
        record.write_table(run.path.parents[2], [result])
    else:
        typed_json.save(result, run.path / record.NAME)
    log(f"{title}: {summary(result)}, standard test set {r.test:.2f} ({time.perf_counter() - start:.0f} s)")
    return result


def find_result(run: RunDir) -> FreshTest | None:
    """Read the result of a run, None without one. Raises ValueError if it is damaged."""
    if run.is_published:
        identity = (run.result.task, run.result.label, run.seed)
        for result in record.read_table(run.path.parents[2]):
            if (result.task, result.label, result.seed) == identity:
                return result
        return None
    path = run.path / record.NAME
    return record.load(path) if path.exists() else None


def collect(results: list[tuple[RunRecord, FreshTest]], home: Path) -> None:
    """Copy results into the tables of the published studies that have the runs.

    Args:
        results: records of runs with their results.
        home: folder of the published studies.

    Raises:
        ValueError: a run is not published.
    """
    # Each study has one table.
    by_study: dict[str, list[tuple[RunRecord, FreshTest]]] = {}
    for run_record, result in results:
        by_study.setdefault(result.study, []).append((run_record, result))
    for study, study_results in by_study.items():
        published_records = [run.record for run in published.read(home / study).values()]
        for run_record, result in study_results:
            # The same configuration may have been trained twice, with other weights.
            if run_record not in published_records:
                name = f"{result.task} {result.label} seed {result.seed}"
                raise ValueError(f"{home / study} does not have the run {name}; first: lra publish runs=<runs>")
        record.write_table(home / study, [result for _, result in study_results])
        print(f"written: {home / study / record.TABLE}, {plural(len(study_results), 'result')}")


def summary(result: FreshTest) -> str:
    """Describe a result: fresh test 36.79 ± 0.34 on 20,000 examples."""
    return f"fresh test {result.fresh_test:.2f} ± {result.standard_error:.2f} on {result.examples:,} examples"


if __name__ == "__main__":
    sys.argv[1:] = name_positional(sys.argv[1:], "runs")
    evaluate()
