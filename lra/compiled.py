"""numba with a cache on the disk that is invalidated by every change of a function's package."""

import hashlib
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from pathlib import Path

import numba

KEPT = 30 * 24 * 3600  # seconds that the machine code of other sources is kept without use
ROOM = 2**20  # bytes, more than the machine code of a package
DECORATING = threading.Lock()


@cache
def cache_folder(package: Path) -> Path | None:
    """The folder of the machine code of a package's sources; None if nothing can be written or a disk is full.

    It is in $NUMBA_CACHE_DIR if that is set, else in the user's cache: not in the package, of which pip would leave
    the folder behind. Machine code includes functions and constants of other modules, but numba checks only the file of
    the function itself for changes; so the folder's name is a checksum of all sources of the package. Folders that
    no process used for a month are removed.

    Args:
        package: folder of the sources.
    """
    # Name of the folder: a checksum of all sources of the package.
    sources = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        sources.update(f"{path.relative_to(package)}\0".encode() + path.read_bytes() + b"\0")
    name = f"numba-{sources.hexdigest()[:16]}"
    # Make the folder, mark it as used today, and remove folders that were not used for a month.
    user = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "lra-suite"
    folder = Path(numba.config.CACHE_DIR or user) / name
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        os.utime(folder)  # used today
        for other in folder.parent.glob("numba-*"):
            if time.time() - other.stat().st_mtime > KEPT:
                shutil.rmtree(other, ignore_errors=True)
    return folder if os.access(folder, os.W_OK) and shutil.disk_usage(folder).free > ROOM else None


def compiled(function: Callable, *, forceinline: bool = False) -> Callable:
    """Compile a function at its first call, or read it from `cache_folder`; it releases the GIL."""
    package = sys.modules[function.__module__.partition(".")[0]]
    folder = cache_folder(Path(package.__file__).parent)
    with DECORATING:  # numba takes the folder of a function's cache from its settings, at this moment
        before = numba.config.CACHE_DIR
        numba.config.CACHE_DIR = str(folder or before)
        try:
            return numba.njit(nogil=True, cache=folder is not None, forceinline=forceinline)(function)
        finally:
            numba.config.CACHE_DIR = before


inlined = partial(compiled, forceinline=True)
