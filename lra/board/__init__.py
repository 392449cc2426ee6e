"""The board (``sweep=board``): its tasks and the ranking of mechanisms on them. ``chapter`` is its interface."""
