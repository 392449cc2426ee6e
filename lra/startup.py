"""Settings that an entry point makes before it imports torch: how its threads wait, and Ctrl-C during the imports."""

import os
import platform
import signal
import sys
from types import FrameType

SPINS = "1000"  # the value that libgomp takes by itself if it has more threads than cores


def begin() -> None:
    """Prepare this process for a command; called by every entry point before torch is imported."""
    refuse_other_platforms()
    wait_briefly()
    end_quietly()


def refuse_other_platforms() -> None:
    """Exit on a system whose locks, signals and limits this suite does not know."""
    if platform.system() not in ("Linux", "Darwin"):
        sys.exit(f"lra: runs on Linux and macOS, not on {platform.system()}; on Windows use WSL")


def wait_briefly() -> None:
    """Let the threads of libgomp, the OpenMP runtime of torch's wheels, sleep soon after they begin to wait.

    By default they poll for about a millisecond at each of the thousand joins of a step, on cores that their siblings
    need if other processes are there. ``GOMP_SPINCOUNT`` and ``OMP_WAIT_POLICY`` in the environment take precedence.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPINS)


def end_quietly() -> None:
    """Let Ctrl-C print "lra: interrupted" and exit with status 1 until ``interruptible`` is called."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def interruptible() -> None:
    """Let Ctrl-C raise KeyboardInterrupt again."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(number: int, frame: FrameType | None) -> None:
    while frame and not frame.f_code.co_filename.startswith("<frozen importlib"):
        frame = frame.f_back
    # A command that never calls ``interruptible`` is past its imports.
    if frame is None:
        raise KeyboardInterrupt
    # No exception: code that is being imported may swallow it, or print it and continue.
    os.write(sys.stderr.fileno(), b"lra: interrupted\n")
    os._exit(1)
