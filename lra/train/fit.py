"""One seed of one configuration, from its folder to its record."""

import logging
import platform
import resource
import sys
import warnings
from pathlib import Path

import lightning as L
import torch
from hydra.utils import instantiate
from lightning.pytorch.strategies import DDPStrategy
from omegaconf import DictConfig
from torch import nn

from ..data.datamodule import TaskData
from ..runs import checkpoint, record
from . import build, distributed
from .callbacks import Checkpoints, Diverged, Divergence, Report, Stopwatch
from .heap import Trim, keep_pages
from .lit_module import LitClassifier

PRECISIONS = {"fp32": "32-true", "bf16": "bf16-mixed", "fp16": "16-mixed"}


def device(config: DictConfig) -> str:
    """cpu or cuda. Raises ValueError for a device or precision that this machine does not have."""
    wanted = config.trainer.device
    if wanted == "cuda" and not torch.cuda.is_available():
        raise ValueError("trainer.device=cuda, but torch sees no GPU; use trainer.device=cpu")
    found = wanted if wanted != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
    if found == "cpu" and config.trainer.precision == "fp16":
        raise ValueError("trainer.precision=fp16 needs a GPU; on a CPU use fp32 or bf16")
    return found


def training(config: DictConfig, model: nn.Module, seed: int) -> LitClassifier:
    return LitClassifier(
        model,
        metric=config.task.metric,
        loss=build.loss(config),
        seed=seed,
        optim=dict(config.optim),
        cycle_momentum=config.protocol.cycle_momentum,
    )


def quiet() -> None:
    """No tips and no warnings about what is meant."""
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    meant = (
        "does not have many workers|Starting from v1.9|length of `list`|LeafSpec|broadcast_buffers|no `val_dataloader`"
    )
    warnings.filterwarnings("ignore", message=f".*({meant}).*")
    warnings.filterwarnings("ignore", message=".*lr_scheduler.step\\(\\).*before.*optimizer.step\\(\\).*")


def evaluate(config: DictConfig, model: nn.Module, data: TaskData) -> tuple[float, float]:
    """Score of a model on every example of dev, and of test."""
    module, trainer = training(config, model, 0), _trainer(config, logger=False)
    trainer.validate(module, data, verbose=False)
    val = module.score
    trainer.test(module, data, verbose=False)
    return val, module.score


def fit(
    config: DictConfig, seed: int, data: TaskData, folder: Path, fingerprint: str, model: nn.Module | None = None
) -> record.RunRecord:
    """Train (or resume) and score the best dev checkpoint on the test set once.

    model: what to start from, None for a new classifier. Raises ValueError for a checkpoint that cannot be used, and
    KeyboardInterrupt with the step that the same command resumes from.
    """
    where = device(config)
    if where == "cuda":
        torch.cuda.reset_peak_memory_stats()
    else:
        keep_pages()
    if config.trainer.threads:
        torch.set_num_threads(config.trainer.threads)
    torch.manual_seed(seed)
    model = build.classifier(config) if model is None else model.train()
    if compiled := config.trainer.compile:
        model.compile(mode=None if compiled is True else compiled)
    module = training(config, model, seed)
    first_step = distributed.on_rank_zero(lambda: checkpoint.first_step(folder, model, fingerprint))
    stopwatch, checkpoints = Stopwatch(), Checkpoints(folder, fingerprint)
    title = f"{config.task.name} {config.label} seed {seed}"
    more_seeds = len(config.seeds) - 1 - list(config.seeds).index(seed)
    callbacks = [Divergence(), checkpoints, stopwatch]  # saving is not part of a step
    if where == "cpu":
        callbacks.append(Trim())
    if distributed.rank() == 0:
        callbacks.append(Report(title, more_seeds, stopwatch, checkpoints))
    about = {"folder": folder, "first_step": first_step, "config": config, "seed": seed, "fingerprint": fingerprint}
    trainer = _trainer(
        config,
        max_steps=config.optim.steps,
        max_epochs=-1,
        accumulate_grad_batches=data.batch // data.micro_batch,
        gradient_clip_val=config.optim.clip_norm,
        val_check_interval=config.optim.eval_every * (data.batch // data.micro_batch),
        check_val_every_n_epoch=None,
        num_sanity_val_steps=0,
        logger=[factory(**about) for factory in instantiate(config.logger).values()],
        callbacks=callbacks,
    )
    status, steps, test = "done", config.optim.steps, None
    try:
        trainer.fit(module, data, ckpt_path=folder / checkpoint.LAST if first_step else None, weights_only=True)
    except Diverged as stop:
        status, steps = "diverged", stop.step
        distributed.log(f"{title}: the loss was not finite at step {stop.step}")
    except SystemExit:  # what Lightning makes of Ctrl-C and SIGTERM
        saved = (checkpoint.state(folder) or {"global_step": 0})["global_step"]
        stopped = f"stopped at step {trainer.global_step}; the same command resumes from step {saved}"
        raise KeyboardInterrupt(stopped) from None
    if status == "done":
        checkpoint.load_weights(model, folder / checkpoint.BEST)
        trainer.test(module, data, verbose=False)
        test = module.score
    result = record.RunRecord(
        study=config.study,
        task=config.task.name,
        protocol=config.protocol.name,
        budget=config.budget,
        label=config.label,
        seed=seed,
        fingerprint=fingerprint,
        git=record.git_commit(),
        params=sum(p.numel() for p in model.parameters()),
        metric=config.task.metric,
        val=checkpoints.best_score if status == "done" else None,
        test=test,
        constant_baseline=data.baseline("test", module.metric),
        n_val=len(data.splits["val"]),
        n_test=len(data.splits["test"]),
        best_step=checkpoints.best_step if status == "done" else None,
        steps=steps,
        step_ms=stopwatch.median,
        peak_bytes=_peak_bytes(where),
        device=device_name(where, distributed.count(config)),
        status=status,
    )
    for logger in trainer.loggers:
        logger.log_record(result)
    return result


def _trainer(config: DictConfig, **options) -> L.Trainer:
    quiet()
    number = distributed.count(config)
    return L.Trainer(
        accelerator=device(config),
        devices=distributed.local_count(config),
        num_nodes=number // distributed.local_count(config),
        # Buffers are the same everywhere, and in evaluation the processes may have different numbers of batches.
        strategy=DDPStrategy(broadcast_buffers=False) if number > 1 else "auto",
        plugins=[distributed.environment(config)],
        sync_batchnorm=number > 1,
        use_distributed_sampler=False,
        precision=PRECISIONS[config.trainer.precision],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )


def _peak_bytes(where: str) -> int:
    if where == "cuda":
        return torch.cuda.max_memory_allocated()
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def device_name(where: str, number: int = 1) -> str:
    name = torch.cuda.get_device_name() if where == "cuda" else _cpu_name()
    return f"{number} x {name}" if number > 1 else name


def _cpu_name() -> str:
    return f"{platform.machine()} CPU, {torch.get_num_threads()} threads"
