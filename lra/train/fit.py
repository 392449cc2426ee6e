"""One run, from its folder to its record."""

import lightning as L
import torch
from torch import nn

from ..data import bag
from ..data.datamodule import TaskData
from ..runs import checkpoint, record
from . import diagnostics, machine, pretrain
from .lit_module import LitClassifier
from .phase import NOT_BEGUN, run_phase
from .plan import Plan, SeedPlan
from .trainer import lit_classifier


def fit(plan: Plan, run: SeedPlan, model: nn.Module | None = None) -> record.RunRecord:
    """Train, or resume, one seed and score its best dev checkpoint on the test set once.

    Args:
        plan: of the configuration.
        run: the seed.
        model: to start from; None for a new classifier, whose encoder ``plan.experiment.pretrain`` trains first.

    Raises:
        ValueError: a checkpoint cannot be used.
        KeyboardInterrupt: with the step that the same command resumes from.
    """
    machine.prepare(plan.device, plan.experiment.trainer.threads)
    first = pretrain.phase_one(plan, run) if model is None and plan.experiment.pretrained else None
    model = seeded(plan, run, model)
    if first and first.status == "done":
        pretrain.load_encoder(model, run.folder)
    data = plan.experiment.task_data(run.seed)
    module = lit_classifier(plan.experiment, model, seed=run.seed)
    if first and first.status == "diverged":
        data.setup()
        phase = NOT_BEGUN
    else:
        phase = run_phase(plan, run, module, data)
    done = phase.status == "done"
    score = test(phase.trainer, module, data, run) if done else None
    diagnosed = diagnostics.of_best(phase.trainer, module, data, plan.experiment.trainer.precision) if done else {}
    constant = data.baseline("test", module.metric)
    result = record.RunRecord(
        **origin(plan, run),
        params=sum(p.numel() for p in model.parameters()),
        val=phase.best_score,
        test=score,
        constant_baseline=constant,
        floor=max(constant, data.source.floor or 0.0),
        bag=bag.read(bag.path(data, plan.experiment.task.metric)),
        n_val=len(data.splits["val"]),
        n_test=len(data.splits["test"]),
        best_step=phase.best_step,
        steps=phase.steps,
        tokens=data.tokens(phase.steps),
        step_ms=phase.step_ms,
        peak_bytes=machine.peak_bytes(plan.device),
        device=machine.device_name(plan.device, plan.processes.count),
        status=phase.status,
        pretrain=first,
        data=data.source.substitute,
        train_loss=diagnostics.finite(phase.train_loss),
        **diagnosed,
    )
    for logger in phase.trainer.loggers if phase.trainer else ():
        logger.log_record(result)
    return result


def seeded(plan: Plan, run: SeedPlan, model: nn.Module | None) -> nn.Module:
    """The model in training mode, compiled if so configured; a new one has the weights of the seed."""
    torch.manual_seed(run.seed)
    model = plan.experiment.classifier() if model is None else model.train()
    if compiled := plan.experiment.trainer.compile:
        model.compile(mode=None if compiled is True else compiled)
    return model


def test(fitter: L.Trainer, module: LitClassifier, data: TaskData, run: SeedPlan) -> float:
    """Test score of the weights of the best dev score."""
    checkpoint.load_weights(module.model, run.folder / checkpoint.BEST)
    fitter.test(module, data, verbose=False)
    return module.score


def origin(plan: Plan, run: SeedPlan) -> dict:
    """The fields of a record that do not come from the training."""
    experiment = plan.experiment
    return {
        "study": experiment.study,
        "task": experiment.task.name,
        "protocol": experiment.protocol.name,
        "budget": experiment.budget,
        "label": experiment.label,
        "seed": run.seed,
        "fingerprint": run.fingerprint,
        "metric": experiment.task.metric,
        "lr": experiment.optim.lr,
        **record.provenance(experiment.command_overrides),
    }
