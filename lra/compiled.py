"""numba with an on-disk cache, which a change to any source file of the function's package invalidates."""

import hashlib
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numba

UNUSED_SECONDS = 30 * 24 * 3600  # a folder is removed after this time without use
# With less free space there is no cache: numba does not catch the error of a full disk. The machine code of all
# functions of data_prep takes 3.5 MB.
MIN_FREE_BYTES = 16 * 2**20
SETTINGS: Any = numba.config  # its attributes are set when numba is imported
SETTINGS_LOCK = threading.Lock()


@cache
def cache_folder(package: Path) -> Path | None:
    """Return the folder of the machine code of a package; None if it is not writable or the disk is almost full.

    It is in $NUMBA_CACHE_DIR if that is set, else in the user's cache: in the package it would survive pip uninstall.
    Machine code includes functions and constants of other modules, but numba checks only the file of the function
    itself for changes; so the folder's name is a checksum of all sources of the package. Folders that were not used
    for 30 days are removed.

    Args:
        package: folder of the sources.
    """
    # Name of the folder: a checksum of all sources of the package.
    sources = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        name = f"{path.relative_to(package)}\0"
        sources.update(name.encode())
        sources.update(path.read_bytes())
        sources.update(b"\0")
    checksum = sources.hexdigest()[:16]
    user_cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    parent = Path(SETTINGS.CACHE_DIR or Path(user_cache) / "lra-suite")
    folder = parent / f"numba-{checksum}"

    # Make the folder, mark it as used now, and remove folders that were not used for 30 days.
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        os.utime(folder)
        for other in parent.glob("numba-*"):
            age = time.time() - other.stat().st_mtime
            if age > UNUSED_SECONDS:
                shutil.rmtree(other, ignore_errors=True)
    if not os.access(folder, os.W_OK):
        return None
    free = shutil.disk_usage(folder).free
    return folder if free > MIN_FREE_BYTES else None


def compiled(function: Callable, *, forceinline: bool = False) -> Callable:
    """Compile a function at its first call, or load it from ``cache_folder``. The machine code releases the GIL."""
    package_name = function.__module__.partition(".")[0]
    package_file = sys.modules[package_name].__file__
    assert package_file is not None  # a package of files
    folder = cache_folder(Path(package_file).parent)
    # numba takes the folder of a function's cache from its settings when it decorates the function.
    with SETTINGS_LOCK:
        before = SETTINGS.CACHE_DIR
        SETTINGS.CACHE_DIR = str(folder or before)
        try:
            decorate = numba.njit(nogil=True, cache=folder is not None, forceinline=forceinline)
            return decorate(function)
        finally:
            SETTINGS.CACHE_DIR = before


def inlined(function: Callable) -> Callable:
    """Compile a function that numba inlines into its callers."""
    return compiled(function, forceinline=True)
