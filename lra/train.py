"""python -m lra.train task=listops attn=cur_abs: every seed of one configuration, skipped, resumed or run."""

import sys
from pathlib import Path

from omegaconf import DictConfig

from . import build, record
from .config import check_budget, main
from .fit import device, fit
from .folder import claim


@main("train")
def train(config: DictConfig) -> None:
    """Runs each seed in runs/<study>/<task>/<label>/seed-<k>; raises ValueError for a configuration that cannot run."""
    if reason := build.unavailable(config):
        if not config.multirun:
            raise ValueError(reason)
        print(f"skipped: {reason}", file=sys.stderr)
        return
    check(config)
    data = build.task_data(config)
    data.setup()
    model = build.classifier(config)
    params = sum(p.numel() for p in model.parameters())
    choices = record.choices(config, data.source.provenance)
    home = Path(config.runs) / config.study / config.task.name / config.label
    o = config.optim
    seeds = f"{len(config.seeds)} seed{'s' if len(config.seeds) > 1 else ''}"
    print(
        f"{config.task.name} {config.label}: {seeds} of {o.steps:,} steps of {o.batch}, "
        f"dev ({len(data.splits['val']):,} examples) every {o.eval_every}; {params:,} parameters; "
        f"about {max(1, round(16 * params / 2**20))} MB a seed in {home}",
        file=sys.stderr,
    )
    for seed in config.seeds:
        run(config, int(seed), home / f"seed-{seed}", choices)


def run(config: DictConfig, seed: int, folder: Path, choices: dict) -> None:
    """One seed, unless its folder holds its record already or another process is at it."""
    fingerprint = record.fingerprint(choices | {"seed": seed})
    title = f"{config.task.name} {config.label} seed {seed}"
    with claim(folder, title, choices, config.study) as mine:
        if not mine:
            return
        if (folder / "record.json").exists():
            done = record.load(folder / "record.json")
            print(f"{title}: {done.status} before, test {done.test}, skipped", file=sys.stderr)
            return
        result = fit(config, seed, build.task_data(config, seed), folder, fingerprint)
        record.save(result, folder)
    print(f"{title}: {result.status}, test {result.test}, dev {result.val} at step {result.best_step}", file=sys.stderr)


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
    if o.warmup not in (0, *range(2, o.steps)):  # torch's one-cycle schedule divides by warmup - 1 and steps - warmup
        raise ValueError(f"optim.warmup must be 0 or from 2 to optim.steps - 1 ({o.steps - 1}), not {o.warmup}")
    if not o.lr > 0:
        raise ValueError(f"optim.lr must be above 0, not {o.lr}")
    build.loss(config)
    device(config)


if __name__ == "__main__":
    train()
