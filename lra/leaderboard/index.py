"""The index of docs/mechanisms.md: one sentence for every name of ``attn=``."""

from ..report.table import in_markdown
from .mechanism import distinguishing, mechanisms

BEGIN = "<!-- index: python -m lra.leaderboard write=true -->"
END = "<!-- end of index -->"


def with_index(text: str) -> str:
    """Replace the index in the text of docs/mechanisms.md.

    Args:
        text: text of the page.

    Raises:
        ValueError: the page lacks the marks between which the index stands.
    """
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"docs/mechanisms.md must have the lines {BEGIN} and {END}; the index stands between them")
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


def table() -> str:
    """Render the table of all mechanisms."""
    lines = ["| name | what it computes | differs in | file |", "| --- | --- | --- | --- |"]
    for name, mechanism in mechanisms().items():
        # A bar would end the cell of the table.
        sentence = in_markdown(mechanism.sentence).replace("\\`", "`").replace("|", "\\|")
        options = ", ".join(f"{key} {plain(value)}" for key, value in distinguishing(mechanism).items())
        file = mechanism.module.rpartition("/")[2]
        lines.append(
            f"| {name} | {sentence} | {options.replace('|', chr(92) + '|')} | [{file}](../{mechanism.module}) |"
        )
    return "\n".join(lines)


def plain(value: object) -> str:
    """Format the value of an option; a constructor call as its name and options."""
    if isinstance(value, dict):
        inner = {key: item for key, item in value.items() if key != "_partial_"}
        # The name of the class or function without its package.
        target = str(inner.pop("_target_", "")).rpartition(".")[2]
        rest = " ".join(f"{key} {plain(item)}" for key, item in inner.items())
        return f"{target} {rest}".strip()
    return f"`{value}`" if "$" in str(value) else str(value)
