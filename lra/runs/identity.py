"""The identity of a run: the fingerprint of the choices that decide its result, see ``Experiment.choices``."""

import hashlib
import json


def fingerprint(choices: dict) -> str:
    """Identify a run by its choices, flat and with the seed: 16 hexadecimal digits of the SHA-256 of their JSON."""
    return hashlib.sha256(json.dumps(choices, sort_keys=True).encode()).hexdigest()[:16]


def difference(old: dict, new: dict) -> str:
    """List every choice that differs as ``key: old -> new``; empty if none does."""
    keys = sorted(key for key in old | new if old.get(key, ...) != new.get(key, ...))
    return "; ".join(f"{key}: {old.get(key)} -> {new.get(key)}" for key in keys)
