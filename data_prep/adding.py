"""The adding problem (Hochreiter & Schmidhuber 1997), as in PSF-Attn (Khalitov et al. 2022)."""

import numpy as np

from lra.compiled import compiled

from .synthetic import Synthetic, state_of, two_positions, word_at


@compiled
def _value(state, position):
    """Draw one of the 2**24 multiples of 2**-23 in (-1, 1], which are exact in float32."""
    return 1.0 - (word_at(state, position) >> np.uint64(40)) * 2.0**-23


@compiled
def _fill(key, index, length, num_tokens, tokens):
    for number, example in enumerate(index):
        state = state_of(key, example)
        # Feature 0: values. Feature 1: marks of the two positions.
        for position in range(num_tokens):
            tokens[number, position, 0] = _value(state, position)
        for position in two_positions(state, length):
            if position < num_tokens:
                tokens[number, position, 1] = 1


@compiled
def _answers(key, n, length):
    answers = np.empty(n, np.float32)
    for example in range(n):
        state = state_of(key, example)
        # The label needs the two marked values only, not the sequence.
        first, second = two_positions(state, length)
        answers[example] = 0.5 + (_value(state, first) + _value(state, second)) / 4
    return answers


class Adding(Synthetic):
    """Pairs (a, b): a is uniform in (-1, 1], b is 1 at two positions and else 0; the label is 0.5 + (a1 + a2) / 4.

    Example: (0.1, 0) (-0.4, 1) (0.3, 0) (-0.2, 0) (0.7, 1) is 0.575. Tokens are (L, 2) float32, labels float32 in
    [0, 1]; the positions are any two different ones.
    """

    name = "adding"
    version = "1.0.0"
    origin = "generated; Hochreiter & Schmidhuber 1997, lengths and sizes of Khalitov et al. 2022 (PSF-Attn)"
    dtype = np.float32
    features = (2,)

    def fill(self, key: np.uint64, index: np.ndarray, num_tokens: int, tokens: np.ndarray) -> None:
        _fill(key, index, self.length, num_tokens, tokens)

    def answers(self, key: np.uint64, n: int) -> np.ndarray:
        return _answers(key, n, self.length)
