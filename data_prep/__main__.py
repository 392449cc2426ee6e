"""python -m data_prep: list the data; with task=listops prepare or verify one task, with task=all every task."""

import hashlib
from collections.abc import Iterable
from pathlib import Path

from hydra.errors import HydraException
from hydra.utils import instantiate
from omegaconf import DictConfig

from lra.config import CONF
from lra.config.compose import compose, data_command
from lra.config.entry import main
from lra.config.errors import explain
from lra.console import log, without_login
from lra.data.store import META, StoreError, load, verify

from .base import Source

TASKS = sorted(path.stem for path in (CONF / "task").glob("*.yaml"))


@main("data")
def prepare(config: DictConfig) -> None:
    """List, prepare or verify data.

    Raises:
        ValueError: a task is unknown, cannot be prepared or, at the end of task=all, failed.
    """
    chosen = [line.partition("=")[2] for line in config.data_overrides if line.startswith("task=")]
    if "source" in config:
        make(config, source_of(config))
    elif not chosen:
        for line in overview(config):
            print(line)
    elif chosen[-1] == "all":
        make_all(config)
    else:
        raise ValueError(f"task={chosen[-1]}: no such choice; task is one of all, {', '.join(TASKS)}")


def source_of(config: DictConfig) -> Source:
    source = instantiate(config.source)
    source.command = data_command(config)
    return source


def of_task(config: DictConfig, task: str) -> DictConfig:
    """The configuration of another task with the same overrides, such as budget=smoke."""
    overrides = [line for line in config.data_overrides if not line.startswith("task=")]
    composed = compose("data", [f"task={task}", *overrides])
    composed.workers, composed.force, composed.verify = config.workers, config.force, config.verify
    return composed


def make(config: DictConfig, source: Source) -> None:
    """Prepare the data of a task or, with verify=true, compare their checksums."""
    root = config.data.root
    if not source.stored:
        log(f"{config.task.name}: {sizes(source.open(root))} examples, made as they are read: nothing to prepare")
    elif config.verify:
        source.load(root)
        verify(source.folder(root))
        log(f"{source.name}: every checksum is right at {source.folder(root)}")
    else:
        folder = source.prepare(root, workers=config.workers, force=config.force)
        log(f"{source.name}: {sizes(source.load(root))} examples ready at {folder}")


def make_all(config: DictConfig) -> None:
    """Prepare every task whose files need no action of the user; a task that fails stops no other."""
    failed = {}
    for task in TASKS:
        try:
            task_config = of_task(config, task)
            source = source_of(task_config)
            if source.manual:
                log(f"{task}: left out, it needs files that only you can bring; python -m data_prep task={task}")
            else:
                make(task_config, source)
        except (ValueError, OSError, HydraException) as error:
            failed[task] = explain(error)
            log(f"{task}: failed, {failed[task]}")
    if failed:
        reasons = "; ".join(f"{task} ({reason})" for task, reason in failed.items())
        raise ValueError(f"{len(failed)} of {len(TASKS)} tasks failed: {reasons}")


def overview(config: DictConfig) -> Iterable[str]:
    """Describe every task in lines: its data under data.root, their origin and licence, and the command for them."""
    root = Path(config.data.root)
    sources = {task: source_of(of_task(config, task)) for task in TASKS}
    folders, obstacles = {}, {}
    for task, source in sources.items():
        try:
            folders[task] = source.folder(root)
        except ValueError as error:  # its folder cannot be named without files that are missing
            obstacles[task] = str(error)
    for task, source in sources.items():
        yield task
        if not source.stored:
            yield f"  made as read  {sizes(source.open(root))}; nothing to prepare"
        elif task in folders and folders[task].exists():
            yield f"  prepared      {described(folders[task])}"
        else:
            yield "  not prepared"
        for meta in sorted(root.glob(f"{source.name}-*/{META}")):
            if meta.parent not in folders.values():
                yield f"  other choices {described(meta.parent)}"
        yield f"  source        {source.origin}"
        yield f"  licence       {source.licence}"
        if source.stored:
            yield f"  to make it    {obstacles.get(task) or without_login(source.command)}"


def described(folder: Path) -> str:
    """Describe a prepared folder: examples, size, start of the sha256 of its meta.json, path; or its damage."""
    try:
        splits = load(folder)
    except StoreError as error:
        return str(error)
    size = sum(file.stat().st_size for file in folder.iterdir()) / 1e6
    checksum = hashlib.sha256((folder / META).read_bytes()).hexdigest()[:12]
    return f"{sizes(splits)}; {size:,.1f} MB; sha256 {checksum}; {folder}"


def sizes(splits: dict) -> str:
    return ", ".join(f"{name} {len(split):,}" for name, split in splits.items())


if __name__ == "__main__":
    prepare()
