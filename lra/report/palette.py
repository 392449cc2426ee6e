"""The colours of all figures: one colour and dash for each mechanism."""

from collections.abc import Iterable

# (on a light ground, on a dark ground); neighbours can be told apart by colour-blind readers.
COLOURS = (
    ("#2a78d6", "#5598e7"),
    ("#eb6834", "#e8784a"),
    ("#1baf7a", "#27b585"),
    ("#4a3aa7", "#9085e9"),
    ("#eda100", "#d9a032"),
    ("#d1477a", "#e87ba4"),
    ("#008300", "#4aa84a"),
    ("#7a5a3a", "#b08a63"),
)
DASHES = ("", "6 3", "2 3", "8 3 2 3")
GROUND, INK, SOFT, RULE = "#ffffff", "#1b1b1a", "#66655f", "#e4e3de"
# The page's style sheet gives each variable another value on a dark ground.
VARIABLES = {light: f"var(--c{i})" for i, (light, _) in enumerate(COLOURS)}
VARIABLES |= {GROUND: "var(--ground)", INK: "var(--ink)", SOFT: "var(--soft)", RULE: "var(--rule)"}


class Palette:
    """The colour and dash of each label; the ninth label has the first colour, dashed."""

    def __init__(self, labels: Iterable[str]):
        self.place = {label: i for i, label in enumerate(dict.fromkeys(labels))}

    def colour(self, label: str) -> int:
        """Index of a label's colour in COLOURS."""
        return self.place[label] % len(COLOURS)

    def turn(self, label: str) -> int:
        """The number of earlier labels of the same colour."""
        return self.place[label] // len(COLOURS)

    def dash(self, label: str) -> str:
        """The dash of a label, as in SVG."""
        return DASHES[self.turn(label) % len(DASHES)]
