"""Lines on stderr."""

import sys


def log(line: str) -> None:
    """Print a line on stderr at once; of several processes of one run the first alone prints."""
    dist = sys.modules.get("torch.distributed")  # a process that never imported it belongs to no group
    if not (dist and dist.is_available() and dist.is_initialized()) or dist.get_rank() == 0:
        print(line, file=sys.stderr, flush=True)
