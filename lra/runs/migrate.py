"""python -m lra.runs.migrate folder=<published study>: turn the tables of a version below 0.2 into today's.

The only place that knows the earlier form: fingerprints of a canonical form of the choices, options that the choices
lack, weights as safetensors beside SHA256SUMS, and ``about.json`` without a form.
"""

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

import safetensors.torch
import torch
from pydantic import Field

from ..config.entry import main
from ..config.options import Options
from ..disk import atomic
from . import checkpoint, identity, pretraining, tables
from .tables import ABOUT, Published

WEIGHTS, SUMS = "best.safetensors", "SHA256SUMS"
MOVED = {"lra.linalg.cubic": "lra.ops.pinv.cubic"}
# Options that were added after runs had been published: the value that was in effect. "CUR.impl" is an option of a
# class or function, "optim.eps" a key of a section.
ADDED: dict[str, Any] = {
    "ListOps.max_args": 10,
    "ListOps.max_depth": 10,
    "model.embed_std": 0.02,
    "model.positions": "learned",
    "optim.own_lr_max": None,
    "pretrain.objective": "none",
    "SDPA.causal": False,
    "Linear.causal": False,
    "GLU.activation": "full_glu",
    "S4D.step_rate": None,
    "S4D.c_rate": None,
    "GLU.gelu": "exact",
    "GLU.momentum": 0.1,
    "GLU.mixer_dropout": False,
    "model.init": "torch",
    "optim.bias_decay": True,
    "optim.cosine": None,
}


class MigrateOptions(Options):
    conf: ClassVar[str] = "migrate"

    folder: Annotated[Path, Field(description="a published study: folder=runs/published/<study>")]


@main(MigrateOptions)
def migrate(options: MigrateOptions) -> None:
    """Rewrite the tables and the weights of a published study, about.json last.

    Raises:
        ValueError: the folder holds no tables, or they are not of a version below 0.2.
    """
    study = options.folder
    about = json.loads(atomic.content(study / ABOUT)) if (study / ABOUT).exists() else {}
    if "form" in about:
        raise ValueError(f"{study} has form {about['form']} already")
    runs = {path: migrated(path, run) for path, run in tables.contents(study).items()}
    for path in runs:
        if (path / WEIGHTS).exists():
            rewrite_weights(path)
    tables.save(study, runs.values())
    tables.save_about(study, about)
    print(f"{study}: {len(runs)} runs")


def migrated(path: Path, run: Published) -> Published:
    """The run with all options of today and its new fingerprint. Raises ValueError if its fingerprint is another."""
    seed = {"seed": run.record.seed}
    before = {identity.fingerprint(canonical(run.choices | seed)), identity.fingerprint(run.choices | seed)}
    if run.record.fingerprint not in before:
        raise ValueError(f"{path}: its choices are not those of its fingerprint {run.record.fingerprint}")
    choices, phase = completed(run.choices), run.record.pretrain
    if phase:
        phase = replace(phase, fingerprint=pretraining.fingerprint(choices | seed))
    fingerprint = identity.fingerprint(choices | seed)
    return run._replace(record=replace(run.record, fingerprint=fingerprint, pretrain=phase), choices=choices)


def canonical(choices: dict[str, Any]) -> dict[str, Any]:
    """The choices with bare names for targets of the suite, without the options that have their value of ``ADDED``."""
    owners, reduced = _owners(choices), {}
    for key, value in choices.items():
        section, _, option = key.rpartition(".")
        added = ADDED.get(f"{owners.get(section, section)}.{option}", ...)
        if option == "_target_":
            reduced[key] = owners[section]
        elif type(value) is not type(added) or value != added:
            reduced[key] = value
    return reduced


def completed(choices: dict[str, Any]) -> dict[str, Any]:
    """The choices with the options of ``ADDED`` that they lack, and today's paths."""
    owners, full = _owners(choices), {key: MOVED.get(str(value), value) for key, value in choices.items()}
    for key, value in ADDED.items():
        owner, _, option = key.rpartition(".")
        for section in [name for name, called in owners.items() if called == owner] + [owner] * owner.islower():
            full.setdefault(f"{section}.{option}", value)
    return full


def _owners(choices: dict[str, Any]) -> dict[str, str]:
    """Section -> class or function that it calls, those of the suite by their bare names."""
    called = {key.rpartition(".")[0]: str(value) for key, value in choices.items() if key.endswith("._target_")}
    inside = ("lra.", "data_prep.")
    return {key: path.rpartition(".")[2] if path.startswith(inside) else path for key, path in called.items()}


def rewrite_weights(path: Path) -> None:
    """Turn the weights of a run into a best.ckpt. Raises ValueError if their sum is not the one beside them."""
    data = atomic.content(path / WEIGHTS)
    if f"{hashlib.sha256(data).hexdigest()}  {WEIGHTS}" not in (path / SUMS).read_text().splitlines():
        raise ValueError(f"{path / WEIGHTS}: its sha256 is not the one in {SUMS} beside it")
    with atomic.replacing(path / checkpoint.BEST) as part:
        torch.save(safetensors.torch.load(data), part)
    for name in (WEIGHTS, SUMS):
        (path / name).unlink()


if __name__ == "__main__":
    migrate()
