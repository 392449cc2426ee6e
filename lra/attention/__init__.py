from ..ops.cur import cur_attention

__all__ = ["cur_attention"]
