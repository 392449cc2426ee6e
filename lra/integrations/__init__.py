"""The mechanisms inside other libraries. The rest of the suite does not import this package."""

import contextlib
import sys
from collections.abc import Iterator

from ..console import pip_install


@contextlib.contextmanager
def needs(extra: str, module: str) -> Iterator[None]:
    """Name the extra that installs a package in one line, if an import of the block fails.

    The line ends a program (``python -m``); elsewhere it is an ImportError.

    Args:
        extra: extra of pyproject.toml.
        module: ``__name__`` of the importing module, "__main__" in a program.

    Raises:
        ImportError: a package is missing or too old.
    """
    try:
        yield
    except ImportError as error:
        line = f"{error.name} is not installed, or too old: {pip_install(extra)}"
        if module == "__main__":
            sys.exit(f"lra: {line}")
        raise ImportError(line, name=error.name) from None
