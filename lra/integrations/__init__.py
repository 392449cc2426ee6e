"""Other libraries: CUR attention in Hugging Face transformers, and logging to Weights & Biases.

The report and the studies import this package. A training imports its logger by the name in ``conf/logger``.
"""

import contextlib
import sys
from collections.abc import Iterator

from ..console import pip_install


@contextlib.contextmanager
def needs(extra: str, module: str) -> Iterator[None]:
    """Report the extra to install if an import in the block fails.

    The message ends a program (``python -m``); elsewhere it is an ImportError.

    Args:
        extra: extra of pyproject.toml.
        module: ``__name__`` of the importing module, "__main__" in a program.

    Raises:
        ImportError: a package is missing or too old.
    """
    try:
        yield
    except ImportError as error:
        message = f"{error.name} is not installed, or too old: {pip_install(extra)}"
        if module == "__main__":
            sys.exit(f"lra: {message}")
        raise ImportError(message, name=error.name) from None
