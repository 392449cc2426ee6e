"""The colours of all figures, and a look for each label of a picture: no two have both colour and form in common."""

from collections.abc import Iterable

# (on a light ground, on a dark ground); they differ in lightness, and in hue for colour-blind readers too.
COLOURS = (
    ("#0182ea", "#86b9fd"),
    ("#03522d", "#15bc8d"),
    ("#d37d89", "#ee723c"),
    ("#7c6d00", "#24f68d"),
    ("#2c3dee", "#4369fc"),
    ("#0cbae5", "#21949d"),
    ("#043858", "#fedff5"),
    ("#c2c91b", "#edc202"),
)
COLOURED = 12  # lines of a figure with a colour of their own, if there are too many
MARKERS = "osD^vP*X<>hpd8"
GROUND, INK, SOFT, RULE = "#ffffff", "#1b1b1a", "#66655f", "#e4e3de"
# The page's style sheet gives each variable another value on a dark ground.
VARIABLES = {light: f"var(--c{i})" for i, (light, _) in enumerate(COLOURS)}
VARIABLES |= {GROUND: "var(--ground)", INK: "var(--ink)", SOFT: "var(--soft)", RULE: "var(--rule)"}


class Palette:
    """The look of each label; the ninth label has the first colour again, with another dash and marker.

    The lines of other labels are thin and grey.
    """

    def __init__(self, labels: Iterable[str]):
        self.place = {label: i for i, label in enumerate(dict.fromkeys(labels))}

    def colour(self, label: str) -> int:
        """Index of a label's colour in COLOURS."""
        return self.place[label] % len(COLOURS)

    def turn(self, label: str) -> int:
        """The number of earlier labels of the same colour."""
        return self.place[label] // len(COLOURS)

    def dash(self, label: str) -> str:
        """The dash of a label, as in SVG: none, then dashes with ever more dots between them."""
        turn = self.turn(label)
        return "6 3" + " 2 3" * (turn - 1) if turn else ""

    def line(self, label: str) -> dict[str, object]:
        """The colour and dash of a label as options of matplotlib."""
        if label not in self.place:
            return {"color": "0.85", "lw": 0.8, "zorder": 1}
        lengths = [float(length) / 1.8 for length in self.dash(label).split()]
        return {"color": COLOURS[self.colour(label)][0], "linestyle": (0, lengths) if lengths else "-"}

    def marker(self, label: str) -> dict[str, object]:
        """The colour and marker of a label as options of matplotlib."""
        return {"color": COLOURS[self.colour(label)][0], "marker": MARKERS[self.turn(label) % len(MARKERS)]}
