"""Several processes, a device each: their number, their launch, their communication. With one, nothing happens."""

import contextlib
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.distributed as dist
import torch.distributed.run as torchrun
from lightning.fabric.plugins import environments
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

from ..config.compose import folders
from ..config.errors import Told
from ..config.experiment import Experiment
from ..data.source import cores

T = TypeVar("T")
GLOO = "gloo/transport"  # of a plain RuntimeError of gloo, whose peer is gone
LAUNCHERS = (
    "torchrun --nnodes=2 --nproc-per-node=4 -m lra.train ... or srun --nodes=2 --ntasks-per-node=4 python -m ..."
)


@dataclass(frozen=True)
class Processes:
    """The processes of a run: how many, how many of them on this machine, and who starts them."""

    count: int
    local: int
    environment: environments.ClusterEnvironment

    @property
    def to_launch(self) -> bool:
        """Whether this process is to start the others first, and itself is none of them."""
        return self.count > 1 and not self.environment.creates_processes_externally


def processes(experiment: Experiment) -> Processes:
    """The processes that an experiment and the command around it mean. Raises ValueError if they cannot be had."""
    there, nodes = environments.LightningEnvironment(), 1
    if environments.TorchElasticEnvironment.detect():
        there = environments.TorchElasticEnvironment()
    elif experiment.trainer.devices == "launched" and environments.SLURMEnvironment.detect():
        try:
            there, nodes = environments.SLURMEnvironment(auto_requeue=False), int(os.environ["SLURM_NNODES"])
        except RuntimeError as error:  # srun's options do not say how many tasks a node has
            raise ValueError(str(error)) from None
    count = _count(experiment, there.world_size() if there.creates_processes_externally else None)
    return Processes(count, int(os.environ.get("LOCAL_WORLD_SIZE", count // nodes)), there)


def _count(experiment: Experiment, started: int | None) -> int:
    """The number of processes; started: that of torchrun or srun, None without them."""
    wanted, gpus = experiment.trainer.devices, torch.cuda.device_count()
    if wanted == "launched":
        if started is None:
            raise ValueError(f"trainer.devices=launched, but nothing launched this process: {LAUNCHERS}")
        return started
    if wanted == "auto" and not gpus:
        raise ValueError("trainer.devices=auto is every GPU and torch sees none; say how many: trainer.devices=2")
    number = gpus if wanted == "auto" else wanted
    if started is not None and started != number:
        raise ValueError(f"{started} processes were launched, trainer.devices is {number}; use trainer=ddp_multinode")
    if number > gpus > 0 and experiment.trainer.device != "cpu":
        raise ValueError(f"trainer.devices is {number}, torch sees {gpus} GPUs")
    return number


def launch(number: int, overrides: Sequence[str]) -> None:
    """Run the same command in ``number`` processes on this machine, as torchrun would start it.

    Raises:
        Told: one of them failed.
        KeyboardInterrupt: they were stopped.
    """
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    threads = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = threads or str(max(1, cores() // number))
    words = ["--standalone", f"--nproc-per-node={number}", "--module", "lra.train", *folders(), *overrides]
    try:
        torchrun.run(torchrun.parse_args(words))
    except ChildFailedError:
        raise Told("one of its processes failed and said why") from None
    except SignalException:
        raise KeyboardInterrupt("stopped; the same command resumes from the last checkpoint") from None
    finally:
        if threads is None:
            del os.environ["OMP_NUM_THREADS"]


@contextlib.contextmanager
def group(processes: Processes) -> Iterator[None]:
    """Let the processes of a run talk to each other within the block.

    Raises:
        ValueError: one of them has ended, so that the others wait for it in vain.
    """
    there = processes.environment
    if processes.count == 1:
        yield
        return
    os.environ |= {"MASTER_ADDR": there.main_address, "MASTER_PORT": str(there.main_port)}
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, rank=there.global_rank(), world_size=processes.count)
    try:
        yield
    except RuntimeError as error:
        if not isinstance(error, dist.DistError) and GLOO not in str(error):
            raise
        reason = str(error).splitlines()[0]
        raise ValueError(f"another process of the run does not answer; the same command resumes: {reason}") from error
    finally:
        dist.destroy_process_group()


def rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def count() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def total(value: torch.Tensor) -> torch.Tensor:
    """The sum of a tensor over the processes, without a gradient."""
    if dist.is_initialized():
        dist.all_reduce(value)
    return value


def gather(value: T) -> list[T]:
    """The value of every process, in order, in each of them."""
    if not dist.is_initialized():
        return [value]
    values: list = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def on_rank_zero(decide: Callable[[], T]) -> T:
    """Run ``decide`` on rank 0 and broadcast the result; a ValueError there ends every rank, the others silently."""
    if not dist.is_initialized():
        return decide()
    said: list = [None, None]
    if rank() == 0:
        try:
            said[0] = decide()
        except ValueError as error:
            said[1] = error
    dist.broadcast_object_list(said, src=0, device=torch.device("cpu"))
    if said[1] is not None:
        raise said[1] if rank() == 0 else SystemExit(1)
    return said[0]
