"""python -m lra.train task=listops attn=cur_abs: every seed of one configuration, skipped, resumed or run."""

import contextlib
from pathlib import Path

from omegaconf import DictConfig

from ..config import main
from ..runs import record
from ..runs.folder import claim, writing
from . import build, distributed
from .distributed import log
from .fit import device, fit


@main("train")
def train(config: DictConfig) -> None:
    """Runs each seed in runs/<study>/<task>/<label>/seed-<k>; raises ValueError for a configuration that cannot run."""
    if reason := build.unavailable(config):
        if not config.multirun:
            raise ValueError(reason)
        log(f"skipped: {reason}")
        return
    check(config)
    if distributed.to_launch(config):
        distributed.launch(config)
        return
    with distributed.group(config):
        seeds(config)


def seeds(config: DictConfig) -> None:
    data = build.task_data(config)
    distributed.on_rank_zero(data.setup)  # generated data is made once
    data.setup()
    build.fits(config, data)
    params = sum(p.numel() for p in build.sketch(config).parameters())
    choices = record.choices(config, data.source.provenance)
    o = config.optim
    number = f"{len(config.seeds)} seed{'s' if len(config.seeds) > 1 else ''}"
    log(
        f"{config.task.name} {config.label}: {number} of {o.steps:,} steps of {o.batch}, "
        f"dev ({len(data.splits['val']):,} examples) every {o.eval_every}; {params:,} parameters; "
        f"about {max(1, round(record.disk_bytes(params) / 2**20))} MB a seed in {record.home(config)}"
    )
    for seed in config.seeds:
        run(config, int(seed), record.home(config) / f"seed-{seed}", choices)


def run(config: DictConfig, seed: int, folder: Path, choices: dict) -> None:
    """One seed, unless its folder holds its record already or another process is at it."""
    fingerprint = record.fingerprint(choices | {"seed": seed})
    title = f"{config.task.name} {config.label} seed {seed}"
    with contextlib.ExitStack() as held:
        if not distributed.on_rank_zero(
            lambda: claim(held, folder, title, choices, config.study) and not _done(folder, title, fingerprint)
        ):
            return
        with writing(folder):
            result = fit(config, seed, build.task_data(config, seed), folder, fingerprint)
            if distributed.rank() == 0:
                record.save(result, folder)
    log(f"{title}: {result.status}, test {result.test}, dev {result.val} at step {result.best_step}")


def _done(folder: Path, title: str, fingerprint: str) -> bool:
    if not (folder / record.NAME).exists():
        return False
    done = record.load(folder / record.NAME, fingerprint)
    log(f"{title}: {done.status} before, test {done.test}, skipped")
    return True


def check(config: DictConfig) -> None:
    """Raise ValueError for what this machine lacks and for options that no model or source can be made of."""
    device(config)
    number, o = distributed.count(config), config.optim
    if (o.micro_batch or o.batch) % number:  # auto and launched are known only here
        key = "optim.micro_batch" if o.micro_batch else "optim.batch"
        raise ValueError(f"trainer.devices must divide {key} {o.micro_batch or o.batch}, not {number}")
    build.task_data(config)
    build.sketch(config)


if __name__ == "__main__":
    train()
