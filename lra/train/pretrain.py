"""Phase one of a pretrained run: its encoder on the task's own inputs, in the folder ``pretrain`` of the run."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from ..config.experiment import Experiment
from ..console import log
from ..data.datamodule import Batch
from ..disk import checksums
from ..disk.atomic import below
from ..model.pretrainer import Pretrainer, draw_holes
from ..runs import checkpoint, config_file, evaluations, identity, pretraining
from ..runs.record import Pretraining
from . import distributed
from .lit_module import LitModule
from .phase import run_phase
from .plan import Plan, SeedPlan


def phase_one(plan: Plan, run: SeedPlan) -> Pretraining:
    """Train the encoder of a run, or resume it, or read the record of it if it is done.

    Raises:
        ValueError: a checkpoint or record cannot be used, or ``pretrain.from`` is of another phase one.
    """
    choices = plan.experiment.choices(plan.data.source.provenance) | {"seed": run.seed}
    folder, fingerprint = run.folder / pretraining.FOLDER, pretraining.fingerprint(choices)
    done = distributed.on_rank_zero(lambda: before(plan.experiment, folder, choices))
    if done:
        return done
    one = replace(plan, experiment=phase_experiment(plan.experiment))
    here = replace(run, folder=folder, title=f"{run.title} {pretraining.FOLDER}", fingerprints=(fingerprint,))
    torch.manual_seed(run.seed)
    model, data = one.experiment.pretrainer(), one.experiment.task_data(run.seed)
    if compiled := plan.experiment.trainer.compile:
        model.compile(mode=None if compiled is True else compiled)
    phase = run_phase(one, here, lit_pretrainer(one.experiment, model, run.seed), data)
    made = Pretraining(
        objective=plan.experiment.pretrain.objective,
        fingerprint=fingerprint,
        loss=None if phase.best_score is None else -phase.best_score,
        best_step=phase.best_step,
        steps=phase.steps,
        tokens=data.tokens(phase.steps),
        step_ms=phase.step_ms,
        status=phase.status,
    )
    if distributed.rank() == 0:
        pretraining.save(made, folder)
        log(f"{here.title}: {made.status}, dev loss {made.loss} at step {made.best_step}")
    return made


def before(experiment: Experiment, folder: Path, choices: dict) -> Pretraining | None:
    """The record of a phase one that is done, in its folder or where ``pretrain.from`` says; None if there is none.

    The folder is made.
    """
    folder = below(folder.parent, folder.name)
    folder.mkdir(exist_ok=True)
    path = folder / pretraining.NAME
    if not path.exists() and (other := experiment.pretrain.from_):
        _take(other, folder, choices)
    return pretraining.load(path, pretraining.fingerprint(choices)) if path.exists() else None


def _take(other: Path, folder: Path, choices: dict) -> None:
    """Copy the phase one of another run. Raises ValueError if it is not done, or another one than this run's."""
    seed = f"seed-{choices['seed']}"
    run = next((run for run in (other, other / seed) if (run / pretraining.FOLDER / pretraining.NAME).exists()), None)
    if run is None:
        raise ValueError(f"pretrain.from={other} is no run, and no folder of a {seed}, whose pretraining is done")
    theirs = config_file.read(run / config_file.NAME)
    found = pretraining.load(run / pretraining.FOLDER / pretraining.NAME)
    if found.fingerprint != pretraining.fingerprint(choices):
        same = pretraining.choices_of(theirs | {"seed": choices["seed"]}), pretraining.choices_of(choices)
        difference = identity.difference(*same) or "seed"
        raise ValueError(f"pretrain.from={other} was pretrained in another way ({difference})")
    there = run / pretraining.FOLDER
    if found.status == "done":
        evaluations.read(there)
        checkpoint.weights(there / checkpoint.BEST)
    for name in (evaluations.NAME, checkpoint.BEST, pretraining.NAME):
        if checksums.expected(there / name):  # a phase one may diverge before its first evaluation
            checksums.copy(there / name, folder / name)


def load_encoder(model: nn.Module, run: Path) -> None:
    """Put the encoder of phase one into a classifier, whose pooling and head stay. Raises ValueError if it is none."""
    path = run / pretraining.FOLDER / checkpoint.BEST
    encoder = {name: value for name, value in checkpoint.weights(path).items() if name in model.state_dict()}
    try:
        missing = model.load_state_dict(encoder, strict=False).missing_keys
    except RuntimeError:
        missing = ["shapes"]
    if any(not name.startswith("head.") for name in missing):
        raise ValueError(f"{path} does not hold the encoder of this model; delete its folder to run that seed again")


def phase_experiment(experiment: Experiment) -> Experiment:
    """The experiment of phase one: its own options of optim, and no logger but metrics.csv."""
    csv = {name: logger for name, logger in experiment.logger.items() if name == "csv"}
    return experiment.changed(optim=experiment.pretrain.of(experiment.optim), logger=csv)


def lit_pretrainer(experiment: Experiment, model: Pretrainer, seed: int) -> "LitPretrainer":
    return LitPretrainer(
        model,
        ratio=experiment.pretrain.ratio,
        length=experiment.task.length,
        seed=seed,
        optim=dict(experiment.optim),
        cycle_momentum=experiment.protocol.cycle_momentum,
    )


class LitPretrainer(LitModule):
    """The loss of a ``Pretrainer``; ``score`` is the negative mean of it over the positions of dev that count.

    The holes of a training step are functions of (seed, step), those of dev of (seed, example), whatever the batch.

    Args:
        model: to train.
        ratio: share of masked positions; None without any.
        length: of the longest row.
        seed, optim, cycle_momentum: as in ``LitModule``.
    """

    def __init__(self, model: Pretrainer, *, ratio: float | None, length: int, **shared):
        super().__init__(model, **shared)
        self.ratio, self.length = ratio, length

    def batch_loss(self, batch: Batch) -> Tensor:
        holes = draw_holes(self.ratio, batch.inputs, batch.mask) if self.ratio else None
        total, count = self.model.error(batch.inputs, batch.mask, holes)
        # Gradients are averaged over the processes, whose shares have different numbers of positions that count.
        positions = distributed.total(torch.tensor(count, device=total.device))
        return total * distributed.count() / positions.clamp(min=1)

    def on_validation_epoch_start(self) -> None:
        self._sums = np.zeros(2)

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        total, count = self.model.error(batch.inputs, batch.mask, self._dev_holes(batch, batch_idx))
        self._sums += (float(total), count)

    def _dev_holes(self, batch: Batch, batch_idx: int) -> Tensor | None:
        if not self.ratio:
            return None
        rows, towers, width = batch.inputs.shape[:3]
        trainer = self.trainer
        first = (batch_idx * trainer.world_size + self.global_rank) * trainer.datamodule.eval_batch
        generators = (np.random.default_rng((self.seed, first + row)) for row in range(rows))
        drawn = np.stack([g.random((towers, self.length), np.float32)[:, :width] for g in generators]) < self.ratio
        holes = torch.from_numpy(drawn).to(batch.inputs.device)
        return holes if batch.mask is None else holes & batch.mask

    def on_validation_epoch_end(self) -> None:
        total, count = np.sum(distributed.gather(self._sums), 0)
        self.score = -float(total / max(count, 1))
