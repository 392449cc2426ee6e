"""The baselines of a task that need no attention: chance level, a bag of tokens, the first tokens."""

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import torch

from ..config.options import TaskOptions
from ..config.schema import Task
from ..console import log
from ..data import token_baselines
from ..data.datamodule import TaskData
from ..ops import metrics
from .lit import loss_of
from .plan import check_labels_and_tokens


@dataclass
class Baselines:
    """The baseline scores of a task on its test set, in percent.

    Args:
        data: data of the task, set up.
        metric: name of the metric, ``task.metric``.

    Attributes:
        bag_of_tokens: score of the bag-of-tokens baseline, which is stored next to the data; None if it was not fitted
            yet.
    """

    data: TaskData
    metric: metrics.Metric
    bag_of_tokens: float | None = field(init=False)

    def __post_init__(self) -> None:
        self.bag_of_tokens = token_baselines.read(self._bag_path)

    @cached_property
    def constant(self) -> float:
        """The score of the best constant answer."""
        return self.data.baseline("test", metrics.metric_function(self.metric))

    @property
    def analytic(self) -> float | None:
        """The chance level that is known for the source; None if the source has none."""
        return self.data.source.analytic_chance

    @property
    def chance(self) -> float:
        """The chance level: the best constant answer, or the analytic chance level if that is higher."""
        return max(self.constant, self.analytic or 0.0)

    @cached_property
    def first_tokens(self) -> token_baselines.FirstTokens | None:
        """The scores of the first-tokens baseline; None for real labels or features."""
        train = self.data.splits["train"]
        # The first token of the first example shows whether the inputs are features.
        tokens, _ = train.gather(torch.arange(1), 1)
        if tokens.is_floating_point() or train.labels.is_floating_point():
            return None
        return token_baselines.first_tokens(self.data, metrics.metric_function(self.metric))

    def fit_bag_of_tokens(self, task: Task) -> None:
        """Fit the bag-of-tokens baseline of a task with token ids, and store its score unless the disk is read-only."""
        scores = token_baselines.fit(
            self.data,
            metrics.metric_function(self.metric),
            vocab=task.vocab,
            outputs=task.outputs,
            loss=lambda outputs, labels: loss_of(outputs, labels, task.loss),
        )
        self.bag_of_tokens = scores["test"]
        try:
            token_baselines.write(self._bag_path, scores)
        except OSError as error:
            log(f"{task.name}: the score is not stored, {self._bag_path} cannot be written ({error.strerror})")

    @property
    def _bag_path(self) -> Path:
        return token_baselines.path(self.data, self.metric)


def baselines_of(options: TaskOptions, *, force: bool = False) -> Baselines:
    """Set up the data of a task, and fit its bag-of-tokens baseline if its score is not stored.

    Args:
        options: options with a task and its source.
        force: whether to fit the bag-of-tokens baseline again if its score is stored.
    """
    task = options.task
    data = TaskData(
        source=options.data_source(),
        root=str(options.data.root),
        length=task.length,
        limit=task.limit,
        shift=task.shift,
        masked_id=task.masked_id,
        batch=token_baselines.CHUNK,
    )
    data.setup()
    check_labels_and_tokens(task, data)
    baselines = Baselines(data, task.metric)
    # Tasks with float features have no tokens to count.
    if task.vocab is not None and (force or baselines.bag_of_tokens is None):
        log(f"{task.name}: fitting the bag of tokens")
        baselines.fit_bag_of_tokens(task)
    return baselines
