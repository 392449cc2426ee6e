"""python -m lra.studies.transfer run=<folder of a run> attn=cur_step: the run's weights in another mechanism."""

if __name__ == "__main__":
    from lra.startup import begin

    begin()  # before torch is imported

import hashlib

import torch

from ...config.entry import main
from ...config.options import flatten
from ...console import log
from ...disk import typed_json
from ...model.classifier import Classifier
from ...runs import record
from ...runs.reader import finished
from ...runs.restore import check_data
from ...runs.run_dir import RunDir
from ...train import plan as plans
from ...train.__main__ import fit
from ...train.trainer import evaluate
from ..examples import gathered, spread
from ..graft import TransferOptions, experiments, graft
from .compare import layers
from .record import FILE, TransferRecord, load


@main(TransferOptions)
def transfer(options: TransferOptions) -> None:
    """Measure every finished seed of a run in another mechanism.

    Raises:
        ValueError: the weights do not fit the mechanism, or it cannot run here.
    """
    if reason := options.unavailable:
        raise ValueError(reason)
    if options.trainer.threads:
        torch.set_num_threads(options.trainer.threads)
    for run in finished(options.run, options.trust):
        exchange(run, options)


def exchange(run: RunDir, options: TransferOptions) -> None:
    """Measure one seed in the other mechanism, unless its result exists."""
    source, target = experiments(run, options)
    plan = plans.resolve(target)
    if plan.processes.count > 1:
        raise ValueError(f"trainer.devices must be 1 here, not {plan.processes.count}: a transfer is one process")
    plan.data.setup()
    check_data(run, plan.data.source.provenance)
    choices = plan.experiment.choices(plan.data.source.provenance)
    exact, grafted = graft(run, source, target)
    weights = hashlib.sha256(run.weights.read_bytes()).hexdigest()[:16]
    choices |= {"weights": weights, "steps": options.steps, "examples": options.examples, "spectrum": options.spectrum}
    r = run.record
    place = target.label + (f"-tuned={options.steps}" if options.steps else "")
    folder = options.runs / "transfer" / target.study / r.task / r.label / place / run.path.name
    title = f"{r.task} {r.label} -> {place} seed {r.seed}"
    tuning = RunDir(path=folder, choices=choices, seed=r.seed, title=title)
    with tuning.open() as is_open:
        if not is_open:
            return
        if (folder / FILE).exists():
            log(f"{title}: {describe(load(folder / FILE, tuning.fingerprint))}, done before")
            return
        measured = measure(run, plan, tuning, (exact, grafted), options)
        typed_json.save(measured, folder / FILE)
    log(f"{title}: {describe(measured)}")


def measure(
    run: RunDir, plan: plans.Plan, tuning: RunDir, models: tuple[Classifier, Classifier], options: TransferOptions
) -> TransferRecord:
    """Score the other mechanism, compare it with the exact one layer by layer, and fine-tune it if configured.

    Args:
        run: the finished run.
        plan: plan of its configuration with the other mechanism.
        tuning: folder of the fine-tuning.
        models: exact and grafted.
        options: options of the transfer.
    """
    r, target, (exact, grafted) = run.record, plan.experiment, models
    val, test = evaluate(plan, grafted, target.task_data())
    chosen = spread(plan.data, "val", options.examples)
    # Spread over batches as well: the first batch, which gives the singular values, gets examples of all lengths.
    count = -(-len(chosen) // 8)
    batches = gathered(plan.data, "val", (chosen[i::count] for i in range(count)), plan.device)
    distances = layers(exact.to(plan.device), grafted.to(plan.device), batches, options.spectrum)
    tuned = fit(plan, tuning, grafted) if options.steps else None
    same = ("task", "protocol", "budget", "seed", "metric", "constant_baseline", "n_val", "n_test")
    return TransferRecord(
        **{key: getattr(r, key) for key in same},
        study=target.study,
        source=r.label,
        label=target.label,
        fingerprint=tuning.fingerprint,
        git=record.git_commit(),
        attn=flatten(target.attn.to_dict()),
        exact_val=r.val,
        exact_test=r.test,
        direct_val=val,
        direct_test=test,
        steps=options.steps,
        tuned_val=tuned and tuned.val,
        tuned_test=tuned and tuned.test,
        status=tuned.status if tuned else "done",
        examples=len(chosen),
        spectrum_examples=min(options.spectrum, len(chosen)),
        layers=distances,
        device=plan.device,
    )


def describe(r: TransferRecord) -> str:
    """Summarise a transfer in one line: its scores and the mean difference of each layer."""
    score = "diverged" if r.tuned_test is None else f"{r.tuned_test:.2f}"
    tuned = f", after {r.steps:,} steps {score}" if r.steps else ""
    gaps = ", ".join(f"{layer.mean_abs:.3g}" for layer in r.layers)
    return f"test {r.exact_test:.2f} -> {r.direct_test:.2f}{tuned}; mean |O - O'| {gaps}"


if __name__ == "__main__":
    transfer()
