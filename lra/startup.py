"""Preparations of an entry point before it imports torch: platform check, short busy waiting, Ctrl-C."""

import os
import platform
import signal
import sys
import threading
from importlib.util import find_spec
from types import FrameType

# Number of polls before a waiting thread of libgomp sleeps. libgomp's default is 300,000; under OMP_WAIT_POLICY=active
# with more threads than cores it uses 1000 too.
SPINS = "1000"


def begin() -> None:
    """Prepare this process for a command, before torch is imported.

    A command with a yaml in ``conf`` calls ``lra.config.manual.begin``, which calls this function and answers --help.
    """
    refuse_other_platforms()
    refuse_deleted_folder()
    limit_spinning()
    end_on_interrupt()


def refuse_other_platforms() -> None:
    """Exit on any system but Linux and macOS, whose locks, signals and limits this suite relies on."""
    if platform.system() not in ("Linux", "Darwin"):
        sys.exit(f"lra: runs on Linux and macOS, not on {platform.system()}; on Windows use WSL")


def refuse_deleted_folder() -> None:
    """Exit if the working directory was deleted, since relative paths such as ``runs`` lead nowhere then."""
    try:
        os.getcwd()
    except FileNotFoundError:
        sys.exit("lra: the working directory was deleted; change to another one")


def limit_spinning() -> None:
    """Let the threads of libgomp, the OpenMP runtime of torch's Linux wheels, sleep soon after they begin to wait.

    By default they poll for about a millisecond at each of the thousand joins of a training step, on cores that other
    processes may need. ``GOMP_SPINCOUNT`` and ``OMP_WAIT_POLICY`` in the environment take precedence.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPINS)


def interpret_kernels() -> None:
    """Let Triton interpret its kernels, for a command that computes on the CPU; call it before triton is imported."""
    if find_spec("triton"):
        os.environ.setdefault("TRITON_INTERPRET", "1")


def end_on_interrupt() -> None:
    """Let Ctrl-C during an import print "lra: interrupted" and exit with status 1, until ``interruptible`` is called.

    Outside of imports it raises KeyboardInterrupt as usual. A handler that another program has set is kept, and nothing
    changes in a thread, where Python sets no handlers.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def show(text: str) -> None:
    """Print a text and flush it. A closed pipe, as under ``| head``, is no error; a full disk is reported."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        abandon_stdout()
    except OSError as error:
        abandon_stdout()
        sys.exit(f"lra: stdout cannot be written: {error.strerror}")


def abandon_stdout() -> None:
    """Write the rest of stdout to the null device, since nobody reads it; otherwise Python prints an error at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def interruptible() -> None:
    """Let Ctrl-C raise KeyboardInterrupt again."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(number: int, frame: FrameType | None) -> None:
    while frame and not frame.f_code.co_filename.startswith("<frozen importlib"):
        frame = frame.f_back
    # No import is running, for example in a command that never calls ``interruptible``.
    if frame is None:
        raise KeyboardInterrupt
    # No exception: code that is being imported may swallow it, or print it and continue.
    os.write(sys.stderr.fileno(), b"lra: interrupted\n")
    os._exit(1)
