"""Lightning's Trainer and module for a plan, and the evaluation of a model by them."""

import logging
import warnings
from collections.abc import Sequence

import lightning as L
from lightning.pytorch.strategies import DDPStrategy
from torch import nn

from ..config.experiment import Experiment
from ..data.datamodule import TaskData
from .heap import Trim
from .lit_module import LitClassifier
from .plan import Plan

PRECISIONS = {"fp32": "32-true", "bf16": "bf16-mixed", "fp16": "16-mixed"}
_INTENDED = (  # warnings about things that are meant to be so
    "does not have many workers|Starting from v1.9|length of `list`|LeafSpec|broadcast_buffers|no `val_dataloader`"
)


def quiet() -> None:
    """Silence Lightning's tips, and warnings about things that are meant to be so."""
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", message=f".*({_INTENDED}).*")
    warnings.filterwarnings("ignore", message=".*lr_scheduler.step\\(\\).*before.*optimizer.step\\(\\).*")


def lit_classifier(experiment: Experiment, model: nn.Module, *, seed: int) -> LitClassifier:
    """A classifier with the metric, the loss, the optimiser and the schedule of an experiment."""
    return LitClassifier(
        model,
        metric=experiment.task.metric,
        loss=experiment.task.loss,
        seed=seed,
        optim=dict(experiment.optim),
        cycle_momentum=experiment.protocol.cycle_momentum,
    )


def trainer(plan: Plan, callbacks: Sequence[L.Callback] = (), **options) -> L.Trainer:
    """A Trainer on the plan's processes that neither logs nor saves by itself; options: further ones of L.Trainer."""
    quiet()
    several = plan.processes.count > 1
    return L.Trainer(
        callbacks=[*([Trim()] if plan.device == "cpu" else []), *callbacks],
        accelerator=plan.device,
        devices=plan.processes.local,
        num_nodes=plan.processes.count // plan.processes.local,
        # Buffers are the same everywhere, and in evaluation the processes may have different numbers of batches.
        strategy=DDPStrategy(broadcast_buffers=False) if several else "auto",
        plugins=[plan.processes.environment],
        use_distributed_sampler=False,
        precision=PRECISIONS[plan.experiment.trainer.precision],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )


def evaluate(plan: Plan, model: nn.Module, data: TaskData) -> tuple[float, float]:
    """Score a model on every example of dev, and of test."""
    module, tester = lit_classifier(plan.experiment, model, seed=0), trainer(plan, logger=False)
    tester.validate(module, data, verbose=False)
    val = module.score
    tester.test(module, data, verbose=False)
    return val, module.score
