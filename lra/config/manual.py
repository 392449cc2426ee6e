"""Start a command: prepare the process, and answer --help and --version without importing torch."""

import sys
import textwrap

from .. import startup
from . import CONF


def begin(name: str) -> None:
    """Prepare this process for a command; the module of the command calls it before it imports torch.

    Args:
        name: name of the command's yaml in ``conf``, whose options ``--help`` lists.

    Raises:
        SystemExit: the command line asks for help or the version, which has been printed.
    """
    startup.begin()
    if {"-h", "--help"} & set(sys.argv):
        startup.show(manual(name))
        sys.exit()
    if "--version" in sys.argv:
        from .. import __version__

        startup.show(f"lra-suite {__version__}")
        sys.exit()


def manual(name: str) -> str:
    """Return the text of conf/<name>.yaml, whose comments explain its keys, and the names in the groups it lists.

    It needs no valid configuration, unlike Hydra's own help, for which a command's mandatory groups must be set.
    """
    # --version does not need Hydra, which takes a quarter of a second to import.
    from .recipes import choices

    groups = _groups(name) - {"hydra"}
    lines = [(CONF / f"{name}.yaml").read_text()]
    if groups:
        lines.append("# <group>=<name> reads conf/<group>/<name>.yaml; its keys are options too, such as attn.count=32")
    if "experiment" in groups:
        lines.append("# experiment=<family>_<task> reads a section of conf/experiment/recipes/<family>.yaml")
    for group in sorted(groups):
        names = " ".join(choices(group))
        lines.append(textwrap.fill(f"{group}= {names}", width=120, subsequent_indent="  ", break_on_hyphens=False))
    lines.append("# --cfg job after other overrides prints the configuration they make; --hydra-help: options of hydra")
    return "\n".join(lines)


def _groups(name: str) -> set[str]:
    """The groups in the defaults list of conf/<name>.yaml and of the yamls that it extends."""
    import yaml

    groups: set[str] = set()
    for entry in yaml.safe_load((CONF / f"{name}.yaml").read_text())["defaults"]:
        if isinstance(entry, dict):
            # Such as {"override task": "listops"} and {"attn": "???"}.
            groups |= {key.split()[-1] for key in entry}
        elif entry != "_self_":
            groups |= _groups(entry)
    return groups
