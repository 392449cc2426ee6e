"""Opens a run of Weights & Biases without ever being in the way: offline if the service cannot be used."""

import contextlib
import importlib.util
import logging
import shutil
import ssl
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Literal

from ...ops.options import one_of

Mode = Literal["online", "offline", "disabled"]


def tell(line: str) -> None:
    print(f"W&B: {line}", file=sys.stderr, flush=True)


def first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0].rstrip(".")


def check(mode: str | None) -> None:
    """Raises ValueError for an unknown mode and if wandb is not installed."""
    if mode is not None:
        one_of("mode", mode, Mode)
    spec = importlib.util.find_spec("wandb")
    if spec is None or spec.origin is None:  # a folder of that name, such as other programs leave, has no origin
        raise ValueError("logger=wandb needs a package that is not installed: pip install '.[wandb]'")


def open_run(about: dict[str, Any], *, folder: Path, mode: str | None, timeout: float, resume: bool):
    """The W&B run ``about["id"]``, its files in folder/wandb; None if not even an offline one can be had.

    If the service cannot be used the run is an offline one, and a line says why. An earlier local copy of the run is
    replaced: two of them brought up one after the other would overwrite each other.

    Args:
        about: Arguments of ``wandb.init``: id, project, entity, name, group, job_type, tags and config.
        mode: None for the value of WANDB_MODE, else online.
        timeout: Seconds to wait for the service at the start, and again for uploads at the end.
        resume: Go on in a run with this id if the service has one; else such a run starts over.

    Raises:
        ValueError: As ``check``.
    """
    check(mode)
    import wandb

    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # W&B's telemetry: of no interest if it fails
    about = about | {"group": about["group"][:128], "tags": [tag[:64] for tag in about["tags"]]}
    options = {"init_timeout": timeout, "finish_timeout": timeout, "finish_timeout_raises": True}
    try:
        settings = wandb.setup(settings=wandb.Settings(silent=True)).settings
        mode = mode or settings.mode
        later = f"kept offline in {folder / 'wandb'}; wandb sync brings it up"
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
                close_service()  # which still holds the id
    except Exception as error:
        tell(f"{first_line(error)}; this run is not logged")
    return None


def close_service() -> None:
    """End W&B's own process; the next run starts another."""
    import wandb

    with contextlib.suppress(Exception):  # it may be gone
        wandb.teardown()


def _unusable(settings, timeout: float) -> str | None:
    """Why the service cannot be used, without waiting for W&B's own retries."""
    import requests

    url = settings.base_url
    if not (settings.api_key or settings.identity_token_file or requests.utils.get_netrc_auth(url)):
        return "no key (wandb login, or WANDB_API_KEY)"
    try:
        urllib.request.urlopen(url, timeout=min(timeout, 5)).close()
    except urllib.error.HTTPError:
        return None  # an answer
    except OSError as error:
        cause = getattr(error, "reason", error)
        return None if isinstance(cause, ssl.SSLError) else f"{url} cannot be reached ({first_line(cause)})"
    return None
