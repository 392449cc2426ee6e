"""Training by CUDA graphs, one of a whole step for each form of a batch; on a CPU by the same steps without graphs."""

from collections import Counter
from collections.abc import Callable, Iterable

import lightning as L
import torch
from torch import Tensor

from ..console import log
from ..data.datamodule import Batch, Form
from . import flat_adamw, graph_step
from .callbacks import CHECK_EVERY
from .lit_module import LitClassifier

GRAPHS = 32  # of the most frequent forms; steps of other forms are made without one
WARM_UP = 3  # steps of a form before its graph is captured, in which libraries allocate what they keep


class Graphs:
    """A step by form, replayed from a CUDA graph once it was made ``WARM_UP`` times; the graphs share their memory.

    Warming up is training: these steps are made on the stream of the captures, and count. Random numbers are those of
    the default generator's state at the time of a replay.

    Args:
        step: makes a step, without waiting for the device.
        forms: that are worth a graph.
    """

    def __init__(self, step: Callable[[Form], None], forms: Iterable[Form]):
        self.step, self.forms = step, frozenset(forms)
        self.graphs: dict[Form, torch.cuda.CUDAGraph] = {}
        self.uses: Counter[Form] = Counter()
        self.stream, self.pool = torch.cuda.Stream(), torch.cuda.graph_pool_handle()

    def __call__(self, form: Form) -> None:
        """Raises ValueError if the step cannot be captured."""
        if form in self.forms and form not in self.graphs and self.uses[form] == WARM_UP:
            self.graphs[form] = self._captured(form)
        if graph := self.graphs.get(form):
            graph.replay()
            return
        self.uses[form] += 1
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            self.step(form)
        torch.cuda.current_stream().wait_stream(self.stream)

    def _captured(self, form: Form) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, pool=self.pool, stream=self.stream):
                self.step(form)
        except RuntimeError as error:
            reason = str(error.__context__ or error).splitlines()[0]  # leaving the block may raise an error of its own
            raise ValueError(f"trainer=graph cannot capture a step of this model: {reason}") from error
        return graph


def worthwhile(forms: Iterable[Form]) -> list[Form]:
    """The forms of these steps that get a graph: the most frequent ones, and none that ends in its warm-up."""
    return [form for form, count in Counter(forms).most_common(GRAPHS) if count > WARM_UP]


class LitGraph(LitClassifier):
    """A classifier whose steps are those of ``graph_step``, in blocks; one block is one batch of Lightning's loop.

    A block ends where a callback looks at the run. Lightning's counters and schedule advance by its steps, so that
    evaluations and checkpoints are those of the loop that makes them one by one, and either goes on from the other's.
    """

    def setup(self, stage: str) -> None:
        if stage == "fit":
            self.trainer.datamodule.block_end = self.block_end

    def block_end(self, step: int) -> int:
        """The step after the block that begins with ``step``."""
        return min((step // every + 1) * every for every in (CHECK_EVERY, self.optim["eval_every"]))

    def on_train_start(self) -> None:
        data, device, steps = self.trainer.datamodule, self.device, self.optim["steps"]
        made, optimiser = self.global_step, self.optimizers(use_pl_optimizer=False)
        self.zero_grad()
        order = data.train_order(steps)
        self.forms = [data.form("train", examples) for examples in order]
        coefficients = flat_adamw.coefficients(self.model, self.optim, cycle_momentum=self.cycle_momentum)
        self.tables = graph_step.Tables(torch.from_numpy(order).to(device), coefficients.to(device))
        self.state = graph_step.State(
            [flat_adamw.FlatGroup(optimiser, group, made) for group in optimiser.param_groups],
            torch.full((1,), made, device=device),
        )
        self.graphs = None
        if device.type == "cuda":
            captured = worthwhile(self.forms[made:])
            widths = ", ".join(map(str, sorted({form.width for form in captured})))
            log(f"trainer=graph: {len(captured)} CUDA graphs of a step, for rows of {widths} tokens")
            self.graphs = Graphs(self.make_step, captured)

    def on_train_end(self) -> None:
        del self.graphs, self.tables, self.state

    def on_train_batch_start(self, batch: tuple[int, int], batch_idx: int) -> None:
        self.first, self.stop = batch

    def optimizer_step(self, epoch: int, batch_idx: int, optimizer, optimizer_closure: Callable) -> None:
        """Make the steps of a block; the closure, which cannot be left out, does nothing."""
        schedule, made = self.lr_schedulers(), 0
        for step in range(self.first, self.stop):
            self.seed_step(step)
            (self.graphs or self.make_step)(self.forms[step])
            self.loss_count += 1
            made += 1
            self.rate = optimizer.param_groups[0]["lr"]
            if step + 1 == self.stop or self.trainer.received_sigterm:
                break  # Lightning moves the schedule for the last step, and stops if it was asked to
            if schedule:
                schedule.step()
        for group in self.state.groups:
            group.made.add_(made)
        advance(self.trainer, made - 1)
        optimizer_closure()

    def make_step(self, form: Form) -> None:
        """Make one step without a graph; its number is on the device."""
        value = graph_step.step(
            self.state,
            self.tables,
            gather=lambda index: self.trainer.datamodule.gather_form("train", index, form),
            loss=self._loss,
            clip_norm=self.optim["clip_norm"],
        )
        self.add_loss(value, self.state.number[0] - 1)

    def _loss(self, batch: Batch) -> Tensor:
        with self.trainer.precision_plugin.forward_context():
            return self.batch_loss(batch)

    def training_step(self, batch: tuple[int, int], batch_idx: int) -> Tensor:
        return self.loss_sum  # the loop wants some loss

    def backward(self, loss: Tensor) -> None:
        """The steps made their own."""

    def optimizer_zero_grad(self, epoch: int, batch_idx: int, optimizer) -> None:
        """Gradients are written over."""


def advance(trainer: L.Trainer, steps: int) -> None:
    """Count more steps than the one that Lightning's loop counts for a batch."""
    loop = trainer.fit_loop.epoch_loop
    progress = loop.automatic_optimization.optim_progress.optimizer
    for counter in (loop.batch_progress, progress.step, progress.zero_grad):
        counter.increment_by(steps)
    if trainer.lr_scheduler_configs:
        loop.scheduler_progress.increment_by(steps)
    loop._batches_that_stepped += steps
