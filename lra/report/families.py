"""The families of mechanisms, which share a colour and a marker in the pictures of a board and of seeds."""

import math
from collections.abc import Iterable

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from .palette import COLOURS, INK, MARKERS, SOFT

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


def family(label: str) -> str:
    """The family of a label: of the longest name of ``FAMILIES`` that it begins with, ``other`` without one."""
    kinds = {name: kind for kind, names in FAMILIES.items() for name in names}
    starts = [name for name in kinds if label == name or label.startswith((f"{name}_", f"{name}-"))]
    return kinds[max(starts, key=len)] if starts else OTHER


def look(kind: str) -> dict[str, str]:
    """The colour and marker of a family as options of matplotlib."""
    place = KINDS.index(kind)
    return {"color": [*(light for light, _ in COLOURS), INK, SOFT][place], "marker": MARKERS[place]}


def key(figure: Figure, labels: Iterable[str]) -> None:
    """Show the families of labels below a figure, which becomes higher."""
    kinds = sorted({family(label) for label in labels}, key=KINDS.index)
    handles = [Line2D([], [], linestyle="none", label=kind, **look(kind)) for kind in kinds]
    columns = max(1, round(figure.get_figwidth() / 1.6))
    figure.set_figheight(figure.get_figheight() + 0.18 * math.ceil(len(kinds) / columns))
    figure.legend(handles=handles, loc="outside lower center", ncols=columns)
