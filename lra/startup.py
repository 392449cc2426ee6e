"""Settings made before torch is imported: the waiting of its threads, and Ctrl-C while a command still imports."""

import os
import platform
import signal
import sys
from types import FrameType

SPINS = "1000"  # what libgomp itself takes if it has more threads than cores


def refuse_other_platforms() -> None:
    """End in one line on a system whose locks, signals and limits this suite does not know."""
    if platform.system() not in ("Linux", "Darwin"):
        sys.exit(f"lra: runs on Linux and macOS, not on {platform.system()}; on Windows use WSL")


def wait_briefly() -> None:
    """Let the threads of libgomp, the OpenMP runtime of torch's wheels, sleep soon after they begin to wait.

    By default they poll for about a millisecond at each of the thousand joins of a step, on cores that their siblings
    need if other processes are there. What ``GOMP_SPINCOUNT`` or ``OMP_WAIT_POLICY`` say in the environment stays.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPINS)


def end_quietly() -> None:
    """Ctrl-C ends python -m lra... with a line and exit status 1 until ``interruptible`` is called."""
    place = len(sys.orig_argv) - len(sys.argv)
    command = place > 0 and sys.orig_argv[place - 1] == "-m" and sys.orig_argv[place].split(".")[0]
    if command in ("lra", "data_prep") and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def interruptible() -> None:
    """Ctrl-C raises KeyboardInterrupt again."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(number: int, frame: FrameType | None) -> None:
    while frame and not frame.f_code.co_filename.startswith("<frozen importlib"):
        frame = frame.f_back
    if frame is None:  # a command that never calls ``interruptible`` is past its imports
        raise KeyboardInterrupt
    # No exception: what an import calls may swallow it, or print it and go on.
    os.write(sys.stderr.fileno(), b"lra: interrupted\n")
    os._exit(1)
