"""The LightningModules: optimiser, schedule and random numbers of a step; loss and evaluation of both phases."""

from abc import abstractmethod

import lightning as L
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..config.experiment import Experiment
from ..data.datamodule import Batch
from ..model.pretrainer import draw_holes
from ..ops import metrics
from . import distributed, machine
from .optim import adamw, schedule


def loss(model: nn.Module, batch: Batch, kind: str = "cross_entropy") -> Tensor:
    """Mean over the batch of the cross entropy, or of the squared error of the single output."""
    return loss_of(model(batch.inputs, batch.mask, batch.positions).float(), batch.label, kind)


def loss_of(outputs: Tensor, labels: Tensor, kind: str, reduction: str = "mean") -> Tensor:
    """As ``loss``, of outputs (B, classes or 1) and labels (B,); reduction: ``none`` for the loss of each row."""
    if kind == "mse":
        return F.mse_loss(outputs[:, 0], labels, reduction=reduction)
    return F.cross_entropy(outputs, labels, reduction=reduction)


def seed_device(seed: int, device: torch.device) -> None:
    """As ``torch.manual_seed``, for the CPU and one device, without asking every kind of accelerator: 4 us for 128."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.default_generators[device.index or 0].manual_seed(seed)


class LitModule(L.LightningModule):
    """AdamW under a one-cycle schedule with linear annealing (docs/sources.md, Nystromformer) or another one.

    Random numbers of step k (dropout, random selection) are a function of (seed, k) and, of several processes, of which
    it is, so a resumed run draws what an uninterrupted one would have drawn. ``train_loss`` adds up on the device;
    ``bad_step`` is the first optimiser step with a loss that is not finite. What is told is of all processes together.
    An evaluation sets ``score``, which is better if it is higher.

    Args:
        experiment: experiment with the loss, the optimiser and the schedule.
        model: model to train.
        seed: seed of the random numbers.
    """

    def __init__(self, experiment: Experiment, model: nn.Module, seed: int):
        super().__init__()
        self.experiment, self.model, self.seed, self.score = experiment, model, seed, float("nan")

    @abstractmethod
    def batch_loss(self, batch: Batch) -> Tensor: ...

    def configure_optimizers(self):
        optim = dict(self.experiment.optim)
        optimiser = adamw(self.model, optim)
        rates = schedule(optimiser, optim, cycle_momentum=self.experiment.protocol.cycle_momentum)
        if rates is None:
            return optimiser
        return {"optimizer": optimiser, "lr_scheduler": {"scheduler": rates, "interval": "step"}}

    def on_fit_start(self) -> None:
        self.loss_sum = torch.zeros((), device=self.device)
        self.loss_count = 0
        self.bad_step = torch.full((), torch.iinfo(torch.int64).max, device=self.device)

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        micro = batch_idx % self.trainer.accumulate_grad_batches
        key = np.random.SeedSequence((self.seed, self.global_step, micro, self.global_rank))
        seed_device(int(key.generate_state(1, np.uint64)[0]), self.device)
        self.rate = self.optimizers().param_groups[0]["lr"]

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        value = self.batch_loss(batch)
        self.loss_count += 1
        step = self.bad_step.new_full((), self.global_step)  # a number would be copied to the device, and waited for
        with torch.no_grad():
            self.loss_sum += value
            self.bad_step.clamp_(max=torch.where(value.isfinite(), self.bad_step, step))
        return value

    def mean_loss(self) -> float:
        """Mean training loss since the last call."""
        means = distributed.gather(float(self.loss_sum) / max(self.loss_count, 1))
        self.loss_sum.zero_()
        self.loss_count = 0
        return sum(means) / len(means)

    def first_bad_step(self) -> int | None:
        step = min(distributed.gather(int(self.bad_step)))
        return step if step < torch.iinfo(torch.int64).max else None


class LitClassifier(LitModule):
    """The loss of a task, and the ``metric`` over all examples of a split."""

    def __init__(self, experiment: Experiment, model: nn.Module, seed: int):
        super().__init__(experiment, model, seed)
        self.metric, self.loss = getattr(metrics, experiment.task.metric), experiment.task.loss
        self.eval_rows: int | None = None  # of a forward pass in evaluation, after memory ran out with more
        self._outputs: list[tuple[Tensor, Tensor]] = []

    def batch_loss(self, batch: Batch) -> Tensor:
        return loss(self.model, batch, self.loss)

    def on_validation_epoch_start(self) -> None:
        self._outputs.clear()

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        self._outputs.append((self._evaluated(batch), batch.label))

    def _evaluated(self, batch: Batch) -> Tensor:
        """The outputs for a batch; if memory is short, of halves, and from then on of no more rows at a time.

        Raises:
            RuntimeError, MemoryError: the allocator's error, if one example is too many or examples change each
                other's result; any other error of the model.
        """
        rows = min(self.eval_rows or len(batch.label), len(batch.label))
        given, firsts = (batch.inputs, batch.mask, batch.positions), range(0, len(batch.label), rows)
        cut = lambda first: [None if x is None else x[first : first + rows] for x in given]
        try:  # clone: a CUDA graph writes over its last output
            return torch.cat([self.model(*cut(first)).float().clone() for first in firsts])
        except (RuntimeError, MemoryError) as error:
            separate = getattr(self.model, "by_tower", False)
            if rows == 1 or separate or not machine.is_out_of_memory(error):
                raise
        self.eval_rows = rows // 2
        return self._evaluated(batch)

    def on_validation_epoch_end(self) -> None:
        mine = [torch.cat(parts).cpu() for parts in zip(*self._outputs, strict=True)]
        shares = [share for share in distributed.gather(mine) if share]  # a process may have had no batch
        self.outputs, self.labels = (torch.cat(parts) for parts in zip(*shares, strict=True))
        self.score = self.metric(self.outputs, self.labels)
        self._outputs.clear()

    test_step = validation_step
    on_test_epoch_start, on_test_epoch_end = on_validation_epoch_start, on_validation_epoch_end


class LitPretrainer(LitModule):
    """The loss of a ``Pretrainer``; ``score`` is the negative mean of it over the positions of dev that count.

    The holes of a training step are functions of (seed, step), those of dev of (seed, example), whatever the batch.
    """

    def batch_loss(self, batch: Batch) -> Tensor:
        ratio = self.experiment.pretrain.ratio
        holes = draw_holes(ratio, batch.inputs, batch.mask) if ratio else None
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
        ratio, length = self.experiment.pretrain.ratio, self.experiment.task.length
        if not ratio:
            return None
        rows, towers, width = batch.inputs.shape[:3]
        trainer = self.trainer
        first = (batch_idx * trainer.world_size + self.global_rank) * trainer.datamodule.eval_batch
        generators = (np.random.default_rng((self.seed, first + row)) for row in range(rows))
        drawn = np.stack([g.random((towers, length), np.float32)[:, :width] for g in generators]) < ratio
        holes = torch.from_numpy(drawn).to(batch.inputs.device)
        return holes if batch.mask is None else holes & batch.mask

    def on_validation_epoch_end(self) -> None:
        total, count = np.sum(distributed.gather(self._sums), 0)
        self.score = -float(total / max(count, 1))
