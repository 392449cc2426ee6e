"""The baselines of a task: chance level, and a classifier on the bag of tokens. Neither needs attention."""

from ..config.options import TaskOptions
from ..data import bag_of_tokens
from ..data.datamodule import TaskData
from ..ops import metrics
from .lit import loss_of


def baselines_of(options: TaskOptions, *, force: bool = False) -> tuple[float, float | None, float, float | None]:
    """Compute the baseline scores of a task.

    Args:
        options: options with a task and its source.
        force: whether to fit the bag-of-tokens baseline again if its score is stored.

    Returns:
        The score of the best constant answer; the analytic chance level, None if the source has none; the higher of the
        two; the score of the bag-of-tokens baseline, None for real features.
    """
    task = options.task
    metric = getattr(metrics, task.metric)
    data = TaskData(
        source=options.data_source(),
        root=options.data.root,
        length=task.length,
        limit=task.limit,
        shift=task.shift,
        masked_id=task.masked_id,
        batch=bag_of_tokens.CHUNK,
    )
    data.setup()
    # Chance level: the best constant answer, or a higher score that is known for the source.
    constant = data.baseline("test", metric)
    analytic = data.source.floor
    chance = max(constant, analytic or 0.0)

    # The bag-of-tokens score is stored next to the data.
    path = bag_of_tokens.path(data, task.metric)
    if task.vocab is not None and (force or bag_of_tokens.read(path) is None):
        score = bag_of_tokens.fit(
            data,
            metric,
            vocab=task.vocab,
            outputs=task.outputs,
            loss=lambda outputs, labels: loss_of(outputs, labels, task.loss),
        )
        bag_of_tokens.write(path, score)
    return constant, analytic, chance, bag_of_tokens.read(path)
