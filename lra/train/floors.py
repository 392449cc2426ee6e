"""The floors of a task: the scores that need no attention."""

from functools import partial

from ..config.options import TaskOptions
from ..data import bag
from ..data.datamodule import TaskData
from ..ops import metrics
from .lit import loss_of


def floors_of(options: TaskOptions, *, force: bool = False) -> tuple[float, float | None, float, float | None]:
    """Compute the scores of a task: constant, analytic and floor, and the bag of tokens, None for real features.

    Args:
        options: options with a task and its source.
        force: whether a bag of tokens that was fitted before is fitted anew.
    """
    task, metric = options.task, getattr(metrics, options.task.metric)
    data = TaskData(
        source=options.data_source(),
        root=options.data.root,
        length=task.length,
        limit=task.limit,
        shift=task.shift,
        masked_id=task.masked_id,
        batch=bag.CHUNK,
    )
    data.setup()
    constant, analytic = data.baseline("test", metric), data.source.floor
    file = bag.path(data, task.metric)
    if task.vocab is not None and (force or bag.read(file) is None):
        loss = partial(loss_of, kind=task.loss)
        bag.write(file, bag.fit(data, metric, vocab=task.vocab, outputs=task.outputs, loss=loss))
    return constant, analytic, max(constant, analytic or 0.0), bag.read(file)
