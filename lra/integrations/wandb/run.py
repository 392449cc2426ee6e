"""Opening of a run of Weights & Biases, which becomes an offline run if the service cannot be used."""

import contextlib
import importlib.util
import logging
import shutil
import ssl
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Literal

from ...console import log, pip_install

Mode = Literal["online", "offline", "disabled"]


def tell(line: str) -> None:
    """Log a line about W&B."""
    log(f"W&B: {line}")


def first_line(error: Exception) -> str:
    """The first line of an error's message."""
    return (str(error) or type(error).__name__).splitlines()[0].rstrip(".")


def check_installed() -> None:
    """Raise ValueError if wandb is not installed."""
    spec = importlib.util.find_spec("wandb")
    if spec is None or spec.origin is None:  # a folder named wandb in the working directory has no origin
        raise ValueError(f"logger=wandb needs a package that is not installed: {pip_install('wandb')}")


def open_run(about: dict[str, Any], *, folder: Path, mode: str | None, timeout: float, resume: bool):
    """Open the W&B run ``about["id"]`` with its files in folder/wandb.

    If the service cannot be used the run is an offline one, and a line gives the reason. An earlier local copy of the
    run is replaced, since two copies would overwrite each other when they are synced.

    Args:
        about: arguments of ``wandb.init``: id, project, entity, name, group, job_type, tags and config.
        folder: folder of the run's files.
        mode: mode of W&B; None for the value of WANDB_MODE, else online.
        timeout: seconds to wait for the service at the start, and again for uploads at the end.
        resume: whether to continue a run with this id if the service has one; else it starts over.

    Returns:
        The run, None if not even an offline one can be opened.

    Raises:
        ValueError: as ``check_installed``.
    """
    check_installed()
    import wandb

    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # failures of W&B's telemetry are not shown
    about = about | {"group": about["group"][:128], "tags": [tag[:64] for tag in about["tags"]]}
    options = {"init_timeout": timeout, "finish_timeout": timeout, "finish_timeout_raises": True}
    try:
        settings = wandb.setup(settings=wandb.Settings(silent=True)).settings
        mode = mode or settings.mode
        later = f"kept offline in {folder / 'wandb'}; wandb sync uploads it"
        if mode == "online" and (reason := _unusable(settings, timeout)):
            tell(f"{reason}; {later}")
            mode = "offline"
        for attempt in dict.fromkeys((mode, "offline")):
            for old in (folder / "wandb").glob(f"*run-*-{about['id']}"):
                shutil.rmtree(old, ignore_errors=True)
            try:
                return wandb.init(
                    **about,
                    dir=folder,
                    mode=attempt,
                    resume="allow" if resume and attempt == "online" else None,
                    reinit="create_new",
                    settings=wandb.Settings(silent=True, console="off", **options),
                )
            except Exception as error:
                tell(f"{first_line(error)}; {later if attempt == 'online' else 'this run is not logged'}")
                close_service()  # the service still holds the id
    except Exception as error:
        tell(f"{first_line(error)}; this run is not logged")
    return None


def close_service() -> None:
    """End W&B's own process; the next run starts another one."""
    import wandb

    with contextlib.suppress(Exception):  # it may have ended
        wandb.teardown()


def _unusable(settings, timeout: float) -> str | None:
    """The reason why the service cannot be used, found without waiting for W&B's own retries."""
    import requests

    url = settings.base_url
    if not (settings.api_key or settings.identity_token_file or requests.utils.get_netrc_auth(url)):
        return "no key (wandb login, or WANDB_API_KEY)"
    try:
        urllib.request.urlopen(url, timeout=min(timeout, 5)).close()
    except urllib.error.HTTPError:
        return None  # the service answered
    except OSError as error:
        cause = getattr(error, "reason", error)
        return None if isinstance(cause, ssl.SSLError) else f"{url} cannot be reached ({first_line(cause)})"
    return None
