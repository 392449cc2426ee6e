"""lra data baselines task=recall: baseline scores that need no attention; also with task=all or experiment=.

The columns are test scores in percent: ``constant`` is the best constant answer, ``analytic`` the chance level that the
source states for a guess among the plausible labels, ``chance`` the larger of both, ``bag`` the bag-of-tokens baseline,
which is fitted once and stored below the root of the data, and ``first`` the first-tokens baseline.
"""

if __name__ == "__main__":
    from lra.config.manual import begin

    begin("data")  # before torch is imported

from collections.abc import Mapping

from hydra.errors import HydraException

from lra.config.entry import main
from lra.config.errors import explain
from lra.console import log
from lra.train.baselines import Baselines, baselines_of

from .__main__ import TASKS, PrepareOptions, of_task

HEAD = ("constant", "analytic", "chance", "bag", "first")


@main(PrepareOptions)
def baselines(options: PrepareOptions) -> None:
    """Print the baseline scores; fit the bag-of-tokens baseline of each task where it is missing or with force=true.

    Raises:
        ValueError: no task is named, or its data are missing.
    """
    has_task = options.source is not None
    tasks = [line.partition("=")[2] for line in options.data_overrides if line.startswith("task=")]
    if not has_task and tasks[-1:] != ["all"]:
        raise ValueError(f"task must be one of all, {', '.join(TASKS)}")

    baselines_of_tasks = {}
    if has_task:
        baselines_of_tasks[options.task.name] = baselines_of(options, force=options.force)
    else:
        reasons = {}
        for task in TASKS:
            # A task without this budget, or whose data are not prepared, is skipped.
            try:
                task_options = of_task(options, task)
                check_prepared(task_options)
                baselines_of_tasks[task_options.task.name] = baselines_of(task_options, force=options.force)
            except (ValueError, HydraException) as error:
                reasons[task] = explain(error)
                log(f"{task}: skipped, {reasons[task]}")
        if not baselines_of_tasks:
            raise ValueError(f"no task is left; {TASKS[0]}: {reasons[TASKS[0]]}")

    print_table(baselines_of_tasks)


def print_table(baselines_of_tasks: Mapping[str, Baselines]) -> None:
    """Print a row for each task, with a dash for a score that does not exist, then the first-tokens baselines."""
    scores = {}
    remarks = []
    for name, task_baselines in baselines_of_tasks.items():
        first = task_baselines.first_tokens
        scores[name] = (
            task_baselines.constant,
            task_baselines.analytic,
            task_baselines.chance,
            task_baselines.bag_of_tokens,
            None if first is None else first.test,
        )
        if first is not None:
            tests = ", ".join(f"{score:.2f}" for score in first.tests)
            remarks.append(f"{name}, first 1, 2, ... tokens: {tests}; {first.num_tokens} by validation")

    width = max(map(len, scores), default=0)
    heads = [f"{name:>8}" for name in HEAD]
    print(" ".join([" " * width, *heads]))
    for name, columns in scores.items():
        cells = ["-" if score is None else f"{score:.2f}" for score in columns]
        padded_cells = [f"{cell:>8}" for cell in cells]
        print(" ".join([f"{name:<{width}}", *padded_cells]))
    for remark in remarks:
        print(remark)


def check_prepared(options: PrepareOptions) -> None:
    """Raise ValueError if the data of a task are stored and not prepared."""
    source = options.data_source()
    if source.stored and not source.folder(options.data.root).exists():
        raise ValueError(f"its data are not prepared: {source.command}")


if __name__ == "__main__":
    baselines()
