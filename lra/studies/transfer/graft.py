"""A finished run, its configuration with another mechanism, and its weights in that one."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from omegaconf import DictConfig, OmegaConf
from torch import nn

from ... import schema
from ...attention.base import Attention
from ...config import flatten
from ...runs import checkpoint, config_file, record
from ...train import build


class Run(NamedTuple):
    """One finished seed: its folder, what stands in its config.yaml (flat) and its record."""

    folder: Path
    choices: dict[str, Any]
    record: record.RunRecord


def read(folder: Path, trust: str | Iterable[str] | None = None) -> list[Run]:
    """The finished seeds of runs/<study>/<task>/<label>, or the one of a seed's folder.

    trust: modules whose classes a config.yaml may name. Raises ValueError where there is no such seed, and for files
    that are damaged, do not belong together or name what they may not.
    """
    if not folder.is_dir():
        raise ValueError(f"run={folder} is not a folder; name one of runs/<study>/<task>/<label>")
    seed = any((folder / name).exists() for name in (config_file.NAME, record.NAME))
    folders = [folder] if seed else sorted(folder.glob("seed-*"))
    runs = []
    for home in folders:
        if not (home / record.NAME).exists():
            continue
        made, choices = record.load(home / record.NAME), config_file.read(home / config_file.NAME)
        record.check_choices(choices, made, home)
        config_file.check_trust(choices, home / config_file.NAME, trust)
        runs.append(Run(home, choices, made))
    done = [run for run in runs if run.record.status == "done"]
    if not done:
        why = "its seeds diverged" if runs else f"no {record.NAME}, python -m lra.train makes them"
        raise ValueError(f"run={folder} has no finished seed: {why}")
    return done


def original(run: Run, root: str) -> DictConfig:
    """The run's configuration as it was, its data below ``root``, rows padded."""
    source = OmegaConf.create()
    for key, value in run.choices.items():
        if not key.startswith("provenance."):
            OmegaConf.update(source, key, value, force_add=True)
    if source.data.pad == "none":
        source.data.pad = "batch"  # what mechanisms put out is compared row by row
    r = run.record
    return OmegaConf.merge(
        source,
        {"study": r.study, "budget": r.budget, "label": r.label, "seeds": [r.seed]},
        {"data": {"root": root, "eval_batch": source.optim.batch}},
        {"data_words": [f"task={r.task}", f"budget={r.budget}", f"protocol={r.protocol}"]},
    )


def check_data(run: Run, provenance: dict) -> None:
    """Raises ValueError where the run was trained on other data than these."""
    old = {key: value for key, value in run.choices.items() if key.startswith("provenance.")}
    new = flatten({"provenance": provenance})
    if old != new:
        raise ValueError(f"{run.folder} was trained on other data ({record.difference(old, new)})")


def configs(run: Run, config: DictConfig) -> tuple[DictConfig, DictConfig]:
    """The run's configuration as it was, and with the mechanism and the fine-tuning of ``config``.

    Raises ValueError where the run has other attention weights than the mechanism and no word says which are meant.
    """
    source, r = original(run, config.data.root), run.record
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
    words = [word.lstrip("+~") for word in config.words]
    if config.get("block"):
        target.block = _block(source.block, config, words)
    own, new = (some.attn.get("weights") for some in (source, target))
    if None not in (own, new) and own != new and not any(word.startswith("attn.weights=") for word in words):
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


def _block(own: DictConfig, config: DictConfig, words: list[str]) -> DictConfig:
    """The run's, with the keys that were said: a word of attn brings defaults along, not what the run was trained with.

    A chunk is more than a default, it is what ``mega_chunk`` means. Another kind of block is taken as it is.
    """
    if own._target_ != config.block._target_ or any(word.startswith("block=") for word in words):
        return config.block
    said = {word.partition("=")[0].removeprefix("block.") for word in words if word.startswith("block.")}
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


def best(run: Run, source: DictConfig) -> nn.Module:
    """The run's best model. Raises ValueError where its weights are missing, damaged or of another configuration."""
    model = build.classifier(source)
    checkpoint.load_weights(model, run.folder / checkpoint.BEST)
    return model.eval()


def graft(run: Run, source: DictConfig, target: DictConfig) -> tuple[nn.Module, nn.Module]:
    """The run's best model, and its weights in the mechanism of ``target``; what that one adds is drawn from the seed.

    Only weights of the mechanism may be missing and none may be left over. Raises ValueError otherwise.
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
        told = "; ".join(f"{word} {_some(keys)}" for word, keys in problems.items() if keys)
        raise ValueError(f"the weights of {run.folder} ({source.label}) do not fit attn={target.label}: {told}")
    grafted.load_state_dict(weights, strict=False)
    return exact, grafted.eval()


def _some(keys: list[str]) -> str:
    keys = sorted(keys)
    return ", ".join(keys[:3]) + (f" and {len(keys) - 3} more" if len(keys) > 3 else "")
