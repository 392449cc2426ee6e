"""The colours of all figures, for the labels of a figure and for the families of mechanisms.

No two labels of a figure share both colour and dash, nor both colour and marker up to 112 labels.
"""

from collections.abc import Hashable, Iterable
from typing import Any

import numpy as np
from matplotlib.colors import LinearSegmentedColormap

# (on a light background, on a dark background). They differ in lightness, for colour-blind readers, and in hue. Their
# contrast with the background is at least 3, as WCAG 2.1 asks for graphics.
COLOURS = (
    ("#0086f2", "#86b9fd"),
    ("#003200", "#15bc8d"),
    ("#c7560e", "#ee723c"),
    ("#78694b", "#24f68d"),
    ("#4537ff", "#4369fc"),
    ("#01a2b6", "#21949d"),
    ("#243755", "#fedff5"),
    ("#6c1f96", "#edc202"),
)
# A figure with more lines gives this number of them a colour; the others are grey.
COLOURED = 12
MARKERS = "osD^vP*X<>hpd8"
GROUND = "#ffffff"
INK = "#1b1b1a"
SOFT = "#66655f"
RULE = "#e4e3de"
# Labels that are not in a palette.
GREY = "0.85"

# Shades of weights: from the least weight up, and of both signs around zero.
SHADES = LinearSegmentedColormap.from_list("shades", [GROUND, "#8cbcf2", "#1d5fb4"])
SIGNED_SHADES = LinearSegmentedColormap.from_list("signed", ["#1d5fb4", "#8cbcf2", GROUND, "#f4a58c", "#b8341b"])

# Variables of the page's style sheet, which have other values on a dark background.
VARIABLES = {light: f"var(--c{i})" for i, (light, _) in enumerate(COLOURS)}
VARIABLES |= {GROUND: "var(--ground)", INK: "var(--ink)", SOFT: "var(--soft)", RULE: "var(--rule)"}

# Label of exact attention.
EXACT = "sdpa"
OTHER = "other"
CONTROL_FAMILY = "control"
# Names of conf/attn, or their beginnings: nystrom_original belongs to the family of nystrom.
FAMILIES = {
    "exact": ("sdpa", "softmax"),
    "CUR": ("cur", "flashcur"),
    "low rank": ("nystrom", "soft", "softpp", "linformer", "skyformer", "flare", "luna", "dba"),
    "kernel features": ("linear", "performer", "rfa", "cosformer", "hedgehog"),
    "bands, blocks, hashes": (
        *("local", "longformer", "bigbird", "sparse", "sinkhorn", "reformer"),
        *("h_transformer", "transformer_ls"),
    ),
    "state space, convolution": ("s4d", "s5", "lru", "long_conv"),
    "gated recurrence": (
        *("lion", "retnet", "gla", "hgrn2", "delta_net", "gated_delta_net", "mamba", "mamba2", "hydra"),
        *("rg_lru", "min_gru", "min_lstm", "hyena", "based"),
    ),
    "MEGA": ("mega",),
    "fixed or learned pattern": ("psf", "fnet", "synthesizer"),
    CONTROL_FAMILY: ("none", "mean", "conv"),
}
# Names of the families in the order of a legend, the controls last.
KINDS = [*(kind for kind in FAMILIES if kind != CONTROL_FAMILY), OTHER, CONTROL_FAMILY]
# Labels of the controls.
CONTROLS = FAMILIES[CONTROL_FAMILY]


class Palette:
    """The look of each label of a figure.

    The ninth label has the first colour again, with another dash and marker. Lines of labels that are not in the
    palette are thin and grey.

    Args:
        labels: labels in the order of their colours.
    """

    def __init__(self, labels: Iterable[Hashable]):
        self.position = {label: i for i, label in enumerate(dict.fromkeys(labels))}

    def colour_index(self, label: Hashable) -> int:
        """Return the index of a label's colour in COLOURS."""
        return self.position[label] % len(COLOURS)

    def turn(self, label: Hashable) -> int:
        """Return the number of earlier labels of the same colour."""
        return self.position[label] // len(COLOURS)

    def dash(self, label: Hashable) -> str:
        """Return the dash of a label in SVG's notation: none, then dashes with a growing number of dots between."""
        turn = self.turn(label)
        if turn == 0:
            return ""
        dots = " 2 3" * (turn - 1)
        return f"6 3{dots}"

    def line(self, label: Hashable) -> dict[str, Any]:
        """Return the colour and dash of a label as options of matplotlib."""
        if label not in self.position:
            return {"color": GREY, "lw": 0.8, "zorder": 1}
        # SVG counts in pixels, matplotlib in line widths of 1.8 pixels.
        lengths = [float(length) / 1.8 for length in self.dash(label).split()]
        dashes = (0, lengths) if lengths else "-"
        return {"color": COLOURS[self.colour_index(label)][0], "linestyle": dashes}

    def marker(self, label: Hashable) -> dict[str, Any]:
        """Return the colour and marker of a label as options of matplotlib."""
        if label not in self.position:
            return {"color": GREY, "marker": "o"}
        marker = MARKERS[self.turn(label) % len(MARKERS)]
        return {"color": COLOURS[self.colour_index(label)][0], "marker": marker}


def family(label: str) -> str:
    """Return the family of the longest name in ``FAMILIES`` that is the label or begins it.

    A name ends before "_", "-" or "+", the name of a control before "-" or "+".
    """
    kind_of = {name: kind for kind, names in FAMILIES.items() for name in names}
    matches = []
    for name, kind in kind_of.items():
        # Only options and pretraining may follow the name of a control: conv_mixer is not a control.
        separators = "-+" if kind == CONTROL_FAMILY else "_-+"
        if label == name or (label.startswith(name) and label[len(name)] in separators):
            matches.append(name)
    return kind_of[max(matches, key=len)] if matches else OTHER


def look(kind: str) -> dict[str, Any]:
    """Return the colour and marker of a family as options of matplotlib."""
    index = KINDS.index(kind)
    # There are more families than colours; each has its own marker.
    colour = COLOURS[index % len(COLOURS)][0]
    colour = {OTHER: INK, CONTROL_FAMILY: SOFT}.get(kind, colour)
    return {"color": colour, "marker": MARKERS[index]}


def shade_range(weights: np.ndarray) -> tuple[float, float, bool]:
    """Compute the range of weights that shades show; the greatest 0.1 % are clipped.

    Returns:
        The weight of the first and of the last shade, and whether the range is symmetric around zero because some
        weights are negative by more than 1 % of the 99.9 % quantile.
    """
    low = float(weights.min())
    high = float(np.quantile(weights, 0.999))
    is_signed = low < -0.01 * high
    if not is_signed:
        return low, max(high, low + 1e-12), False
    magnitudes = np.abs(weights)
    high = max(float(np.quantile(magnitudes, 0.999)), 1e-12)
    return -high, high, True
