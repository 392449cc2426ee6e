"""The plan of a configuration on this machine: computed once at the start and handed down."""

from dataclasses import dataclass
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from ..data.datamodule import TaskData
from ..runs import config_file, folder
from . import build, machine, pretrain_check
from .distributed import Processes, processes


@dataclass(frozen=True, kw_only=True)
class Run:
    """One seed.

    Args:
        seed: of the weights, the order of the data, dropout and random selection.
        folder: where everything of it is written.
        title: of its lines on stderr.
        fingerprints: its own, and those that an earlier version of the suite gave it.
    """

    seed: int
    folder: Path
    title: str
    fingerprints: tuple[str, ...]

    @property
    def fingerprint(self) -> str:
        return self.fingerprints[0]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All seeds of one configuration.

    Args:
        config: resolved, see ``lra.config.prepared``, with the precision and, instead of ``auto``, the padding in use.
        device: cpu | cuda.
        processes: that share each batch.
        loss: cross_entropy | mse.
        data: of the task, not yet set up; a seed has its own order of it.
        params: parameters of the model.
        home: folder of the seeds.
        title: task and label.
        widened: whether fp32 is used in place of bf16, see ``machine.settled``.
    """

    config: DictConfig
    device: str
    processes: Processes
    loss: str
    data: TaskData
    params: int
    home: Path
    title: str
    widened: bool = False

    def folder(self, seed: int) -> Path:
        return self.home / f"seed-{seed}"

    def more_seeds(self, seed: int) -> int:
        """The number of seeds after this one."""
        seeds = list(self.config.seeds)
        return len(seeds) - 1 - seeds.index(seed)


def resolve(config: DictConfig) -> Plan:
    """Compute the plan of a configuration, before anything is written.

    Raises:
        ValueError: this machine lacks a device, or no model or source can be made of the options.
    """
    device, shared, o = machine.device(config), processes(config), config.optim
    asked, config = config.trainer.precision, _padded(machine.settled(config, device))
    if (o.micro_batch or o.batch) % shared.count:  # auto and launched are known only here
        key = "optim.micro_batch" if o.micro_batch else "optim.batch"
        raise ValueError(f"trainer.devices must divide {key} {o.micro_batch or o.batch}, not {shared.count}")
    if config.pretrain.objective != "none" and not o.micro_batch and config.pretrain.batch % shared.count:
        raise ValueError(f"trainer.devices must divide pretrain.batch {config.pretrain.batch}, not {shared.count}")
    model = build.sketch(config)
    pretrain_check.check(config, model)
    return Plan(
        config=config,
        device=device,
        processes=shared,
        loss=build.loss(config),
        data=build.task_data(config),
        params=sum(p.numel() for p in model.parameters()),
        home=folder.home(config),
        title=f"{config.task.name} {config.label}",
        widened=config.trainer.precision != asked,
    )


def _padded(config: DictConfig) -> DictConfig:
    """The configuration with the padding of the seeds begun in its folder, or of its task and model, for ``auto``."""
    if config.data.pad != "auto":
        return config
    begun = map(_begun_padding, sorted(folder.home(config).glob(f"seed-*/{config_file.NAME}")))
    return OmegaConf.merge(config, {"data": {"pad": next(filter(None, begun), build.padding(config))}})


def _begun_padding(path: Path) -> str | None:
    try:
        pad = config_file.read(path).get("data.pad")
    except ValueError:  # the seed of that folder says so
        return None
    return pad if pad in ("batch", "compact") else None
