"""The configuration of a finished run with another mechanism, and its weights in that one."""

import torch
from omegaconf import DictConfig, OmegaConf
from torch import nn

from ... import schema
from ...attention.base import Attention
from ...runs.open import Run
from ...train import build
from ...train.restore import best


def configs(run: Run, config: DictConfig) -> tuple[DictConfig, DictConfig]:
    """The run's configuration as it was, and with the mechanism and the fine-tuning of ``config``.

    Raises:
        ValueError: the run has other attention weights than the mechanism and no override says which are meant.
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
        target.attn.class_token = target.model.pool == "cls"
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
    schema.section(schema.Optim, OmegaConf.to_container(o), "optim")
    return source, target


def _block(own: DictConfig, config: DictConfig, overrides: list[str]) -> DictConfig:
    """The run's, with the keys of the overrides: an attn brings defaults along, not what the run was trained with.

    A chunk is more than a default, it is what ``mega_chunk`` means. Another kind of block is taken as it is.
    """
    if own._target_ != config.block._target_ or any(line.startswith("block=") for line in overrides):
        return config.block
    said = {line.partition("=")[0].removeprefix("block.") for line in overrides if line.startswith("block.")}
    if config.block.get("chunk"):
        said.add("chunk")
    return OmegaConf.merge(own, {key: config.block[key] for key in said})


def mechanisms(model: nn.Module) -> dict[str, Attention]:
    """Path -> mechanism, in order; a mechanism inside another is part of it."""
    found: dict[str, Attention] = {}
    for path, module in model.named_modules():
        if isinstance(module, Attention) and not any(path.startswith(f"{outer}.") for outer in found):
            found[path] = module
    return found


def graft(run: Run, source: DictConfig, target: DictConfig) -> tuple[nn.Module, nn.Module]:
    """The run's best model, and its weights in the mechanism of ``target``, whose own ones are drawn from the seed.

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
        told = "; ".join(f"{problem} {_some(keys)}" for problem, keys in problems.items() if keys)
        raise ValueError(f"the weights of {run.folder} ({source.label}) do not fit attn={target.label}: {told}")
    grafted.load_state_dict(weights, strict=False)
    return exact, grafted.eval()


def _some(keys: list[str]) -> str:
    keys = sorted(keys)
    return ", ".join(keys[:3]) + (f" and {len(keys) - 3} more" if len(keys) > 3 else "")
