"""LightningModules of pretraining and training: optimiser, schedule, the RNG of a step, loss and evaluation."""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Self

import lightning as L
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import ranks
from ..config.errors import is_out_of_memory
from ..config.experiment import Experiment
from ..data.datamodule import Batch
from ..model.pretrainer import Pretrainer, draw_holes
from ..ops import metrics
from .optim import adamw, schedule

# Value of ``bad_step`` while every loss has been finite.
NO_STEP = torch.iinfo(torch.int64).max


def loss(model: nn.Module, batch: Batch, kind: str = "cross_entropy") -> Tensor:
    """Compute the mean loss of a batch: cross entropy, or the squared error of the single output."""
    outputs = model(batch.inputs, batch.mask, batch.positions)
    return loss_of(outputs.float(), batch.label, kind)


def loss_of(outputs: Tensor, labels: Tensor, kind: str, reduction: str = "mean") -> Tensor:
    """Compute the loss of outputs.

    Args:
        outputs: logits (batch, classes), or real outputs (batch, 1).
        labels: classes (batch,), or real numbers (batch,).
        kind: ``cross_entropy`` | ``mse``.
        reduction: ``mean``, or ``none`` for the loss of each example.
    """
    if kind == "mse":
        return F.mse_loss(outputs[:, 0], labels, reduction=reduction)
    return F.cross_entropy(outputs, labels, reduction=reduction)


def seed_device(seed: int, device: torch.device) -> None:
    """Seed the RNG of the CPU and of one device.

    On these two it equals ``torch.manual_seed``, which seeds every accelerator and takes 128 us instead of 4 us.
    """
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.default_generators[device.index or 0].manual_seed(seed)


class LitModule(L.LightningModule):
    """The training of a model: AdamW, a learning-rate schedule, and an RNG that is seeded before every micro-batch.

    Reported values are aggregated over all ranks. An evaluation sets ``score``; higher is better. ``rate`` is the
    learning rate of the last step.

    Args:
        model: model to train.
        seed: random seed of everything random in a step: dropout, random selection, random features, holes.
        optim: options of the optimiser and the schedule, see ``conf/train.yaml``.
        cycle_momentum: whether the one-cycle schedule also moves beta1.
    """

    def __init__(self, model: nn.Module, seed: int, *, optim: Mapping[str, Any], cycle_momentum: bool):
        super().__init__()
        self.model = model
        self.seed = seed
        self.optim = optim
        self.cycle_momentum = cycle_momentum
        self.score = float("nan")

    @abstractmethod
    def batch_loss(self, batch: Batch) -> Tensor:
        """Compute the training loss of a batch."""

    def configure_optimizers(self):
        optimiser = adamw(self.model, self.optim)
        scheduler = schedule(optimiser, self.optim, cycle_momentum=self.cycle_momentum)
        if scheduler is None:
            return optimiser
        return {"optimizer": optimiser, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    def on_fit_start(self) -> None:
        # loss_sum and bad_step stay on the device, so that no step waits for the GPU.
        self.loss_sum = torch.zeros((), device=self.device)
        self.bad_step = torch.full((), NO_STEP, device=self.device)
        self.loss_count = 0

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        # Reseed the RNG from (seed, step, micro-batch, rank) before every micro-batch: a resumed run draws the same
        # numbers as an uninterrupted one, and no generator state is saved. SeedSequence hashes the four numbers to 64
        # bits, so neighbouring steps and ranks get unrelated streams.
        micro_batch = batch_idx % self.trainer.accumulate_grad_batches
        sequence = np.random.SeedSequence((self.seed, self.global_step, micro_batch, self.global_rank))
        (state,) = sequence.generate_state(1, np.uint64)
        seed_device(int(state), self.device)
        # Learning rate of this step, for the log: after the step the schedule has already changed it.
        optimiser: Any = self.optimizers()
        self.rate = optimiser.param_groups[0]["lr"]

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        value = self.batch_loss(batch)
        self.loss_count += 1
        with torch.no_grad():
            self.loss_sum += value
            candidate = torch.where(value.isfinite(), self.bad_step, self.global_step)
            torch.minimum(self.bad_step, candidate, out=self.bad_step)
        return value

    def pop_mean_loss(self) -> float:
        """Return the mean training loss over all ranks since the last call, and reset it. Every rank must call it."""
        rank_mean = float(self.loss_sum) / max(self.loss_count, 1)
        self.loss_sum.zero_()
        self.loss_count = 0
        rank_means = ranks.gather(rank_mean)
        return sum(rank_means) / len(rank_means)

    def first_bad_step(self) -> int | None:
        """Return the first step whose loss was not finite on at least one rank; None if there is none."""
        step = min(ranks.gather(int(self.bad_step)))
        return step if step < NO_STEP else None


class LitClassifier(LitModule):
    """A classifier with the loss of its task. ``score`` is the metric over all examples of a split.

    An evaluation also sets ``outputs`` and ``labels``: logits and labels of these examples from all ranks.

    Args:
        model: model to train.
        seed: random seed, see ``LitModule``.
        loss_kind: ``cross_entropy`` | ``mse``.
        metric: function of all outputs and labels of a split.
        optim, cycle_momentum: see ``LitModule``.
    """

    def __init__(
        self,
        model: nn.Module,
        seed: int,
        *,
        loss_kind: str,
        metric: Callable[[Tensor, Tensor], float],
        optim: Mapping[str, Any],
        cycle_momentum: bool,
    ):
        super().__init__(model, seed, optim=optim, cycle_momentum=cycle_momentum)
        self.loss_kind = loss_kind
        self.metric = metric
        # Maximum number of examples per forward pass in evaluation; None until memory runs out.
        self.eval_limit: int | None = None
        self._evaluated: list[tuple[Tensor, Tensor]] = []  # (outputs, labels) of the batches of this rank

    @classmethod
    def of(cls, experiment: Experiment, model: nn.Module, seed: int) -> Self:
        """Make the module of an experiment."""
        task = experiment.task
        return cls(
            model,
            seed,
            loss_kind=task.loss,
            metric=metrics.metric_function(task.metric),
            optim=dict(experiment.optim),
            cycle_momentum=experiment.protocol.cycle_momentum,
        )

    def batch_loss(self, batch: Batch) -> Tensor:
        return loss(self.model, batch, self.loss_kind)

    def on_validation_epoch_start(self) -> None:
        self._evaluated.clear()

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        self._evaluated.append((self._evaluate(batch), batch.label))

    def _evaluate(self, batch: Batch) -> Tensor:
        """Compute the outputs of a batch; if memory runs out, halve ``eval_limit`` and try again.

        Raises:
            RuntimeError, MemoryError: memory runs out in a forward pass that cannot be divided (it has one example, or
                a mechanism mixes examples), or the model fails for another reason.
        """
        batch_size = len(batch.label)
        size = min(self.eval_limit or batch_size, batch_size)
        outputs = []
        try:
            for first in range(0, batch_size, size):
                part = slice(first, first + size)
                inputs = batch.inputs[part]
                mask = None if batch.mask is None else batch.mask[part]
                positions = None if batch.positions is None else batch.positions[part]
                outputs.append(self.model(inputs, mask, positions).float())
            return torch.cat(outputs)
        except (RuntimeError, MemoryError) as error:
            # encode_separately: a mechanism is batch-dependent, so a smaller batch would change the outputs.
            is_indivisible = size == 1 or getattr(self.model, "encode_separately", False)
            if is_indivisible or not is_out_of_memory(error):
                raise
        # Retry outside the except block: inside it the traceback would keep the tensors of the failed pass alive.
        self.eval_limit = size // 2
        return self._evaluate(batch)

    def on_validation_epoch_end(self) -> None:
        # The batches of all ranks, one rank after the other; a rank may have none.
        local_batches = [(outputs.cpu(), labels.cpu()) for outputs, labels in self._evaluated]
        batches = [batch for rank_batches in ranks.gather(local_batches) for batch in rank_batches]
        self.outputs = torch.cat([outputs for outputs, _ in batches])
        self.labels = torch.cat([labels for _, labels in batches])
        self.score = self.metric(self.outputs, self.labels)
        self._evaluated.clear()

    test_step = validation_step
    on_test_epoch_start = on_validation_epoch_start
    on_test_epoch_end = on_validation_epoch_end


class LitPretrainer(LitModule):
    """A ``Pretrainer`` with its loss. ``score`` is the negative mean loss over the predicted positions of validation.

    There are two masks: ``holes`` is True at the positions that the model predicts, ``mask`` at real tokens. In
    training, holes come from the RNG of the step; in validation they depend only on the seed and the example's index in
    evaluation order.

    Args:
        model: model to train.
        seed: random seed, see ``LitModule``.
        ratio: probability that a real position becomes a hole; None for next-token prediction.
        length: maximum sequence length of the model.
        optim: options of the optimiser and the schedule.
        cycle_momentum: whether the one-cycle schedule also moves beta1.
    """

    model: Pretrainer

    def __init__(
        self,
        model: nn.Module,
        seed: int,
        *,
        ratio: float | None,
        length: int,
        optim: Mapping[str, Any],
        cycle_momentum: bool,
    ):
        super().__init__(model, seed, optim=optim, cycle_momentum=cycle_momentum)
        self.ratio = ratio
        self.length = length

    @classmethod
    def of(cls, experiment: Experiment, model: nn.Module, seed: int) -> Self:
        """Make the module of an experiment, whose ``optim`` must already hold the options of pretraining."""
        return cls(
            model,
            seed,
            ratio=experiment.pretrain.ratio,
            length=experiment.task.length,
            optim=dict(experiment.optim),
            cycle_momentum=experiment.protocol.cycle_momentum,
        )

    def batch_loss(self, batch: Batch) -> Tensor:
        holes = draw_holes(self.ratio, batch.inputs, batch.mask) if self.ratio else None
        loss_sum, count = self.model.sum_loss(batch.inputs, batch.mask, holes)
        # DDP averages gradients over ranks, so each rank scales its loss: 1/ranks Σ (loss_sum · ranks / total_count) =
        # Σ loss_sum / total_count, the mean over all predicted positions of this micro-batch.
        total_count = ranks.all_reduce_sum(torch.tensor(count, device=loss_sum.device))
        return loss_sum * ranks.world_size() / total_count.clamp(min=1)

    def on_validation_epoch_start(self) -> None:
        self._sums = np.zeros(2)

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        holes = self._validation_holes(batch, batch_idx)
        loss_sum, count = self.model.sum_loss(batch.inputs, batch.mask, holes)
        self._sums += (float(loss_sum), count)

    def _validation_holes(self, batch: Batch, batch_idx: int) -> Tensor | None:
        """Draw the holes of a validation batch, with one generator per example; None for next-token prediction."""
        if not self.ratio:
            return None
        batch_size, towers, width = batch.inputs.shape[:3]
        # Rank r of w evaluates batches r, r + w, ...; first is an index in evaluation order.
        batch_number = batch_idx * self.trainer.world_size + self.global_rank
        first = batch_number * self.trainer.datamodule.eval_batch
        draws = []
        for example in range(first, first + batch_size):
            generator = np.random.default_rng((self.seed, example))
            # Draw for the full length and cut: an example has the same holes in a batch of any width.
            draws.append(generator.random((towers, self.length), np.float32)[:, :width])
        holes = torch.from_numpy(np.stack(draws) < self.ratio).to(batch.inputs.device)
        return holes if batch.mask is None else holes & batch.mask

    def on_validation_epoch_end(self) -> None:
        loss_sum, count = np.sum(ranks.gather(self._sums), 0)
        self.score = -float(loss_sum / max(count, 1))
