"""python -m data_prep.floors task=recall: the scores that need no attention; task=all for every task, or experiment=.

The columns are test scores in percent: the best constant answer, the score that is known to need nothing of what the
task asks for, the larger of both (the floor), and a classifier on the counts of tokens, which is fitted once.
"""

if __name__ == "__main__":
    from lra.startup import begin

    begin()  # before torch is imported

from lra.config.entry import main
from lra.console import log
from lra.data.store import StoreError
from lra.train.baselines import baselines_of

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
            lines[one.task.name] = baselines_of(one, force=options.force)
        except StoreError as error:
            if options.source is not None:
                raise
            log(f"{one.task.name}: left out, {error}")
    width = max(map(len, lines), default=0)
    print(" ".join([" " * width, *(f"{name:>8}" for name in HEAD)]))
    for task, scores in lines.items():
        print(" ".join([f"{task:<{width}}", *(f"{'-' if score is None else f'{score:.2f}':>8}" for score in scores)]))


if __name__ == "__main__":
    floors()
