"""Entry points: make a function of options a command."""

import contextlib
import functools
import os
import re
import sys
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig

from ..console import AlreadyReported, OtherRankFailed, log, plural, visible
from ..startup import abandon_stdout, interruptible
from . import CONF
from .compose import overrides_of
from .errors import explain, is_user_error
from .options import Options
from .quoting import escape, override
from .workers import Workers


def main(kind: type[Options]) -> Callable:
    """Make a decorator that turns a function of options into a command.

    The options are declared in conf/<kind.conf>.yaml. The function itself is reachable as ``__wrapped__``.

    An error that a user can correct (``errors.is_user_error``: ValueError, OSError, errors of Hydra and OmegaConf,
    memory that runs out) is reported as one line on stderr with exit status 1; LRA_TRACEBACK=1 shows the traceback
    instead. If nobody reads stdout any more, as after ``| head``, that line is left out.

    With -m a failed run does not stop the others, whether it raised an exception or, with joblib's launcher, a signal
    ended its process. The failed runs are listed at the end. A launcher of a cluster reports only the first failure.

    Args:
        kind: class of the options.
    """

    def decorate(function: Callable[[Any], Any]) -> Callable[[], None]:
        command = Command(function, kind)

        @functools.wraps(function)
        def entry() -> None:
            command.start()

        return entry

    return decorate


class Command:
    """A function of options that reads them from the command line.

    Args:
        function: the function.
        kind: class of the options.
    """

    def __init__(self, function: Callable[[Any], Any], kind: type[Options]):
        self.function = function
        self.kind = kind
        self.pid = 0  # process of the command itself; a launcher starts further processes
        self.failures: list[str] = []
        self.workers: Workers | None = None

    def start(self) -> None:
        """Run the command; a user's mistake exits with status 1 and one line, failed runs of -m with a line each."""
        os.environ["HYDRA_FULL_ERROR"] = "1"  # raise exceptions instead of printing them
        try:
            interruptible()
            self._start_hydra()
            # Flush here: at the end of the process a closed pipe would print a traceback.
            sys.stdout.flush()
            if self.failures:
                lines = [f"lra: {plural(len(self.failures), 'run')} failed, the others finished", *self.failures]
                sys.exit(visible("\n  ".join(lines)))
        except KeyboardInterrupt as stop:
            sys.exit(f"lra: {stop}" if str(stop) else "lra: interrupted")
        except Exception as error:
            _end(error)

    def _start_hydra(self) -> None:
        @functools.wraps(self.function)  # Hydra asks the function for its module
        def run(config: DictConfig) -> Any:
            return self._run(config, HydraConfig.get())

        # Options reach Hydra through sys.argv, each quoted for its grammar.
        start = hydra.main(version_base="1.3", config_path=str(CONF), config_name=self.kind.conf)(run)
        self.pid = os.getpid()
        self.failures = []
        sys.argv[1:] = map(escape, sys.argv[1:])
        flags = {"-m", "--multirun"}
        if not flags & set(sys.argv):
            start()
            return
        # Several runs: in this process one after the other, or in the processes of a launcher. argparse rejects a flag
        # between two overrides.
        overrides = [argument for argument in sys.argv[1:] if argument not in flags]
        sys.argv[1:] = ["-m", *delay_group_options(overrides)]
        with Workers() as self.workers:
            self.workers.launch(start)
            self.failures += self.workers.failures().values()

    def _run(self, config: DictConfig, hydra_config: Any) -> Any:
        """Run the function once: the only run of the command, or one of several of -m."""

        def compute() -> Any:
            options = self.kind.from_config(config, hydra_config)
            return self.function(options)

        if hydra_config.mode is not RunMode.MULTIRUN:
            try:
                return compute()
            except Exception as error:
                _end(error)

        # One of several runs. A failure is collected, so that the other runs are not stopped.
        title = " ".join(overrides_of(hydra_config))
        if os.getpid() == self.pid:
            failure, reason = _attempt(title, compute)
            if failure is not None and not isinstance(failure, OtherRankFailed):
                self.failures.append(reason)
        elif self.workers and hydra_config.runtime.choices["hydra/launcher"] == "joblib":
            self.workers.run(hydra_config.job.num, title, lambda: _attempt(title, compute)[1])
        else:
            # In a process of a cluster: Hydra continues and raises the first error at the end.
            failure, _ = _attempt(title, compute)
            if failure is not None:
                raise failure


def _attempt(title: str, compute: Callable[[], Any]) -> tuple[Exception | None, str]:
    """Compute one run of several.

    Returns:
        The error if the run failed, and the title with the reason, which has been logged (an empty text if rank 0 logs
        it); else None and an empty text.
    """
    try:
        compute()
    except OtherRankFailed as error:
        return error, ""
    except Exception as error:
        if _shows_traceback(error):
            traceback.print_exc()
        reason = f"{title}: {explain(error)}"
        log(f"lra: failed: {reason}")
        return error, reason
    return None, ""


def _shows_traceback(error: Exception) -> bool:
    """Whether to show the traceback of an error: LRA_TRACEBACK is set, or the error is not a user's mistake."""
    return os.environ.get("LRA_TRACEBACK", "0") not in ("", "0") or not is_user_error(error)


def _end(error: Exception) -> NoReturn:
    """End the process with status 1 and one line on stderr, or raise the error again to show its traceback.

    There is no line if nobody reads stdout any more, or if another process has reported the error.
    """
    if _shows_traceback(error):
        raise error
    if isinstance(error, AlreadyReported):
        sys.exit(1)
    if isinstance(error, BrokenPipeError):
        abandon_stdout()
        sys.exit(1)
    sys.exit(visible(f"lra: {explain(error, sys.argv[1:])}"))


def name_positional(arguments: list[str], *names: str) -> list[str]:
    """Give positional arguments the names of options: ``runs/mine examples=20`` becomes ``runs=runs/mine examples=20``.

    A path that exists is positional although it contains "=", like the folder of ``label_keys=[optim.lr]``.

    Args:
        arguments: command-line arguments without the name of the program.
        names: option of the first positional argument, of the second one, and so on. Further ones are left as they
            are, so that the parser of the options refuses them.

    Returns:
        The arguments in their order.
    """
    remaining = list(names)
    named_arguments: list[str] = []
    for argument in arguments:
        # Unlike Path.exists, False for a text longer than a file name, and in a folder that this user may not read.
        is_path = os.path.exists(argument)
        # The folder that follows --config-dir belongs to it.
        is_flag = argument.startswith("-") or named_arguments[-1:] in (["--config-dir"], ["-cd"])
        is_positional = (is_path or "=" not in argument) and not is_flag
        if is_positional and remaining:
            name = remaining.pop(0)
            argument = override(name, argument) if is_path else f"{name}={argument}"
        named_arguments.append(argument)
    return named_arguments


# Sections whose keys depend on the yaml that a group chooses, in addition to the section of its name. The keys of
# others, such as optim, always exist.
_SECTIONS = {
    "task": {"source", "masking", "budgets"},
    "experiment": {"task", "source", "masking", "budgets", "attn", "block", "model", "pretrain"},
    "attn": {"block"},
}


def delay_group_options(overrides: list[str]) -> list[str]:
    """Wrap the options of a swept group in ``choice``: attn=sdpa,cur_abs attn.count=32 -> attn.count=choice(32).

    Hydra checks plain overrides once, before it chooses the swept group, so their keys may not exist yet. It applies a
    choice in each run, after the group is chosen. The same holds for options of other sections that the group's yamls
    set.
    """
    # Groups that have several values.
    parser = OverridesParser.create()
    parsed = {}
    for text in overrides:
        # An option of Hydra itself, or a mistake that Hydra reports.
        with contextlib.suppress(HydraException):
            parsed[text] = parser.parse_override(text)
    sections: set[str] = set()
    for parsed_override in parsed.values():
        group = parsed_override.key_or_group
        if parsed_override.is_sweep_override() and (CONF / group).is_dir():
            sections |= {group} | _SECTIONS.get(group, set())

    # Options in these sections become a choice with one value.
    delayed = []
    for text in overrides:
        option = parsed.get(text)
        if option is not None and not (option.is_sweep_override() or option.is_delete()):
            key = option.key_or_group
            if "." in key and key.partition(".")[0] in sections:
                text = re.sub("=(.*)", r"=choice(\1)", text, count=1, flags=re.DOTALL)
        delayed.append(text)
    return delayed
