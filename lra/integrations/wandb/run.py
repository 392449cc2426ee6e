"""A run of Weights & Biases that is opened without ever being in the way: offline where the service cannot be used."""

import contextlib
import importlib.util
import logging
import shutil
import ssl
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Literal

from ...ops.options import one_of

Mode = Literal["online", "offline", "disabled"]


def tell(line: str) -> None:
    print(f"W&B: {line}", file=sys.stderr, flush=True)


def first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0].rstrip(".")


def open_run(
    *,
    folder: Path,
    id: str,
    project: str,
    entity: str | None,
    mode: str | None,
    timeout: float,
    name: str,
    group: str,
    job_type: str,
    tags: list[str],
    config: dict,
    resume: bool,
):
    """The W&B run ``id``, its files in folder/wandb; None where not even an offline one can be had.

    mode None: what WANDB_MODE says, else online. Where the service cannot be used the run is an offline one, and a line
    says why. resume: go on in a run with this id where the service has one, else such a run starts over. An earlier
    local copy of the run is replaced: two of them brought up one after the other would overwrite each other.
    timeout: seconds to wait for the service at the start, and again for uploads at the end.

    Raises ValueError for an unknown mode and where wandb is not installed.
    """
    if mode is not None:
        one_of("mode", mode, Mode)
    spec = importlib.util.find_spec("wandb")
    if spec is None or spec.origin is None:  # a folder of that name, such as other programs leave, has no origin
        raise ValueError("logger=wandb needs a package that is not installed: pip install '.[wandb]'")
    import wandb

    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # W&B's telemetry: of no interest where it fails
    try:
        settings = wandb.setup(settings=wandb.Settings(silent=True)).settings
        mode = mode or settings.mode
        later = f"kept offline in {folder / 'wandb'}; wandb sync brings it up"
        if mode == "online" and (reason := _unusable(settings, timeout)):
            tell(f"{reason}; {later}")
            mode = "offline"
        for attempt in dict.fromkeys((mode, "offline")):
            for old in (folder / "wandb").glob(f"*run-*-{id}"):
                shutil.rmtree(old, ignore_errors=True)
            try:
                return wandb.init(
                    project=project,
                    entity=entity,
                    id=id,
                    name=name,
                    group=group[:128],
                    job_type=job_type,
                    tags=[tag[:64] for tag in tags],
                    config=config,
                    dir=folder,
                    mode=attempt,
                    resume="allow" if resume and attempt == "online" else None,
                    reinit="create_new",
                    settings=wandb.Settings(
                        silent=True,
                        console="off",
                        init_timeout=timeout,
                        finish_timeout=timeout,
                        finish_timeout_raises=True,
                    ),
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
