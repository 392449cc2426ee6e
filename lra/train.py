"""python -m lra.train task=listops attn=cur_abs: every seed of one configuration, skipped, resumed or run."""

import contextlib
from pathlib import Path

from omegaconf import DictConfig

from . import build, devices, record
from .config import check_budget, main
from .devices import say
from .fit import device, fit
from .folder import claim, writing
from .module import SCHEDULES


@main("train")
def train(config: DictConfig) -> None:
    """Runs each seed in runs/<study>/<task>/<label>/seed-<k>; raises ValueError for a configuration that cannot run."""
    if reason := build.unavailable(config):
        if not config.multirun:
            raise ValueError(reason)
        say(f"skipped: {reason}")
        return
    check(config)
    if devices.to_launch(config):
        devices.launch(config)
        return
    with devices.group(config):
        seeds(config)


def seeds(config: DictConfig) -> None:
    data = build.task_data(config)
    devices.first_says(data.setup)  # generated data is made once
    data.setup()
    model = build.classifier(config)
    params = sum(p.numel() for p in model.parameters())
    choices = record.choices(config, data.source.provenance)
    o = config.optim
    number = f"{len(config.seeds)} seed{'s' if len(config.seeds) > 1 else ''}"
    say(
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
        if not devices.first_says(
            lambda: claim(held, folder, title, choices, config.study) and not _done(folder, title, fingerprint)
        ):
            return
        with writing(folder):
            result = fit(config, seed, build.task_data(config, seed), folder, fingerprint)
            if devices.rank() == 0:
                record.save(result, folder)
    say(f"{title}: {result.status}, test {result.test}, dev {result.val} at step {result.best_step}")


def _done(folder: Path, title: str, fingerprint: str) -> bool:
    if not (folder / record.NAME).exists():
        return False
    done = record.load(folder / record.NAME, fingerprint)
    say(f"{title}: {done.status} before, test {done.test}, skipped")
    return True


def check(config: DictConfig) -> None:
    """Raise ValueError for numbers and words that no run can be made of."""
    check_budget(config)
    seeds = list(config.seeds) if hasattr(config.seeds, "__iter__") and not isinstance(config.seeds, str) else []
    if not seeds or any(not isinstance(seed, int) or seed < 0 for seed in seeds) or len(set(seeds)) < len(seeds):
        raise ValueError(f"seeds must be a list of different whole numbers from 0, such as [0,1,2], not {config.seeds}")
    o = config.optim
    for key in ("steps", "eval_every", "batch"):
        if not isinstance(o[key], int) or o[key] < 1:
            raise ValueError(f"optim.{key} must be a whole number of 1 or more, not {o[key]}")
    if o.steps % o.eval_every:
        raise ValueError(f"optim.eval_every must divide optim.steps {o.steps}, not {o.eval_every}")
    if o.schedule not in SCHEDULES:
        raise ValueError(f"optim.schedule must be one of {', '.join(SCHEDULES)}, not {o.schedule!r}")
    if o.schedule == "constant" and o.warmup:
        raise ValueError(f"optim.warmup must be 0 with optim.schedule=constant, not {o.warmup}")
    if o.warmup not in (0, *range(2, o.steps)):  # torch's one-cycle schedule divides by warmup - 1 and steps - warmup
        raise ValueError(f"optim.warmup must be 0 or from 2 to optim.steps - 1 ({o.steps - 1}), not {o.warmup}")
    if not o.lr > 0:
        raise ValueError(f"optim.lr must be above 0, not {o.lr}")
    build.loss(config)
    device(config)
    if config.trainer.compile and config.data.pad == "none":
        raise ValueError("data.pad=none has a shape for each batch, too many to compile; use data.pad=batch or fixed")
    if (o.micro_batch or o.batch) % (number := devices.count(config)):
        key = "optim.micro_batch" if o.micro_batch else "optim.batch"
        raise ValueError(f"trainer.devices must divide {key} {o.micro_batch or o.batch}, not {number}")


if __name__ == "__main__":
    train()
