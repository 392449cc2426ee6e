"""The text of ``--help``."""

import textwrap

import yaml

from . import CONF


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
