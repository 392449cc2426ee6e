"""Several processes, a device each: how many, who starts them, what they tell each other. With one, nothing happens."""

import contextlib
import logging
import os
import sys
import uuid
from collections.abc import Callable, Iterator
from typing import TypeVar

import torch
import torch.distributed as dist
from lightning.fabric.plugins.environments import (
    ClusterEnvironment,
    LightningEnvironment,
    SLURMEnvironment,
    TorchElasticEnvironment,
)
from omegaconf import DictConfig
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

T = TypeVar("T")
HOW = "torchrun --nnodes=2 --nproc-per-node=4 -m lra.train ... or srun --nodes=2 --ntasks-per-node=4 python -m ..."


def environment(config: DictConfig) -> ClusterEnvironment:
    """Who started this process and its siblings; SLURM only where the configuration says that it did.

    Raises ValueError for tasks of SLURM that it cannot tell apart by node.
    """
    if TorchElasticEnvironment.detect():
        return TorchElasticEnvironment()
    if config.trainer.devices == "launched" and SLURMEnvironment.detect():
        try:
            return SLURMEnvironment(auto_requeue=False)
        except RuntimeError as error:  # srun's options do not say how many tasks a node has
            raise ValueError(str(error)) from None
    return LightningEnvironment()


def count(config: DictConfig) -> int:
    """Processes of one run. Raises ValueError for a number that cannot be had."""
    wanted, where = config.trainer.devices, environment(config)
    started = where.world_size() if where.creates_processes_externally else None
    if wanted == "launched":
        if started is None:
            raise ValueError(f"trainer.devices=launched, but nothing launched this process: {HOW}")
        return started
    if wanted == "auto":
        if not (number := torch.cuda.device_count()):
            raise ValueError("trainer.devices=auto is every GPU and torch sees none; say how many: trainer.devices=2")
    else:
        number = wanted
    if started is not None and started != number:
        raise ValueError(f"{started} processes were launched, trainer.devices is {number}; use trainer=ddp_multinode")
    if number > torch.cuda.device_count() > 0 and config.trainer.device != "cpu":
        raise ValueError(f"trainer.devices is {number}, torch sees {torch.cuda.device_count()} GPUs")
    return number


def local_count(config: DictConfig) -> int:
    """Processes of one run on this machine."""
    if "LOCAL_WORLD_SIZE" in os.environ:
        return int(os.environ["LOCAL_WORLD_SIZE"])
    nodes = int(os.environ["SLURM_NNODES"]) if isinstance(environment(config), SLURMEnvironment) else 1
    return count(config) // nodes


def to_launch(config: DictConfig) -> bool:
    """Whether this process is to start the others first, and itself is none of them."""
    return count(config) > 1 and not environment(config).creates_processes_externally


def launch(config: DictConfig) -> None:
    """The same command in ``count`` processes on this machine, as torchrun would start it."""
    number = count(config)
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // number)))
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    spec = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=number,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        run_id=uuid.uuid4().hex,
        max_restarts=0,
    )
    try:
        elastic_launch(spec, sys.executable)("-m", "lra.train", *config.words)
    except ChildFailedError:
        sys.exit(1)  # the process that failed has said why
    except SignalException:
        raise KeyboardInterrupt("stopped; the same command resumes from the last checkpoint") from None


@contextlib.contextmanager
def group(config: DictConfig) -> Iterator[None]:
    """The processes of a run can talk to each other within the block."""
    number, where = count(config), environment(config)
    if number == 1:
        yield
        return
    os.environ |= {"MASTER_ADDR": where.main_address, "MASTER_PORT": str(where.main_port)}
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, rank=where.global_rank(), world_size=number)
    try:
        yield
    finally:
        dist.destroy_process_group()


def rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def gather(value: T) -> list[T]:
    """The value of every process, in order, in each of them."""
    if not dist.is_initialized():
        return [value]
    values: list = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def on_rank_zero(decide: Callable[[], T]) -> T:
    """What the first process finds; what it refuses ends the others too, and it alone says so."""
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


def log(line: str) -> None:
    if rank() == 0:
        print(line, file=sys.stderr, flush=True)
