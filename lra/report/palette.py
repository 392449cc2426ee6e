"""Colours of every picture: one colour and dash for a mechanism."""

from collections.abc import Iterable

# On a light and on a dark ground; neighbours differ for the colour-blind too.
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
# The page's style sheet has another value of each for a dark ground.
VARIABLES = {light: f"var(--c{i})" for i, (light, _) in enumerate(COLOURS)}
VARIABLES |= {GROUND: "var(--ground)", INK: "var(--ink)", SOFT: "var(--soft)", RULE: "var(--rule)"}


class Palette:
    """Colour and dash of each label. The ninth label has the first colour, dashed."""

    def __init__(self, labels: Iterable[str]):
        self.place = {label: i for i, label in enumerate(dict.fromkeys(labels))}

    def colour(self, label: str) -> int:
        return self.place[label] % len(COLOURS)

    def turn(self, label: str) -> int:
        """Number of earlier labels of the same colour."""
        return self.place[label] // len(COLOURS)

    def dash(self, label: str) -> str:
        return DASHES[self.turn(label) % len(DASHES)]
