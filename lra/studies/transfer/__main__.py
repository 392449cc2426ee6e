"""python -m lra.studies.transfer run=<run directory> attn=cur_step: a run's weights with another mechanism."""

if __name__ == "__main__":
    from lra.config.manual import begin

    # Before torch is imported.
    begin("transfer")

import hashlib
import math

import torch

from ...config.entry import main
from ...console import log
from ...evaluate.restore import check_data
from ...io import typed_json
from ...model.classifier import Classifier
from ...options import flatten
from ...runs import record
from ...runs.reader import finished
from ...runs.run_dir import RunDir
from ...train.plan import Plan, make_plan
from ...train.run import train_and_test
from ...train.trainer import evaluate
from ..examples import gather_batches, select_by_length
from ..qkv import mechanisms
from ..swap import TransferOptions, experiments, swap
from .record import FILE, TransferRecord, compare_layers, load

# Validation examples per batch of the comparison of layers.
BATCH = 8


@main(TransferOptions)
def transfer(options: TransferOptions) -> None:
    """Score every finished seed of a run with another mechanism, and write a record for each seed.

    Raises:
        ValueError: ``run`` has no finished seed, or the mechanism cannot run on this machine; see ``transfer_seed``.
    """
    reason = options.unavailable
    if reason:
        raise ValueError(reason)
    # None leaves the number of threads to torch.
    if options.trainer.threads:
        torch.set_num_threads(options.trainer.threads)
    # Read the commit now, and so cache it: the checkout may change during the fine-tuning.
    record.git_commit()
    for run in finished(options.run, options.trust):
        transfer_seed(run, options)


def transfer_seed(run: RunDir, options: TransferOptions) -> None:
    """Measure one seed with the other mechanism, unless its record exists.

    Raises:
        ValueError: the weights do not fit the mechanism, its layers cannot be compared, the run was trained on other
            data, or more than one process is configured.
    """
    source, target = experiments(run, options)
    plan = make_plan(target)
    if plan.processes.count > 1:
        raise ValueError(f"trainer.devices must be 1, got {plan.processes.count}: a transfer is one process")
    plan.data.setup()
    provenance = plan.data.source.provenance
    check_data(run, provenance)
    exact, swapped = swap(run, source, target)
    if not mechanisms(exact).keys() & mechanisms(swapped).keys():
        labels = f"{run.path} and attn={target.label}"
        raise ValueError(f"{labels} have no attention in common whose outputs can be compared")

    # The fingerprint of a transfer covers the run's weights and the options of the measurement.
    choices = plan.experiment.choices(provenance)
    choices |= {
        "weights": hashlib.sha256(run.weights.read_bytes()).hexdigest()[:16],
        "steps": options.steps,
        "examples": options.examples,
        "spectrum": options.spectrum,
    }
    r = run.result
    label = target.label
    if options.steps:
        label += f"-tuned={options.steps}"
    folder = options.runs / "transfer" / target.study / r.task / r.label / label / f"seed-{r.seed}"
    title = f"{r.task} {r.label} -> {label} seed {r.seed}"
    run_dir = RunDir(path=folder, choices=choices, seed=r.seed, title=title)

    # The directory is locked while it is open; another process may be measuring this seed.
    with run_dir.open() as is_open:
        if not is_open:
            return
        if (folder / FILE).exists():
            before = load(folder / FILE)
            log(f"{title}: {describe(before)}, already done")
            return
        measured = measure(run, plan, run_dir, (exact, swapped), options)
        typed_json.save(measured, folder / FILE)
    log(f"{title}: {describe(measured)}")


def measure(
    run: RunDir, plan: Plan, run_dir: RunDir, models: tuple[Classifier, Classifier], options: TransferOptions
) -> TransferRecord:
    """Score the other mechanism, compare it with the exact one layer by layer, and fine-tune it if configured.

    Args:
        run: the finished run.
        plan: plan of its configuration with the other mechanism.
        run_dir: directory of the transfer.
        models: the run's model and the swapped one.
        options: options of the transfer.
    """
    r = run.result
    assert r.val is not None and r.test is not None, "a finished run has scores"
    target = plan.experiment
    exact, swapped = models
    val, test = evaluate(plan, swapped, target.task_data())

    # Every batch has examples of all lengths, since the singular values are computed from the first examples only.
    indices = select_by_length(plan.data, "val", options.examples)
    num_batches = math.ceil(len(indices) / BATCH)
    parts = [indices[i::num_batches] for i in range(num_batches)]
    batches = gather_batches(plan.data, "val", parts, plan.device)
    distances = compare_layers(exact.to(plan.device), swapped.to(plan.device), batches, options.spectrum)

    # Fine-tuning changes the weights of the swapped model, so it comes last.
    tuned = train_and_test(plan, run_dir, swapped) if options.steps else None
    return TransferRecord(
        task=r.task,
        protocol=r.protocol,
        budget=r.budget,
        seed=r.seed,
        metric=r.metric,
        constant_baseline=r.constant_baseline,
        n_val=r.n_val,
        n_test=r.n_test,
        study=target.study,
        source=r.label,
        label=target.label,
        fingerprint=run_dir.fingerprint,
        git=record.git_commit(),
        attn=flatten(target.attn.to_dict()),
        exact_val=r.val,
        exact_test=r.test,
        direct_val=val,
        direct_test=test,
        steps=options.steps,
        tuned_val=tuned.val if tuned else None,
        tuned_test=tuned.test if tuned else None,
        status=tuned.status if tuned else "done",
        examples=len(indices),
        spectrum_examples=min(options.spectrum, len(indices)),
        layers=distances,
        device=plan.device,
    )


def describe(r: TransferRecord) -> str:
    """Summarise a transfer: its scores and mean |O - O'| of each layer."""
    text = f"test {r.exact_test:.2f} -> {r.direct_test:.2f}"
    if r.steps:
        score = "diverged" if r.tuned_test is None else f"{r.tuned_test:.2f}"
        text += f", after {r.steps:,} steps {score}"
    distances = ", ".join(f"{layer.mean_abs:.3g}" for layer in r.layers)
    return f"{text}; mean |O - O'| {distances}"


if __name__ == "__main__":
    transfer()
