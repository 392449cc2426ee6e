"""Lines on stderr."""

import re
import sys

_LOGIN = re.compile(r"(?<=//)[^/?#\s]*@")  # user:password@ of an address


def log(line: str) -> None:
    """Print a line on stderr at once; of several processes of one run the first alone prints."""
    dist = sys.modules.get("torch.distributed")  # a process that never imported it belongs to no group
    if not (dist and dist.is_available() and dist.is_initialized()) or dist.get_rank() == 0:
        print(line, file=sys.stderr, flush=True)


def without_login(text: str) -> str:
    """Remove user:password@ from an address, or from the addresses in a text."""
    return _LOGIN.sub("", text)
