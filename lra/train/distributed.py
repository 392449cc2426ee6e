"""The processes of a run, one per device: their number, launch and process group."""

import contextlib
import logging
import os
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.distributed.run as torchrun
from lightning.fabric.plugins import environments
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

from ..config.compose import config_dir_flags
from ..config.schema import Trainer
from ..config.workers import killed_by
from ..console import AlreadyReported, first_line
from ..data.source import cores

# Text of gloo's RuntimeError when another process has ended.
GLOO = "gloo/transport"
LAUNCHERS = (
    "torchrun --nnodes=2 --nproc-per-node=4 -m lra.train ... or srun --nodes=2 --ntasks-per-node=4 python -m ..."
)


@dataclass(frozen=True)
class Processes:
    """The processes of a run.

    Args:
        count: number of processes.
        local: number of processes on this machine.
        environment: Lightning's description of the launcher that starts them.
    """

    count: int
    local: int
    environment: environments.ClusterEnvironment

    @property
    def to_launch(self) -> bool:
        """Whether this process has to launch the processes of the run, and takes no part in it."""
        return self.count > 1 and not self.environment.creates_processes_externally


def find_processes(options: Trainer) -> Processes:
    """Find the number of processes from ``trainer.devices`` and the launcher.

    Args:
        options: options of the section ``trainer``.

    Raises:
        ValueError: this machine or the launcher does not provide them.
    """
    # The launcher: torchrun, srun, or none.
    environment: environments.ClusterEnvironment = environments.LightningEnvironment()
    nodes = 1
    if environments.TorchElasticEnvironment.detect():
        environment = environments.TorchElasticEnvironment()
    # A batch script has SLURM's variables too, even if it starts this process without srun, so they do not suffice.
    elif options.devices == "launched" and environments.SLURMEnvironment.detect():
        try:
            environment = environments.SLURMEnvironment(auto_requeue=False)
            nodes = int(os.environ["SLURM_NNODES"])
        # srun was started without the number of tasks per node.
        except RuntimeError as error:
            raise ValueError(str(error)) from None
    # The number of processes, and how many of them run on this machine.
    launched = environment.world_size() if environment.creates_processes_externally else None
    count = _num_processes(options.devices, options.device, launched)
    local = int(os.environ.get("LOCAL_WORLD_SIZE", count // nodes))
    return Processes(count, local, environment)


def _num_processes(devices: int | str, device: str, launched: int | None) -> int:
    """Return the number of processes.

    Args:
        devices: option ``trainer.devices``.
        device: option ``trainer.device``.
        launched: number that torchrun or srun started; None without them.

    Raises:
        ValueError: this machine or the launcher does not provide them.
    """
    gpus = torch.cuda.device_count()
    if devices == "launched":
        if launched is None:
            raise ValueError(f"trainer.devices=launched, but nothing launched this process: {LAUNCHERS}")
        return launched
    if devices == "auto" and not gpus:
        raise ValueError(
            "trainer.devices=auto uses every GPU, but torch sees none; set a number, such as trainer.devices=2"
        )
    count = gpus if devices == "auto" else int(devices)
    if launched is not None and launched != count:
        raise ValueError(f"{launched} processes were launched, trainer.devices is {count}; use trainer=ddp_multinode")
    if count > gpus > 0 and device != "cpu":
        raise ValueError(f"trainer.devices is {count}, torch sees {gpus} GPUs")
    return count


def launch(count: int, overrides: Sequence[str]) -> None:
    """Run the same command in several processes on this machine, as torchrun would start it.

    Args:
        count: number of processes.
        overrides: overrides of the command.

    Raises:
        AlreadyReported: one of the processes failed, and has reported the reason.
        ValueError: a signal ended one of them.
        KeyboardInterrupt: they were stopped.
    """
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    # The processes share the cores; torchrun would give each one thread.
    threads = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = threads or str(max(1, cores() // count))
    arguments = ["--standalone", f"--nproc-per-node={count}", "--module", "lra.train", *config_dir_flags(), *overrides]
    # torchrun leaves handlers that raise an Exception, which -m would count as the failure of a later job.
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
    handlers = {number: signal.getsignal(number) for number in numbers}
    try:
        torchrun.run(torchrun.parse_args(arguments))
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        # A process that was killed by a signal printed no message.
        if failure.exitcode < 0:
            reason = killed_by(-failure.exitcode)
            raise ValueError(f"process {rank} {reason}; the same command resumes from the last checkpoint") from None
        raise AlreadyReported("one of its processes failed and reported the reason") from None
    except SignalException:
        raise KeyboardInterrupt("stopped; the same command resumes from the last checkpoint") from None
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        # The next job of -m may have another number of processes.
        if threads is None:
            del os.environ["OMP_NUM_THREADS"]


@contextlib.contextmanager
def group(processes: Processes) -> Iterator[None]:
    """Connect the processes of a run within the block.

    Raises:
        ValueError: one of them has ended, so that the others wait for it in vain.
    """
    if processes.count == 1:
        yield
        return
    environment = processes.environment
    os.environ |= {"MASTER_ADDR": environment.main_address, "MASTER_PORT": str(environment.main_port)}
    # Gloo also gathers objects on the CPU of a GPU run.
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, rank=environment.global_rank(), world_size=processes.count)
    try:
        yield
    # NCCL raises a DistError, gloo a RuntimeError with its name.
    except RuntimeError as error:
        is_lost_peer = isinstance(error, dist.DistError) or GLOO in str(error)
        if not is_lost_peer:
            raise
        reason = first_line(error)
        raise ValueError(f"another process of the run does not answer; the same command resumes: {reason}") from error
    finally:
        dist.destroy_process_group()
