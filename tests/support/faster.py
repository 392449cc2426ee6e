"""Caches for work that libraries would repeat in every test."""

import contextlib
import functools
import hashlib
import os
import pickle
from pathlib import Path

from hydra._internal.config_repository import ConfigRepository

from lra.config import compose


def interpret_faster() -> None:
    """Patch triton.language once per module rather than at every call of one kernel function by another."""
    from triton.runtime.interpreter import InterpretedFunction

    seen_globals, original_call = set(), InterpretedFunction.__call__

    def call(self, *args, **options):
        namespace = id(self.fn.__globals__)
        if namespace in seen_globals:
            return self.rewrite()(*args, **options)
        seen_globals.add(namespace)
        return original_call(self, *args, **options)

    InterpretedFunction.__call__ = call


def read_yamls_once() -> None:
    """Cache the yaml files of conf, which Hydra would read again for each composition."""
    load, read = ConfigRepository.load_config, {}

    def cached(self, config_path):
        # Yaml files that a test writes may change, so they are not cached.
        if any(source.provider == "command-line" and source.is_config(config_path) for source in self.sources):
            return load(self, config_path)
        key = (config_path, *(source.path for source in self.sources))
        if key not in read:
            read[key] = pickle.dumps(load(self, config_path))
        return pickle.loads(read[key])

    ConfigRepository.load_config = cached


def share_compositions(folder: Path) -> None:
    """Cache pickled compositions in a folder that all processes of the session share."""
    read = compose._pickled.__wrapped__

    @functools.lru_cache(256)
    def shared(*words):
        path = folder / hashlib.sha256(repr(words).encode()).hexdigest()
        if path.exists():
            return path.read_bytes()
        pickled, temp_path = read(*words), path.with_suffix(f".{os.getpid()}")
        # Tests of a full disk make the write fail.
        with contextlib.suppress(OSError):
            temp_path.write_bytes(pickled)
            temp_path.replace(path)
        return pickled

    compose._pickled = shared
