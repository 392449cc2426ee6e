"""The colours of all figures, a look for each label of a picture, and one for each family of mechanisms.

No two labels of a picture have both colour and form in common.
"""

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

OTHER = "other"
CONTROL = "control"
FAMILIES = {  # names of conf/attn; a later version of a name, nystrom_original, belongs to the family of its beginning
    "exact": ("sdpa", "softmax"),
    "CUR": ("cur", "flashcur"),
    "low rank": ("nystrom", "soft", "softpp", "linformer", "skyformer", "flare", "luna", "dba"),
    "kernel features": ("linear", "performer", "rfa", "cosformer", "hedgehog"),
    "bands, blocks, hashes": (
        *("local", "longformer", "bigbird", "sparse", "sinkhorn", "reformer"),
        *("h_transformer", "transformer_ls"),
    ),
    "state space, convolution": ("s4d", "s5", "lru", "long_conv"),
    "MEGA": ("mega",),
    "fixed or learned pattern": ("psf", "fnet", "synthesizer"),
    CONTROL: ("none", "mean", "conv"),
}
KINDS = [*(kind for kind in FAMILIES if kind != CONTROL), OTHER, CONTROL]


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


def family(label: str) -> str:
    """The family of a label: of the longest name of ``FAMILIES`` that it begins with, ``other`` without one."""
    kinds = {name: kind for kind, names in FAMILIES.items() for name in names}
    starts = [name for name in kinds if label == name or label.startswith((f"{name}_", f"{name}-"))]
    return kinds[max(starts, key=len)] if starts else OTHER


def look(kind: str) -> dict[str, str]:
    """The colour and marker of a family as options of matplotlib."""
    place = KINDS.index(kind)
    return {"color": [*(light for light, _ in COLOURS), INK, SOFT][place], "marker": MARKERS[place]}
