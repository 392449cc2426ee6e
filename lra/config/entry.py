"""Entry points: what makes a function of options a command."""

import contextlib
import functools
import os
import re
import sys
import textwrap
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

import hydra
import yaml
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig

from .. import __version__
from ..console import log, visible
from ..startup import interruptible
from . import CONF
from .errors import Told, explain, refusal
from .options import Options
from .quoting import escape


def main(kind: type[Options]) -> Callable:
    """Make a function of options an entry point over the yaml of their kind.

    The function itself is reachable as ``__wrapped__``. A user's mistake (ValueError, OSError, hydra's own errors) ends
    in one line on stderr and exit status 1; LRA_TRACEBACK=1 shows the traceback instead. If the reader of stdout is
    gone, as after ``| head``, it ends without the line. With -m a run that fails for any reason does not stop the
    others; the failed ones are listed at the end.
    """

    def decorate(function: Callable[[Any], Any]) -> Callable[[], None]:
        failed: list[str] = []  # runs of -m in this process, with their reason
        parent: int | None = None  # pid of the command itself; a launcher starts further processes

        @functools.wraps(function)
        def run(config: DictConfig) -> Any:
            choices = HydraConfig.get()
            try:
                return function(kind.from_config(config, choices))
            except Exception as error:
                if choices.mode is not RunMode.MULTIRUN:
                    _end(error)
                if _unexpected(error):
                    traceback.print_exc()
                failed.append(f"{' '.join(choices.overrides.task)}: {explain(error)}")
                log(f"lra: failed: {failed[-1]}")
                if os.getpid() == parent:  # listed at the end; hydra would print the overrides once more
                    return None
                raise  # in a launcher's process: hydra continues and raises the first error at the end

        @functools.wraps(function)
        def entry() -> None:
            nonlocal parent
            parent = os.getpid()
            os.environ["HYDRA_FULL_ERROR"] = "1"  # raise exceptions instead of printing them
            failed.clear()
            try:
                interruptible()
                if {"-h", "--help"} & set(sys.argv):
                    return print(manual(kind.conf), flush=True)
                if "--version" in sys.argv:
                    return print(f"lra-suite {__version__}", flush=True)
                sys.argv[1:] = map(escape, sys.argv[1:])
                if {"-m", "--multirun"} & set(sys.argv):
                    sys.argv[1:] = follow(sys.argv[1:])
                hydra.main(version_base="1.3", config_path=str(CONF), config_name=kind.conf)(run)()
                if sys.stdout:  # None if it was closed before the start
                    sys.stdout.flush()  # not at the process's end, which would print a traceback for a closed pipe
                if failed:
                    sys.exit(visible("\n  ".join([f"lra: {len(failed)} failed, the others ended well", *failed])))
            except KeyboardInterrupt as stop:
                sys.exit(f"lra: {stop}" if str(stop) else "lra: interrupted")
            except Exception as error:
                _end(error)

        return entry

    return decorate


def manual(name: str) -> str:
    """Return the text of conf/<name>.yaml, whose comments explain its keys, and the names in the groups it lists.

    It needs no valid configuration, unlike hydra's own help, for which a command's mandatory groups must be set.
    """
    text = (CONF / f"{name}.yaml").read_text()
    named = {key.split()[-1] for entry in yaml.safe_load(text)["defaults"] if isinstance(entry, dict) for key in entry}
    lines = [text]
    if groups := sorted(named - {"hydra"}):
        lines.append("# <group>=<name> reads conf/<group>/<name>.yaml; its keys are options too, such as attn.count=32")
    for group in groups:
        names = " ".join(sorted(path.stem for path in (CONF / group).glob("*.yaml")))
        lines.append(textwrap.fill(f"{group}= {names}", width=120, subsequent_indent="  ", break_on_hyphens=False))
    lines.append("# --cfg job after other words prints the configuration they make; --hydra-help: options of hydra")
    return "\n".join(lines)


def _unexpected(error: Exception) -> bool:
    return os.environ.get("LRA_TRACEBACK", "0") not in ("", "0") or not refusal(error)


def _end(error: Exception) -> NoReturn:
    """End the process with status 1 and one line on stderr, or without the line if nobody reads stdout any more."""
    if _unexpected(error):
        raise error
    if isinstance(error, Told):
        sys.exit(1)
    if isinstance(error, BrokenPipeError) and sys.stdout:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at the process's end
        sys.exit(1)
    sys.exit(visible(f"lra: {explain(error, sys.argv[1:])}"))


def follow(overrides: list[str]) -> list[str]:
    """Delay options of a swept group: attn=sdpa,cur_abs attn.count=32 -> attn.count=choice(32).

    Hydra first composes without the swept overrides, that is with another attn, which may lack a plain override's key;
    it applies a choice only in each run.
    """
    parser = OverridesParser.create()
    parsed = {}
    for override in overrides:
        with contextlib.suppress(HydraException):  # an option of hydra's own, or a mistake that hydra reports
            parsed[override] = parser.parse_override(override)
    swept = {o.key_or_group for o in parsed.values() if o.is_sweep_override() and (CONF / o.key_or_group).is_dir()}
    late = {
        override
        for override, o in parsed.items()
        if o.key_or_group.partition(".")[0] in swept - {o.key_or_group} and not (o.is_sweep_override() or o.is_delete())
    }
    choice = lambda override: re.sub("=(.*)", r"=choice(\1)", override, count=1, flags=re.DOTALL)
    return [choice(override) if override in late else override for override in overrides]
