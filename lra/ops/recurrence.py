"""One import for the linear recurrences. Their files have the derivations."""

from .decay_attention import channel_decay_attention, scalar_decay_attention
from .delta_rule import delta_rule_attention
from .diagonal_recurrence import diagonal_recurrence
from .selective_scan import selective_scan

__all__ = [
    "channel_decay_attention",
    "delta_rule_attention",
    "diagonal_recurrence",
    "scalar_decay_attention",
    "selective_scan",
]
