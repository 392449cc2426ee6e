"""The families of mechanisms, which share a colour and a marker in the picture of a board."""

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


def family(label: str) -> str:
    """The family of a label: of the longest name of ``FAMILIES`` that it begins with, ``other`` without one."""
    kinds = {name: kind for kind, names in FAMILIES.items() for name in names}
    starts = [name for name in kinds if label == name or label.startswith((f"{name}_", f"{name}-"))]
    return kinds[max(starts, key=len)] if starts else OTHER
