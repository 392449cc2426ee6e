"""python -m lra.bench: one training step of several mechanisms on real batches of a task, measured in one process."""

from itertools import cycle, islice

import torch
from omegaconf import DictConfig
from rich.console import Console
from rich.table import Table

from . import build, module
from .config import compose, main
from .measure import Measurement, measure


def training_step(config: DictConfig):
    """Forward, backward and optimiser on the same eight batches in turn."""
    data = build.task_data(config)
    data.setup()
    torch.manual_seed(0)
    model = build.classifier(config).train()
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4)
    kind, batches = build.loss(config), cycle(islice(data.train_dataloader(), 8))

    def step() -> None:
        optimiser.zero_grad()
        module.loss(model, next(batches), kind).backward()
        optimiser.step()

    return step


@main("bench")
def bench(config: DictConfig) -> None:
    if config.repeats < 1:
        raise ValueError(f"repeats must be 1 or more, not {config.repeats}")
    if config.threads:
        torch.set_num_threads(config.threads)
    common = [f"task={config.task}", f"budget={config.budget}", f"optim.batch={config.batch}", *config.overrides]
    steps = {}
    for name in config.mechanisms:
        for pad in config.pads:
            steps[name, pad] = training_step(compose("train", [*common, f"attn={name}", f"data.pad={pad}"]))
    results = measure(steps, repeats=config.repeats)
    console = Console()
    console.print(table(config, results))


def table(config: DictConfig, results: dict[tuple[str, str], Measurement]) -> Table:
    made = Table(
        title=f"training step, {config.task}, batch {config.batch}, {torch.get_num_threads()} threads, "
        f"n = {config.repeats}, interleaved"
    )
    for name in ("mechanism", "padding", "ms", "min", "max", "peak MB"):
        made.add_column(name, justify="left" if name in ("mechanism", "padding") else "right")
    for (name, pad), m in results.items():
        numbers = [m.ms, m.ms_min, m.ms_max, m.peak_bytes and m.peak_bytes / 2**20]
        made.add_row(name, pad, *("-" if x is None else f"{x:,.0f}" for x in numbers))
    return made


if __name__ == "__main__":
    bench()
