"""The configuration and the weights of a finished run with another mechanism."""

import torch
from omegaconf import DictConfig, OmegaConf
from torch import nn

from ...attention.base import Attention
from ...config.sections import Optim
from ...runs.open import Run
from ...train import build
from ...train.restore import best


def configs(run: Run, config: DictConfig) -> tuple[DictConfig, DictConfig]:
    """Restore the run's configuration, and derive that with the mechanism and the fine-tuning of ``config``.

    Args:
        run: finished.
        config: configuration of the transfer.

    Returns:
        Both configurations.

    Raises:
        ValueError: the run has other attention weights than the mechanism, and no override chooses one.
    """
    source, r = run.configuration(config.data.root), run.record
    source = OmegaConf.merge(
        source,
        {"runs": config.runs, "logger": config.logger, "multirun": config.multirun, "trainer": config.trainer},
        {"data": {"eval_batch": config.data.eval_batch or source.optim.batch}},
    )
    target = source.copy()
    target.attn, target.label = config.attn, config.label
    if target.attn.get("class_token", False) is None:  # it follows the pooling, which is the run's
        target.attn.class_token = target.model.pool in ("cls", "class")
    target.study = config.study or r.study
    overrides = [override.lstrip("+~") for override in config.command_overrides]
    if config.get("block"):
        target.block = _block(source.block, config, overrides)
    own, new = (some.attn.get("weights") for some in (source, target))
    if None not in (own, new) and own != new and not any(line.startswith("attn.weights=") for line in overrides):
        raise ValueError(f"{run.folder} has attn.weights={own} and attn={target.label} {new}; say attn.weights={own}")
    steps, o = config.steps, target.optim
    for key in ("lr", "batch"):
        o[key] = o[key] if config.optim[key] is None else config.optim[key]
    if steps:
        o.steps = steps
        o.eval_every = config.optim.eval_every or steps
        o.warmup = 2 * (steps // 20) if config.optim.warmup is None else config.optim.warmup
    Optim.parse(OmegaConf.to_container(o), "optim")
    return source, target


def _block(own: DictConfig, config: DictConfig, overrides: list[str]) -> DictConfig:
    """The run's block with the options of the overrides, since an attn brings the defaults of its block.

    A chunk is not a default but the meaning of ``mega_chunk``, so it is taken over. A block of another class replaces
    the run's.
    """
    if own._target_ != config.block._target_ or any(line.startswith("block=") for line in overrides):
        return config.block
    keys = {line.partition("=")[0].removeprefix("block.") for line in overrides if line.startswith("block.")}
    if config.block.get("chunk"):
        keys.add("chunk")
    return OmegaConf.merge(own, {key: config.block[key] for key in keys})


def mechanisms(model: nn.Module) -> dict[str, Attention]:
    """List the mechanisms of a model by path, in order; a mechanism inside another one is part of it."""
    by_path: dict[str, Attention] = {}
    for path, module in model.named_modules():
        if isinstance(module, Attention) and not any(path.startswith(f"{outer}.") for outer in by_path):
            by_path[path] = module
    return by_path


def graft(run: Run, source: DictConfig, target: DictConfig) -> tuple[nn.Module, nn.Module]:
    """Load the run's best model, and put its weights into a model with the other mechanism.

    Args:
        run: finished.
        source, target: configurations as of ``configs``.

    Returns:
        The exact and the grafted model; the mechanism's own weights are drawn from the run's seed.

    Raises:
        ValueError: weights other than those of the mechanism are missing, or some are left over.
    """
    exact = best(run, source)
    weights = exact.state_dict()
    torch.manual_seed(run.record.seed)
    grafted = build.classifier(target)
    shares = [{type(m).shares_qk for m in mechanisms(model).values()} for model in (exact, grafted)]
    if all(shares) and shares[0] != shares[1]:
        one, two = (r.label for r in ((source, target) if True in shares[0] else (target, source)))
        raise ValueError(f"{one} has one projection for queries and keys and {two} has two: their weights do not fit")
    own = tuple(f"{path}." for path in mechanisms(grafted))
    have, want = weights.keys(), grafted.state_dict()
    problems = {
        f"{target.label} needs": [key for key in want if key not in have and not key.startswith(own)],
        f"{target.label} has no place for": [key for key in have if key not in want],
        "other shapes": [key for key in have & want.keys() if weights[key].shape != want[key].shape],
    }
    if any(problems.values()):
        reasons = "; ".join(f"{problem} {_some(keys)}" for problem, keys in problems.items() if keys)
        raise ValueError(f"the weights of {run.folder} ({source.label}) do not fit attn={target.label}: {reasons}")
    grafted.load_state_dict(weights, strict=False)
    return exact, grafted.eval()


def _some(keys: list[str]) -> str:
    keys = sorted(keys)
    return ", ".join(keys[:3]) + (f" and {len(keys) - 3} more" if len(keys) > 3 else "")
