"""The loss, and the LightningModule around a classifier: optimiser, schedule, evaluation."""

from collections.abc import Mapping

import lightning as L
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from . import metric as metrics
from .data.task import Batch

LOSSES = ("cross_entropy", "mse")


def loss(model: nn.Module, batch: Batch, kind: str = LOSSES[0]) -> Tensor:
    """Mean over the batch of the cross entropy, or of the squared error of the single output."""
    outputs = model(batch.inputs, batch.mask).float()
    return F.mse_loss(outputs[:, 0], batch.label) if kind == "mse" else F.cross_entropy(outputs, batch.label)


def adamw(model: nn.Module, optim: Mapping, *, capturable: bool = False) -> torch.optim.AdamW:
    """One launch for all parameters; ``capturable``: can be part of a CUDA graph."""
    return torch.optim.AdamW(
        model.parameters(),
        lr=optim["lr"],
        betas=tuple(optim["betas"]),
        eps=optim["eps"],
        weight_decay=optim["weight_decay"],
        fused=True,
        capturable=capturable,
    )


class Training(L.LightningModule):
    """AdamW under a one-cycle schedule with linear annealing (protocols.yaml, nystromformer_small).

    Random numbers of step k (dropout, random selection) are a function of (seed, k), so a resumed run draws what an
    uninterrupted one would have drawn. ``train_loss`` adds up on the device; ``bad_step`` is the first optimiser step
    with a loss that is not finite.
    """

    def __init__(self, model: nn.Module, *, metric: str, loss: str, seed: int, optim: dict, cycle_momentum: bool):
        super().__init__()
        self.model, self.seed, self.optim, self.cycle_momentum = model, seed, optim, cycle_momentum
        self.metric, self.loss = getattr(metrics, metric), loss
        self.score = float("nan")
        self._outputs: list[tuple[Tensor, Tensor]] = []

    def configure_optimizers(self):
        o = self.optim
        optimiser = adamw(self.model, o)
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimiser,
            max_lr=o["lr"],
            total_steps=o["steps"],
            pct_start=o["warmup"] / o["steps"],
            anneal_strategy="linear",
            cycle_momentum=self.cycle_momentum,
        )
        return {"optimizer": optimiser, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def on_fit_start(self) -> None:
        self.loss_sum = torch.zeros((), device=self.device)
        self.loss_count = 0
        self.bad_step = torch.full((), torch.iinfo(torch.int64).max, device=self.device)

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        micro = batch_idx % self.trainer.accumulate_grad_batches
        key = np.random.SeedSequence((self.seed, self.global_step, micro)).generate_state(1, np.uint64)[0]
        torch.manual_seed(int(key))
        self.rate = self.optimizers().param_groups[0]["lr"]

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        value = loss(self.model, batch, self.loss)
        with torch.no_grad():
            self.loss_sum += value
            self.loss_count += 1
            self.bad_step.clamp_(max=torch.where(value.isfinite(), self.bad_step, self.global_step))
        return value

    def mean_loss(self) -> float:
        """Mean training loss since the last call."""
        mean = float(self.loss_sum) / max(self.loss_count, 1)
        self.loss_sum.zero_()
        self.loss_count = 0
        return mean

    def on_validation_epoch_start(self) -> None:
        self._outputs.clear()

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        outputs = self.model(batch.inputs, batch.mask)
        self._outputs.append((outputs.float().clone(), batch.label))  # a CUDA graph writes over what it returned

    def on_validation_epoch_end(self) -> None:
        outputs, labels = (torch.cat(parts) for parts in zip(*self._outputs, strict=True))
        self.score, self.scored = self.metric(outputs, labels), len(labels)
        self._outputs.clear()

    on_test_epoch_start, test_step, on_test_epoch_end = (
        on_validation_epoch_start,
        validation_step,
        on_validation_epoch_end,
    )
