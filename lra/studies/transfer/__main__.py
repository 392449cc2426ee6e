"""python -m lra.studies.transfer run=<folder of a run> attn=cur_step: the run's weights in another mechanism."""

import contextlib
import hashlib
import sys
from pathlib import Path

import numpy as np
import torch
from omegaconf import DictConfig, OmegaConf

from ...config import flatten, main
from ...data.datamodule import Batch, TaskData
from ...runs import record
from ...runs.folder import claim, writing
from ...train import build
from ...train.__main__ import check
from ...train.fit import device, evaluate, fit
from .compare import Layer, layers
from .graft import Run, check_data, configs, graft, read
from .record import FILE, TransferRecord, load, save


@main("transfer")
def transfer(config: DictConfig) -> None:
    """Every finished seed of a run; raises ValueError for weights that do not fit the mechanism."""
    if reason := build.unavailable(config):
        raise ValueError(reason)
    if config.trainer.threads:
        torch.set_num_threads(config.trainer.threads)
    for run in read(Path(config.run), config.trust):
        exchange(run, config)


def exchange(run: Run, config: DictConfig) -> None:
    """One seed, unless its result is there already."""
    source, target = configs(run, config)
    check(target)
    data = build.task_data(target)
    data.setup()
    check_data(run, data.source.provenance)
    choices = record.choices(target, data.source.provenance)
    exact, grafted = graft(run, source, target)
    weights = hashlib.sha256((run.folder / "best.ckpt").read_bytes()).hexdigest()[:16]
    choices |= {"weights": weights, "steps": config.steps, "examples": config.examples, "spectrum": config.spectrum}
    r = run.record
    place = target.label + (f"-tuned={config.steps}" if config.steps else "")
    folder = Path(config.runs) / "transfer" / target.study / r.task / r.label / place / run.folder.name
    title = f"{r.task} {r.label} -> {place} seed {r.seed}"
    fingerprint = record.fingerprint(choices | {"seed": r.seed})
    with contextlib.ExitStack() as held:
        if not claim(held, folder, title, choices, target.study):
            return
        if (folder / FILE).exists():
            print(f"{title}: {told(load(folder / FILE, fingerprint))}, done before", file=sys.stderr)
            return
        held.enter_context(writing(folder))
        val, test = evaluate(target, grafted, build.task_data(target))
        seen = compared(exact, grafted, data, config)
        tuned_data = build.task_data(target, r.seed)
        tuned = fit(target, r.seed, tuned_data, folder, fingerprint, grafted) if config.steps else None
        made = TransferRecord(
            study=target.study,
            task=r.task,
            protocol=r.protocol,
            budget=r.budget,
            source=r.label,
            label=target.label,
            seed=r.seed,
            fingerprint=fingerprint,
            git=record.git_commit(),
            attn=flatten(OmegaConf.to_container(target.attn, resolve=True)),
            metric=r.metric,
            constant_baseline=r.constant_baseline,
            n_val=len(data.splits["val"]),
            n_test=len(data.splits["test"]),
            exact_val=r.val,
            exact_test=r.test,
            direct_val=val,
            direct_test=test,
            steps=config.steps,
            tuned_val=tuned and tuned.val,
            tuned_test=tuned and tuned.test,
            status=tuned.status if tuned else "done",
            examples=min(config.examples, len(data.splits["val"])),
            spectrum_examples=min(config.spectrum, config.examples, len(data.splits["val"])),
            layers=seen,
            device=device(target),
        )
        save(made, folder)
    print(f"{title}: {told(made)}", file=sys.stderr)


def compared(exact: torch.nn.Module, grafted: torch.nn.Module, data: TaskData, config: DictConfig) -> list[Layer]:
    """Layers on dev examples spread evenly over their lengths."""
    where = device(config)
    order = data.row_lengths["val"].argsort(stable=True).numpy()
    chosen = order[np.linspace(0, len(order) - 1, min(config.examples, len(order))).round().astype(int)]
    # Spread over batches too, so that the first of them, which the singular values come from, has every length.
    count = -(-len(chosen) // 8)
    gathered = (data.gather("val", chosen[i::count]) for i in range(count))
    batches = (Batch(*(part if part is None else part.to(where) for part in batch)) for batch in gathered)
    return layers(exact.to(where), grafted.to(where), batches, config.spectrum)


def told(made: TransferRecord) -> str:
    tuned = f", after {made.steps} steps {made.tuned_test}" if made.steps else ""
    return f"test {made.exact_test:.2f} -> {made.direct_test:.2f}{tuned}; mean |O - O'| " + ", ".join(
        f"{layer.mean_abs:.3g}" for layer in made.layers
    )


if __name__ == "__main__":
    transfer()
