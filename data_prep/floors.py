"""python -m data_prep.floors task=recall: the scores that need no attention; task=all for every task, or experiment=.

The columns are test scores in percent: the best constant answer, the score that is known to need nothing of what the
task asks for, the larger of both (the floor), and a classifier on the counts of tokens, which is fitted once.
"""

from functools import partial

from lra.config.entry import main
from lra.config.experiment import Experiment
from lra.console import log
from lra.data import bag
from lra.data.datamodule import TaskData
from lra.data.store import StoreError
from lra.ops import metrics
from lra.train.lit_module import loss_of

from .__main__ import TASKS, PrepareOptions, of_task

HEAD = ("constant", "analytic", "floor", "bag")


@main(PrepareOptions)
def floors(options: PrepareOptions) -> None:
    """Print a line for each task; fit the bag of tokens where it is missing, or anew with force=true.

    Raises:
        ValueError: no task is named, or its data are missing.
    """
    chosen = [line.partition("=")[2] for line in options.data_overrides if line.startswith("task=")]
    if options.source is None and chosen[-1:] != ["all"]:
        raise ValueError(f"task must be one of all, {', '.join(TASKS)}")
    lines = {}
    for one in [options] if options.source is not None else [of_task(options, task) for task in TASKS]:
        try:
            lines[one.task.name] = of(one, force=options.force)
        except StoreError as error:
            if options.source is not None:
                raise
            log(f"{one.task.name}: left out, {error}")
    width = max(map(len, lines), default=0)
    print(" ".join([" " * width, *(f"{name:>8}" for name in HEAD)]))
    for task, scores in lines.items():
        print(" ".join([f"{task:<{width}}", *(f"{'-' if score is None else f'{score:.2f}':>8}" for score in scores)]))


def of(options: PrepareOptions | Experiment, *, force: bool = False) -> tuple[float, float | None, float, float | None]:
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


if __name__ == "__main__":
    floors()
