"""lra data: list the data; with task=listops prepare or verify one task, with task=all every task.

lra data inspect PATH describes what a folder or an archive holds.
"""

if __name__ == "__main__":
    import sys

    from lra import startup
    from lra.config.manual import begin

    # Before torch is imported. Other commands, such as show, answer --help themselves.
    if sys.argv[1:] and sys.argv[1].isidentifier():
        startup.begin()
    else:
        begin("data")

import hashlib
import runpy
import sys
from collections.abc import Iterable, Mapping, Sized
from pathlib import Path
from typing import ClassVar, Self

from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf

from lra.config import CONF, schema
from lra.config.compose import compose
from lra.config.entry import main
from lra.config.errors import explain
from lra.config.experiment import Experiment
from lra.config.options import TaskOptions, to_tree
from lra.console import log
from lra.data.source import Source
from lra.data.store import META, StoreError, load, verify

from . import inspect

TASKS = sorted(path.stem for path in (CONF / "task").glob("*.yaml"))


class PrepareOptions(TaskOptions):
    conf: ClassVar[str] = "data"
    unread: ClassVar[tuple[str, ...]] = tuple(Experiment.model_fields.keys() - TaskOptions.model_fields.keys())

    # Both are None without a task, which lists all data, and with task=all.
    task: schema.Task = schema.omittable()
    source: schema.Source = schema.omittable()
    workers: schema.Threads | None
    force: bool
    verify: bool

    def check(self) -> None:
        if self.force and self.verify:
            raise ValueError("force=true replaces data and verify=true only compares them; give one of them")

    @classmethod
    def from_config(cls, config: DictConfig, hydra_config: DictConfig) -> Self:
        groups = hydra_config.runtime.choices
        # An experiment also sets how a training reads the data, which preparation does not use.
        if groups.get("experiment"):
            data = {"root": config.data.root, "release": config.data.release}
            config = OmegaConf.create(to_tree(config) | {"data": data})
        options = super().from_config(config, hydra_config)
        task = groups.get("task")
        if options.source is None and task not in (None, "null", "all"):
            raise ValueError(f"task={task}: no such choice; task is one of all, {', '.join(TASKS)}")
        return options


@main(PrepareOptions)
def prepare(options: PrepareOptions) -> None:
    """List, prepare or verify data.

    Raises:
        ValueError: a task cannot be prepared or, at the end of task=all, failed.
    """
    if options.source is not None:
        make(options, options.data_source())
    elif "task=all" in options.data_overrides:
        make_all(options)
    elif options.verify or options.force:
        raise ValueError("verify=true and force=true need a task: task=all, or one of its tasks")
    else:
        for line in overview(options):
            print(line)


def of_task(options: PrepareOptions, task: str) -> PrepareOptions:
    """The options of another task with the same overrides, such as budget=smoke."""
    overrides = [line for line in options.data_overrides if not line.startswith("task=")]
    options_of_task = compose(PrepareOptions, [f"task={task}", *overrides])
    return options_of_task.replace(workers=options.workers, force=options.force, verify=options.verify)


def make(options: PrepareOptions, source: Source) -> None:
    """Prepare the data of a task or, with verify=true, compare their checksums."""
    root = options.data.root
    # Tasks that are generated on the fly have nothing to prepare.
    if not source.stored:
        counts = sizes(source.open(root))
        log(f"{options.task.name}: {counts} examples, generated on the fly; nothing to prepare")
    elif options.verify:
        source.load(root)
        verify(source.folder(root))
        log(f"{source.name}: every checksum is correct in {source.folder(root)}")
    else:
        folder = source.prepare(root, workers=options.workers, force=options.force)
        log(f"{source.name}: {sizes(source.load(root))} examples ready at {folder}")


def make_all(options: PrepareOptions) -> None:
    """Prepare or verify every task but those whose files the user has to provide; a task that fails stops no other."""
    # The reason of each failure, reported again at the end.
    failed = {}
    for task in TASKS:
        try:
            task_options = of_task(options, task)
            source = task_options.data_source()
            if source.manual:
                log(f"{task}: left out, because it needs files that you have to provide; see lra data task={task}")
            else:
                make(task_options, source)
        except (ValueError, OSError, HydraException) as error:
            failed[task] = explain(error)
            log(f"{task}: failed, {failed[task]}")
    if failed:
        reasons = "; ".join(f"{task} ({reason})" for task, reason in failed.items())
        raise ValueError(f"{len(failed)} of {len(TASKS)} tasks failed: {reasons}")


def overview(options: PrepareOptions) -> Iterable[str]:
    """Describe every task in lines: its data under data.root, their origin and licence, and the command for them."""
    root = options.data.root
    sources = {}
    left_out = {}
    for task in TASKS:
        # A task without this budget has no data.
        try:
            sources[task] = of_task(options, task).data_source()
        except (ValueError, HydraException) as error:
            left_out[task] = explain(error)
    # An option that every task refuses is a mistake.
    if not sources:
        raise ValueError(left_out[TASKS[0]])
    for task, reason in left_out.items():
        yield f"{task}\n  left out      {reason}"
    folders = {}
    obstacles = {}
    for task, source in sources.items():
        # A folder cannot be named while files are missing whose content is part of its name.
        try:
            folders[task] = source.folder(root)
        except ValueError as error:
            obstacles[task] = str(error)
    for task, source in sources.items():
        yield task
        if not source.stored:
            yield f"  generated     {sizes(source.open(root))}, on the fly; nothing to prepare"
        elif task in folders and folders[task].exists():
            yield f"  prepared      {describe(folders[task])}"
        else:
            yield "  not prepared"
        # Data of the same source with other arguments, which no task has with the given options.
        for meta in sorted(root.glob(f"{source.name}-*/{META}")):
            if meta.parent not in folders.values():
                yield f"  other choices {describe(meta.parent)}"
        yield f"  source        {source.origin}"
        yield f"  licence       {source.licence}"
        if source.stored:
            yield f"  prepare with  {obstacles.get(task) or source.command}"


def describe(folder: Path) -> str:
    """Describe a prepared folder: examples, size, start of the sha256 of its meta.json, path; or its damage."""
    try:
        splits = load(folder)
    except StoreError as error:
        return str(error)
    size = sum(file.stat().st_size for file in folder.iterdir()) / 1e6
    checksum = hashlib.sha256((folder / META).read_bytes()).hexdigest()[:12]
    return f"{sizes(splits)}; {size:,.1f} MB; sha256 {checksum}; {folder}"


def sizes(splits: Mapping[str, Sized]) -> str:
    """Format the number of examples of each split: "train 96,000, val 2,000, test 2,000"."""
    return ", ".join(f"{name} {len(split):,}" for name, split in splits.items())


def command(arguments: list[str]) -> None:
    """Run another command of ``lra data`` or, with options alone, the preparation.

    Raises:
        SystemExit: at the end of inspect, and for an unknown command.
    """
    first = arguments[0] if arguments else ""
    if first == "inspect":
        sys.exit(inspect.main(arguments[1:]))
    elif first in ("show", "export", "baselines", "bench"):
        sys.argv[1:] = arguments[1:]
        runpy.run_module(f"data_prep.{first}", run_name="__main__", alter_sys=True)
    elif first and "=" not in first and not first.startswith(("-", "+", "~")):
        commands = "inspect PATH, export, show, baselines, bench"
        sys.exit(f"lra: data {first}: no such command; it is one of {commands}, or options such as task=listops")
    else:
        prepare()


if __name__ == "__main__":
    command(sys.argv[1:])
