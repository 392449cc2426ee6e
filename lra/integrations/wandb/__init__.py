"""Weights & Biases, a mirror of the files on disk: the opening of a run, offline if the service cannot be used."""

import contextlib
import importlib.util
import logging
import shutil
import ssl
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Literal

from ...console import first_line, log, pip_install
from ...names import shorten

Mode = Literal["online", "offline", "disabled"]
# Limits of W&B, in characters.
MAX_GROUP = 128
MAX_TAG = 64
# Seconds to wait for an answer before a run is kept offline.
MAX_PROBE = 5


def tell(line: str) -> None:
    """Log a line about W&B."""
    log(f"W&B: {line}")


def reason(error: Exception) -> str:
    """Return the first line of an error's message without the full stop."""
    return first_line(error).rstrip(".")


def check_installed() -> None:
    """Raise ValueError if wandb is not installed."""
    spec = importlib.util.find_spec("wandb")
    # A folder named wandb in the working directory has no origin.
    if spec is None or spec.origin is None:
        raise ValueError(f"logger=wandb needs a package that is not installed: {pip_install('wandb')}")


def open_run(about: dict[str, Any], *, folder: Path, mode: str | None, timeout: float, resume: bool):
    """Open the W&B run ``about["id"]`` with its files in folder/wandb.

    If the service cannot be used the run is an offline one, and the reason is logged. An earlier local copy of the run
    is replaced, since two copies would overwrite each other when they are synced. Long groups and tags are cut and end
    with a checksum, so that two of them stay distinct.

    Args:
        about: arguments of ``wandb.init``: id, project, entity, name, group, job_type, tags and config.
        folder: folder of the run's files.
        mode: mode of W&B; None for the value of WANDB_MODE, else online.
        timeout: seconds to wait for the service at the start, and again for uploads at the end.
        resume: whether to continue a run with this id if the service has one; else it starts over.

    Returns:
        The run; None if not even an offline one can be opened.

    Raises:
        ValueError: as ``check_installed``.
    """
    check_installed()
    import wandb

    # Failures of W&B's telemetry are not shown.
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
    about = about | {
        "group": shorten(about["group"], MAX_GROUP),
        "tags": [shorten(tag, MAX_TAG) for tag in about["tags"]],
    }
    kept_offline = f"kept offline in {folder / 'wandb'}; wandb sync uploads it"
    try:
        settings = wandb.setup(settings=wandb.Settings(silent=True)).settings
        mode = mode or settings.mode
        obstacle = _unusable(settings, timeout) if mode == "online" else None
        if obstacle:
            tell(f"{obstacle}; {kept_offline}")
            mode = "offline"
        elif mode == "offline":
            tell(kept_offline)
        for attempt in dict.fromkeys((mode, "offline")):
            try:
                return _init(about, folder, attempt, timeout, resume)
            except Exception as error:
                tell(f"{reason(error)}; {kept_offline if attempt == 'online' else 'this run is not logged'}")
                # The service still holds the id.
                close_service()
    except Exception as error:
        tell(f"{reason(error)}; this run is not logged")
    return None


def _init(about: dict[str, Any], folder: Path, mode: str, timeout: float, resume: bool):
    """Remove earlier local copies of a run and open it."""
    import wandb

    for earlier_copy in (folder / "wandb").glob(f"*run-*-{about['id']}"):
        shutil.rmtree(earlier_copy, ignore_errors=True)
    settings = wandb.Settings(
        silent=True,
        console="off",
        init_timeout=timeout,
        finish_timeout=timeout,
        finish_timeout_raises=True,
    )
    return wandb.init(
        **about,
        dir=folder,
        # The settings declare more modes than ``init``, which takes all of them.
        mode=mode,  # type: ignore[arg-type]
        resume="allow" if resume and mode == "online" else None,
        reinit="create_new",
        settings=settings,
    )


def close_service() -> None:
    """End W&B's own process; the next run starts another one."""
    import wandb

    # The process may have ended already.
    with contextlib.suppress(Exception):
        wandb.teardown()


def _unusable(settings, timeout: float) -> str | None:
    """Return the reason why the service cannot be used, without waiting for W&B's own retries."""
    import requests

    url = settings.base_url
    has_key = settings.api_key or settings.identity_token_file or requests.utils.get_netrc_auth(url)
    if not has_key:
        return "no key (wandb login, or WANDB_API_KEY)"
    try:
        urllib.request.urlopen(url, timeout=min(timeout, MAX_PROBE)).close()
    except urllib.error.HTTPError:
        # The service answered.
        return None
    except OSError as error:
        cause = getattr(error, "reason", error)
        return None if isinstance(cause, ssl.SSLError) else f"{url} cannot be reached ({reason(cause)})"
    return None
