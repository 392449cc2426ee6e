"""Work of libraries that a session of tests need not repeat."""

import contextlib
import functools
import hashlib
import os
import pickle
from pathlib import Path

from hydra._internal.config_repository import ConfigRepository

from lra.config import compose


def interpret_faster() -> None:
    """A function of a kernel that calls another goes over all of triton's language anew; once is enough."""
    from triton.runtime.interpreter import InterpretedFunction

    known, first = set(), InterpretedFunction.__call__

    def call(self, *args, **options):
        names = id(self.fn.__globals__)
        if names in known:
            return self.rewrite()(*args, **options)
        known.add(names)
        return first(self, *args, **options)

    InterpretedFunction.__call__ = call


def read_yamls_once() -> None:
    """Hydra reads every yaml anew for each composition; those of conf do not change."""
    load, read = ConfigRepository.load_config, {}

    def cached(self, config_path):
        # Yamls of a test may change.
        if any(source.provider == "command-line" and source.is_config(config_path) for source in self.sources):
            return load(self, config_path)
        key = (config_path, *(source.path for source in self.sources))
        if key not in read:
            read[key] = pickle.dumps(load(self, config_path))
        return pickle.loads(read[key])

    ConfigRepository.load_config = cached


def share_compositions(folder: Path) -> None:
    """Let the processes of a session take over what one of them has composed.

    Args:
        folder: of all of them.
    """
    read = compose._pickled.__wrapped__

    @functools.lru_cache(256)
    def shared(*words):
        path = folder / hashlib.sha256(repr(words).encode()).hexdigest()
        if path.exists():
            return path.read_bytes()
        made, part = read(*words), path.with_suffix(f".{os.getpid()}")
        with contextlib.suppress(OSError):  # a test of a full disk
            part.write_bytes(made)
            part.replace(path)
        return made

    compose._pickled = shared
