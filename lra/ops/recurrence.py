"""One import for the linear recurrences. Each has its own file, with its derivation."""

from .channel_decay import channel_decay_attention
from .delta_rule import delta_rule_attention
from .diagonal_recurrence import diagonal_recurrence
from .scalar_decay import scalar_decay_attention
from .selective_scan import selective_scan

__all__ = [
    "channel_decay_attention",
    "delta_rule_attention",
    "diagonal_recurrence",
    "scalar_decay_attention",
    "selective_scan",
]
