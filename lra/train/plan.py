"""The plan of a configuration on this machine: computed once at the start and handed down."""

from dataclasses import dataclass
from pathlib import Path

from ..config.experiment import Experiment
from ..data.datamodule import TaskData
from ..runs import config_file
from . import machine, pretrain_check
from .distributed import Processes, processes


@dataclass(frozen=True, kw_only=True)
class SeedPlan:
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
        experiment: with the precision and, instead of ``auto``, the padding in use.
        device: cpu | cuda.
        processes: that share each batch.
        data: of the task, not yet set up; a seed has its own order of it.
        params: parameters of the model.
        home: folder of the seeds.
        title: task and label.
        widened: whether fp32 is used in place of bf16, see ``machine.settled``.
    """

    experiment: Experiment
    device: str
    processes: Processes
    data: TaskData
    params: int
    home: Path
    title: str
    widened: bool = False

    def folder(self, seed: int) -> Path:
        return self.home / f"seed-{seed}"

    def more_seeds(self, seed: int) -> int:
        """The number of seeds after this one."""
        seeds = list(self.experiment.seeds)
        return len(seeds) - 1 - seeds.index(seed)


def resolve(experiment: Experiment) -> Plan:
    """Compute the plan of a configuration, before anything is written.

    Raises:
        ValueError: this machine lacks a device, or no model or source can be made of the options.
    """
    device, shared, o = machine.device(experiment), processes(experiment), experiment.optim
    asked, experiment = experiment.trainer.precision, _padded(machine.settled(experiment, device))
    if (o.micro_batch or o.batch) % shared.count:  # auto and launched are known only here
        key = "optim.micro_batch" if o.micro_batch else "optim.batch"
        raise ValueError(f"trainer.devices must divide {key} {o.micro_batch or o.batch}, not {shared.count}")
    if experiment.pretrain.objective != "none" and not o.micro_batch and experiment.pretrain.batch % shared.count:
        raise ValueError(f"trainer.devices must divide pretrain.batch {experiment.pretrain.batch}, not {shared.count}")
    params = sum(p.numel() for p in experiment.sketch.parameters())
    machine.check_memory(params)
    pretrain_check.check(experiment)
    return Plan(
        experiment=experiment,
        device=device,
        processes=shared,
        data=experiment.task_data(),
        params=params,
        home=experiment.home,
        title=f"{experiment.task.name} {experiment.label}",
        widened=experiment.trainer.precision != asked,
    )


def _padded(experiment: Experiment) -> Experiment:
    """The experiment with the padding of the seeds begun in its folder, or of its task and model, for ``auto``."""
    if experiment.data.pad != "auto":
        return experiment
    begun = map(_begun_padding, sorted(experiment.home.glob(f"seed-*/{config_file.NAME}")))
    pad = next(filter(None, begun), None) or experiment.padding
    return experiment.changed(data=experiment.data.changed(pad=pad))


def _begun_padding(path: Path) -> str | None:
    try:
        pad = config_file.read(path).get("data.pad")
    except ValueError:  # the seed of that folder says so
        return None
    return pad if pad in ("batch", "compact") else None
