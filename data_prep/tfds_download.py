"""Downloads one file by TFDS's download manager and prints its path: python -P tfds_download.py URL FOLDER.

It is a separate program, since TFDS waits without a time limit and its threads outlive an interrupt: its parent,
``download.Download``, kills this process if no data arrive or the user interrupts. This process also ends when its
standard input is closed, as it is when the parent dies. The last line on stderr is the reason of a failure.
"""

import os
import sys
import threading
from pathlib import Path
from urllib.parse import urlsplit

import requests
import tensorflow_datasets as tfds
from tensorflow_datasets.core.download import downloader
from tensorflow_datasets.core.download.util import DownloadError


def reason(error: Exception, url: str) -> str:
    """Describe the reason of a failed download in a few words."""
    host = urlsplit(url).netloc
    match error:
        case DownloadError():
            return f"HTTP code {str(error).rpartition('HTTP code: ')[2].rstrip('.')}"
        case requests.exceptions.ChunkedEncodingError():
            return "the connection was interrupted"
        case requests.exceptions.SSLError():
            return f"the certificate of {host} is not accepted"
        case requests.exceptions.RetryError():
            return f"{host} answers with server errors only"
        case requests.exceptions.ConnectionError():
            return f"no connection to {host}"
        case OSError(strerror=str()):
            return f"it cannot be written ({error.strerror}); make room or choose another data folder"
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def download(url: str, folder: Path) -> Path:
    """Download the file into ``folder``. TFDS only registers its checksum; the caller compares it."""
    # TFDS doubles its pauses ten times, which takes minutes without a network.
    downloader.MAX_RETRIES = 3
    tfds.disable_progress_bar()
    register = folder / "checksums.tsv"
    register.touch()
    manager = tfds.download.DownloadManager(
        download_dir=folder, register_checksums=True, register_checksums_path=register
    )
    return Path(manager.download(url))


def end_with_parent() -> None:
    """End this process when its standard input is closed."""
    sys.stdin.read()
    os._exit(1)


if __name__ == "__main__":
    threading.Thread(target=end_with_parent, daemon=True).start()
    try:
        print(download(sys.argv[1], Path(sys.argv[2])))
    except Exception as error:
        sys.exit(reason(error, sys.argv[1]))
