"""The identity of a run: the choices that decide its result, and their fingerprint."""

import hashlib
import json
from pathlib import Path

from . import record
from .canonical import canonical


def digest(values: dict) -> str:
    """The first 16 hexadecimal digits of the SHA-256 of a mapping's JSON."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]


def fingerprint(choices: dict) -> str:
    """Identify a run by its choices and its seed: the digest of their canonical form."""
    return digest(canonical(choices))


def fingerprints(choices: dict) -> tuple[str, str]:
    """The fingerprint of a run, and the one that versions without a canonical form gave it.

    Args:
        choices: with the seed; for the second fingerprint exactly those of the run's own ``config.yaml``.
    """
    return fingerprint(choices), digest(choices)


def check_choices(choices: dict, run_record: record.RunRecord, folder: Path) -> None:
    """Raise ValueError if the choices in a folder's ``config.yaml`` are not those of its record."""
    if run_record.fingerprint not in fingerprints(choices | {"seed": run_record.seed}):
        reason = f"config.yaml and {record.NAME} are not of one run"
        raise ValueError(f"{folder}: {reason}; delete it to run that seed again")


def difference(old: dict, new: dict) -> str:
    """List every choice that differs in canonical form as ``key: old -> new``; empty if none does."""
    old, new = canonical(old), canonical(new)
    keys = sorted(key for key in old | new if old.get(key, ...) != new.get(key, ...))
    return "; ".join(f"{key}: {old.get(key)} -> {new.get(key)}" for key in keys)
