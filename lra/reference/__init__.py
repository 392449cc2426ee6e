"""The papers' mechanisms in plain torch, to read next to the paper; the tests compare the fast code with them.

Inputs have no padding: a file whose mechanism depends on positions takes the tokens' positions. Only ``synthesizer``
takes padded positions and a mask. Most files take one sequence, or one head or channel of it; ``delta_rule``,
``decay_attention`` and ``selective_scan`` take batches. No file here imports anything from ``lra``.
"""
