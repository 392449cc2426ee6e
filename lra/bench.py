"""python -m lra.bench: a training step, or a mechanism alone over lengths, measured in one process and interleaved."""

import gc
import math
from collections.abc import Callable
from itertools import cycle, islice

import torch
from omegaconf import DictConfig
from rich.console import Console
from rich.table import Table

from . import build, module
from .config import CONF, compose, main
from .measure import Measurement, measure


def training_step(config: DictConfig) -> Callable[[], None]:
    """Forward, backward and optimiser on eight batches in turn."""
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


def attention_step(config: DictConfig, n: int) -> Callable[[], None]:
    """Forward and backward of a block's mixer, projections included, or of the block where it is the mechanism."""
    torch.manual_seed(0)
    block = build.block_factory(config)().train()
    mixer = getattr(block, "mixer", None)
    x = torch.randn(1, n, config.model.dim, requires_grad=True)

    def step() -> None:
        out = mixer(x, None) if mixer is not None else block(x, None, None)[0]
        x.grad = None
        block.zero_grad()
        out.sum().backward()

    return step


def steps_table(config: DictConfig, names: list[str]) -> Table:
    common = [f"task={config.task}", f"budget={config.budget}", f"optim.batch={config.batch}", *config.overrides]
    steps = {
        (name, pad): training_step(compose("train", [*common, f"attn={name}", f"data.pad={pad}"]))
        for name in names
        for pad in config.pads
    }
    results = measure(steps, repeats=config.repeats)
    made = _table(config, f"training step, {config.task}, batch {config.batch}", "padding", "ms", "min", "max", "MB")
    for (name, pad), m in results.items():
        made.add_row(name, pad, *map(_number, (m.ms, m.ms_min, m.ms_max, m.peak_bytes and m.peak_bytes / 2**20)))
    return made


def attention_table(config: DictConfig, names: list[str]) -> Table:
    """Milliseconds per length, megabytes at the longest, and the exponents of their growth over two doublings."""
    times: dict[str, list[Measurement]] = {name: [] for name in names}
    for n in config.n:
        steps = {}
        for name in names:
            if not times[name] or _expected(times[name]) < 1000 * config.limit:
                words = ["task=listops", f"attn={name}", f"task.length={n}", *config.overrides]
                steps[name] = attention_step(compose("train", words), n)
        for name, m in measure(steps, repeats=config.repeats).items():
            times[name].append(m)
        steps.clear()
        gc.collect()
    made = _table(
        config, "forward + backward, one example, ms", *map(str, config.n), "MB", "growth", "MB growth", "claimed"
    )
    for name, row in times.items():
        cells = [_number(m.ms) for m in row] + ["-"] * (len(config.n) - len(row))
        growth = [_growth(config.n, values) for values in ([m.ms for m in row], [m.peak_bytes for m in row])]
        memory = row[-1].peak_bytes and row[-1].peak_bytes / 2**20
        claimed = config.claims.get(name, 1)
        made.add_row(name, *cells, _number(memory), *(f"{g:.2f}" if g else "-" for g in growth), f"{claimed:g}")
    return made


def _expected(row: list[Measurement]) -> float:
    """Milliseconds that the next doubling may take: four times the last one, or as it grew where that is more."""
    growth = row[-1].ms / row[-2].ms if len(row) > 1 else 4
    return row[-1].ms * max(4, growth) if row[-1].ms else math.inf


def _growth(n: list[int], values: list[float | None]) -> float | None:
    """log(value ratio) / log(n ratio) over the last two doublings that were measured."""
    done = [(length, value) for length, value in zip(n, values, strict=False) if value]
    if len(done) < 3:
        return None
    (a, x), (b, y) = done[-3], done[-1]
    return math.log(y / x) / math.log(b / a)


def _table(config: DictConfig, title: str, *columns: str) -> Table:
    made = Table(title=f"{title}, {torch.get_num_threads()} threads, n = {config.repeats}, interleaved")
    made.add_column("mechanism")
    for name in columns:
        made.add_column(name, justify="right")
    return made


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}" if value >= 20 else f"{value:.1f}"


@main("bench")
def bench(config: DictConfig) -> None:
    """Raises ValueError for a mechanism, a what or a number that there is not."""
    known = sorted(path.stem for path in (CONF / "attn").glob("*.yaml") if path.stem != "custom")
    names = known if config.mechanisms == "all" else list(config.mechanisms)
    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"mechanisms: {', '.join(unknown)} is not one of all, {', '.join(known)}")
    if config.what not in ("step", "attention"):
        raise ValueError(f"what must be step or attention, not {config.what!r}")
    if config.repeats < 1:
        raise ValueError(f"repeats must be 1 or more, not {config.repeats}")
    if config.threads:
        torch.set_num_threads(config.threads)
    console = Console()
    if not console.is_terminal:
        console.width = 200
    console.print((steps_table if config.what == "step" else attention_table)(config, names))


if __name__ == "__main__":
    bench()
