"""The mechanisms inside other libraries. Nothing here is imported by the rest."""

import contextlib
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def needs(extra: str, module: str) -> Iterator[None]:
    """Around the imports of a module: where a package is missing, one line names the extra that brings it.

    The line ends a program (``python -m``, so that ``module`` is "__main__"); elsewhere it is an ImportError.
    """
    try:
        yield
    except ImportError as error:
        line = f"{error.name} is not installed, or too old: pip install '.[{extra}]'"
        if module == "__main__":
            sys.exit(f"lra: {line}")
        raise ImportError(line, name=error.name) from None
