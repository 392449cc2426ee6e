"""Names of contestants -> configurations. A name is a label: a word of conf/attn or conf/attn/bench, then its changed
keys, as in ``cur_step-count=32-pinv.steps=6``."""

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from omegaconf import DictConfig

from ..config import CONF, compose


class Shape(NamedTuple):
    """n None: the task's own length."""

    n: int | None
    batch: int
    heads: int
    head_dim: int
    dtype: str


def mechanisms() -> list[str]:
    """Every mechanism of conf/attn, which is what ``mechanisms=all`` means."""
    return sorted(path.stem for path in (CONF / "attn").glob("*.yaml") if path.stem != "custom")


def rivals() -> list[str]:
    """What only the benchmark has: exact attention by backend, CUR as published."""
    return sorted(path.stem for path in (CONF / "attn" / "bench").glob("*.yaml"))


def names(wanted: str | Sequence[str]) -> list[str]:
    """``all`` and every name, each once. Raises ValueError for a word that there is not."""
    found = []
    for name in [wanted] if isinstance(wanted, str) else wanted:
        found += mechanisms() if name == "all" else [str(name)]
    known = [*mechanisms(), *rivals()]
    if unknown := [name for name in found if _parts(name)[0] not in known]:
        raise ValueError(f"mechanisms: {', '.join(unknown)} is not one of all, {', '.join(known)}")
    if not found:
        raise ValueError(f"mechanisms is empty; name some of all, {', '.join(known)}")
    return list(dict.fromkeys(found))


def config(name: str, words: Iterable[str]) -> DictConfig:
    """What ``python -m lra.train attn=<name> *words`` would run, labelled by the name."""
    word, *changes = _parts(name)
    folder = "bench/" if word in rivals() else ""
    made = compose("train", [f"attn={folder}{word}", *(f"attn.{change}" for change in changes), *words])
    made.label = name
    return made


def words(config: DictConfig, task: str, shape: Shape, pad: str | None = None) -> list[str]:
    """A task and a shape in the words of lra.train; pad ``batch/8`` is padding to the batch in micro-batches of 8."""
    found = [f"task={task}", f"budget={config.budget}", f"optim.batch={shape.batch}"]
    found += [f"model.heads={shape.heads}", f"model.head_dim={shape.head_dim}"]
    found.append(f"model.dim={shape.heads * shape.head_dim}")
    if shape.n is not None:
        found += [f"task.length={shape.n}", f"task.limit={shape.n}"]
    if pad is not None:
        word, _, micro = pad.partition("/")
        found += [f"data.pad={word}"] + [f"optim.micro_batch={micro}"] * bool(micro)
    return [*found, *config.overrides]


def claim(name: str, claims: DictConfig) -> float:
    """Growth of the time with the length that the authors claim; 1 where nothing is said."""
    return float(claims.get(_parts(name)[0], 1))


def _parts(name: str) -> list[str]:
    return re.split(r"-(?=[a-z_][\w.]*=)", name)
